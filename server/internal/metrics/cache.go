package metrics

import "sync/atomic"

// A Cache counts the uses of the prediction cache by one model version.
type Cache struct {
	Hits    atomic.Uint64 // requests answered from the cache
	Shared  atomic.Uint64 // requests that waited for the answer to an equal one
	Misses  atomic.Uint64 // all others
	NotKept atomic.Uint64 // answers too large for the cache, or for the payload memory left

	removed [cacheReasons]atomic.Uint64
	entries atomic.Int64
	bytes   atomic.Int64

	used atomic.Bool // the model has, or had, a cache
}

// CacheCounts are the counts of a Cache at one moment.
type CacheCounts struct {
	Hits, Misses, Shared, NotKept uint64
	Evicted                       uint64 // entries removed to make room for others
	Expired                       uint64 // entries older than cache_ttl
	Entries, Bytes                int64  // now
}

// Cache returns the counts of the model's cache. They are shown from the first call on.
func (m *Model) Cache() *Cache {
	m.cache.used.Store(true)
	return &m.cache
}

// Counts reads the counts, though not at one instant.
func (c *Cache) Counts() CacheCounts {
	return CacheCounts{
		Hits: c.Hits.Load(), Misses: c.Misses.Load(), Shared: c.Shared.Load(), NotKept: c.NotKept.Load(),
		Evicted: c.removed[CacheFull].Load(), Expired: c.removed[CacheExpired].Load(),
		Entries: c.entries.Load(), Bytes: c.bytes.Load(),
	}
}

// Stored counts a new entry; exactly one Removed must follow.
func (c *Cache) Stored(bytes int64) {
	c.entries.Add(1)
	c.bytes.Add(bytes)
}

// Removed counts the removal of an entry.
func (c *Cache) Removed(why CacheReason, bytes int64) {
	c.entries.Add(-1)
	c.bytes.Add(-bytes)
	c.removed[why].Add(1)
}

// A CacheReason is why an entry was removed from a cache.
type CacheReason uint8

// The reasons.
const (
	CacheFull    CacheReason = iota // to make room for others
	CacheExpired                    // it was older than cache_ttl
	// CacheCleared: an operator cleared the cache or changed its settings, or the version lost its
	// last replica.
	CacheCleared
	cacheReasons
)

var cacheReasonNames = [cacheReasons]string{"full", "expired", "cleared"}

// String returns the label.
func (r CacheReason) String() string { return cacheReasonNames[r] }
