package cache

import (
	"iter"

	"github.com/maypok86/otter/v2"

	"github.com/shivad/shivad/server/metrics"
)

// A table is an [otter.Cache], reduced to the methods that a Cache calls. It is an interface to
// save compile time: with the generic type as a field, each of the twenty packages that see a Cache
// would compile its 1,200 functions again.
type table interface {
	GetIfPresent(key) (*entry, bool)
	Set(key, *entry) (*entry, bool)
	All() iter.Seq2[key, *entry]
	Invalidate(key) (*entry, bool)
	InvalidateAll()
	CleanUp()
	SetMaximum(bytes uint64)
	StopAllGoroutines() bool
}

// newTable returns an empty table. It calls removed for each entry that it removes, perhaps under
// one of its locks.
func newTable(cfg Config, removed func(*entry, metrics.CacheReason)) table {
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
