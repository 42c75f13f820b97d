package cache

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/tensor"
)

// Config configures a Cache.
type Config struct {
	Bytes int64         // limit for the entries, above 0
	TTL   time.Duration // how long an answer is valid; 0 = forever
	Pool  *tensor.Pool  // memory of the entries; nil = the garbage collector's

	// Submit executes requests that are not cached, as that of [scheduler.Scheduler] does. It may
	// call the Complete of a request before it returns.
	Submit func(...*scheduler.Request)
}

// A Cache holds answers of all versions of one model. Close it.
type Cache struct {
	// Set once.

	submit  func(...*scheduler.Request)
	pool    *tensor.Pool
	seed    uint64
	entries *otter.Cache[key, *entry]

	limit    atomic.Int64
	versions atomic.Uint64 // made so far
	bytes    atomic.Int64  // of the entries
	count    atomic.Int64

	// Under mu, only the locks of the table and of the pool may be taken. No function of an owner
	// or of the scheduler is called under it.
	mu sync.Mutex

	// Guarded by mu.

	flights map[key]*flight
	clears  uint64 // flights that began before the last Clear do not cache their answers
	closed  bool
	waiting waiting
}

// A Version is a version of the model for as long as its answers can be trusted to stay the same.
// The caller must Drop it.
type Version struct {
	cache  *Cache
	id     uint64
	counts *metrics.Cache

	dropped bool // guarded by the cache's mutex
}

// New returns an empty cache.
func New(cfg Config) *Cache {
	k := &Cache{submit: cfg.Submit, pool: cfg.Pool, seed: rand.Uint64(), flights: make(map[key]*flight)}
	k.limit.Store(cfg.Bytes)
	k.entries = newTable(cfg, k.removed)
	return k
}

// removed stops counting an entry that the table has removed.
func (k *Cache) removed(e *entry, why metrics.CacheReason) {
	k.bytes.Add(-e.bytes)
	k.count.Add(-1)
	e.version.counts.Removed(why, e.bytes)
	e.release()
}

// store adds an entry; the caller keeps its own reference.
func (k *Cache) store(key key, e *entry) {
	e.refs.Add(1)
	k.bytes.Add(e.bytes)
	k.count.Add(1)
	e.version.counts.Stored(e.bytes)
	k.entries.Set(key, e)
	// If another goroutine was just doing the table's upkeep, it missed this entry.
	if k.bytes.Load() > k.limit.Load() {
		k.entries.CleanUp()
	}
}

// lookup finds an entry and takes a reference for the caller; nil if there is none.
func (k *Cache) lookup(key key) *entry {
	if e, ok := k.entries.GetIfPresent(key); ok && e.acquire() {
		return e
	}
	return nil
}

// Version begins a version of the model, with nothing cached.
func (k *Cache) Version(counts *metrics.Cache) *Version {
	return &Version{cache: k, id: k.versions.Add(1), counts: counts}
}

// Drop drops the cached answers of a version; answers to requests in flight will not be cached.
// Later requests for the version are still answered.
func (v *Version) Drop() {
	k := v.cache
	k.mu.Lock()
	v.dropped = true
	k.mu.Unlock()
	var keys []key
	for key, e := range k.entries.All() {
		if e.version == v {
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		k.entries.Invalidate(key)
	}
}

// Clear drops all entries, and returns how many there were. Answers to requests in flight will not
// be cached.
func (k *Cache) Clear() (entries, bytes int64) {
	k.mu.Lock()
	k.clears++
	k.mu.Unlock()
	entries, bytes = k.count.Load(), k.bytes.Load()
	k.entries.InvalidateAll()
	return entries, bytes
}

// Resize changes the bound. The new bound is in effect when it returns.
func (k *Cache) Resize(bytes int64) {
	k.limit.Store(bytes)
	k.entries.SetMaximum(uint64(bytes))
}

// Close drops all entries and stops the cache's goroutines. Waiting followers get their leader's
// answer; later requests are not looked up.
func (k *Cache) Close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.Clear()
	k.entries.StopAllGoroutines()
}

// Usage tells what the cache holds.
type Usage struct {
	Entries int64
	Bytes   int64
	Limit   int64
}

// Usage reports what the cache holds. Entries that have expired count until they are removed,
// which takes up to a second or two.
func (k *Cache) Usage() Usage { return Usage{k.count.Load(), k.bytes.Load(), k.limit.Load()} }
