package cache

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/metrics"
	"github.com/shivad/shivad/shiva/tensor"
)

// Config of a Cache.
type Config struct {
	Bytes int64         // the most that entries may take, above 0
	TTL   time.Duration // how long an answer is given; 0 = for ever
	Pool  *tensor.Pool  // memory of the entries; nil = the garbage collector's

	// Scheduler executes what is not cached. Its methods may call Complete of what they are given
	// before they return.
	Scheduler Scheduler
}

// A Scheduler takes requests in and gives them up, as [scheduler.Scheduler] does.
type Scheduler interface {
	Submit(...*scheduler.Request)
	Cancel(*scheduler.Request)
}

// A Cache keeps answers of all versions of one model. Close it.
type Cache struct {
	// Set once.

	sched   Scheduler
	pool    *tensor.Pool
	seed    uint64
	entries *otter.Cache[key, *entry]

	limit    atomic.Int64
	versions atomic.Uint64 // made so far
	bytes    atomic.Int64  // of the entries
	count    atomic.Int64

	// Of other locks only the table's and the pool's are taken with it, and no function of an
	// owner or the scheduler is called.
	mu sync.Mutex

	// Guarded by mu.

	flights map[key]*flight
	clears  uint64 // flights that began before the last one do not keep their answers
	closed  bool
	waiting waiting
}

// A Version is one version of the model while its answers can be trusted to be the same. It
// must be dropped.
type Version struct {
	cache  *Cache
	id     uint64
	counts *metrics.Cache

	dropped bool // guarded by the cache's mutex
}

// New makes an empty cache.
func New(cfg Config) *Cache {
	k := &Cache{sched: cfg.Scheduler, pool: cfg.Pool, seed: rand.Uint64(), flights: make(map[key]*flight)}
	k.limit.Store(cfg.Bytes)
	options := &otter.Options[key, *entry]{
		MaximumWeight:    uint64(cfg.Bytes),
		Weigher:          func(_ key, e *entry) uint32 { return uint32(e.bytes) },
		OnAtomicDeletion: k.deleted,
		// Upkeep is done by whoever stores or reads, at once: it is short, and the bound holds
		// without waiting for a goroutine.
		Executor: func(f func()) { f() },
	}
	if cfg.TTL > 0 {
		options.ExpiryCalculator = otter.ExpiryCreating[key, *entry](cfg.TTL)
	}
	k.entries = otter.Must(options)
	return k
}

// deleted takes an entry off the books that the table has let go. It may run under any lock of
// the table.
func (k *Cache) deleted(d otter.DeletionEvent[key, *entry]) {
	e := d.Value
	k.bytes.Add(-e.bytes)
	k.count.Add(-1)
	why := metrics.CacheCleared
	switch d.Cause {
	case otter.CauseOverflow:
		why = metrics.CacheFull
	case otter.CauseExpiration:
		why = metrics.CacheExpired
	}
	e.version.counts.Removed(why, e.bytes)
	e.release()
}

// store keeps an entry, which the caller still has a reference to.
func (k *Cache) store(key key, e *entry) {
	e.refs.Add(1)
	k.bytes.Add(e.bytes)
	k.count.Add(1)
	e.version.counts.Stored(e.bytes)
	k.entries.Set(key, e)
	// If somebody else was just doing the table's upkeep, it was not done for this entry.
	if k.bytes.Load() > k.limit.Load() {
		k.entries.CleanUp()
	}
}

// lookup finds an entry, with a reference for the caller; nil if there is none.
func (k *Cache) lookup(key key) *entry {
	if e, ok := k.entries.GetIfPresent(key); ok && e.acquire() {
		return e
	}
	return nil
}

// Version begins a version of the model, for which nothing is cached yet.
func (k *Cache) Version(counts *metrics.Cache) *Version {
	return &Version{cache: k, id: k.versions.Add(1), counts: counts}
}

// Drop drops the cached answers of a version; what is executing will not be cached.
// Requests for it that come late are answered all the same.
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

// Clear drops all entries, and returns how many there were. What is executing will not be cached.
func (k *Cache) Clear() (entries, bytes int64) {
	k.mu.Lock()
	k.clears++
	k.mu.Unlock()
	entries, bytes = k.count.Load(), k.bytes.Load()
	k.entries.InvalidateAll()
	return entries, bytes
}

// Resize changes the bound, which holds when it returns.
func (k *Cache) Resize(bytes int64) {
	k.limit.Store(bytes)
	k.entries.SetMaximum(uint64(bytes))
}

// Close drops all entries and stops what the cache runs. Requests that are waiting are
// answered when their leader is; later ones are not looked up.
func (k *Cache) Close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.Clear()
	k.entries.StopAllGoroutines()
}

// Usage is what the cache holds now.
type Usage struct {
	Entries int64
	Bytes   int64
	Limit   int64
}

// Usage reports what the cache holds. Entries that have expired count until they are removed,
// which takes up to a second or two.
func (k *Cache) Usage() Usage { return Usage{k.count.Load(), k.bytes.Load(), k.limit.Load()} }
