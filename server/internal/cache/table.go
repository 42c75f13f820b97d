package cache

import (
	"github.com/maypok86/otter/v2"

	"github.com/shivad/shivad/server/internal/metrics"
)

// newTable returns an empty table. It calls removed for each entry that it removes, perhaps under
// one of its locks.
func newTable(cfg Config, removed func(*entry, metrics.CacheReason)) *otter.Cache[key, *entry] {
	options := &otter.Options[key, *entry]{
		MaximumWeight: uint64(cfg.Bytes),
		Weigher:       func(_ key, e *entry) uint32 { return uint32(e.bytes) },
		OnAtomicDeletion: func(d otter.DeletionEvent[key, *entry]) {
			why := metrics.CacheCleared
			switch d.Cause {
			case otter.CauseOverflow:
				why = metrics.CacheFull
			case otter.CauseExpiration:
				why = metrics.CacheExpired
			}
			removed(d.Value, why)
		},
		// Upkeep is done at once by the goroutine that stores or reads: it is short, and the bound
		// holds without waiting for another goroutine.
		Executor: func(f func()) { f() },
	}
	if cfg.TTL > 0 {
		options.ExpiryCalculator = otter.ExpiryCreating[key, *entry](cfg.TTL)
	}
	return otter.Must(options)
}
