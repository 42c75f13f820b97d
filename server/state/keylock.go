package state

import (
	"context"
	"slices"
	"sync"
)

// keyLocks are locks by name; waiting for one can end with a context. The zero value is ready.
type keyLocks struct {
	mu   sync.Mutex
	held map[string]*keyLock
}

type keyLock struct {
	slot  chan struct{} // holds one element while the lock is held
	users int           // goroutines that hold it or wait for it; guarded by keyLocks.mu
}

// begin gives ctx a deadline if it has none, and locks the keys in sorted order, so that callers
// cannot deadlock. The caller must call end.
func (l *keyLocks) begin(ctx context.Context, keys ...string) (_ context.Context, end func(), err error) {
	ctx, cancel := withCallTimeout(ctx)
	held := 0
	end = func() {
		for _, key := range keys[:held] {
			l.leave(key, true)
		}
		cancel()
	}
	for slices.Sort(keys); held < len(keys); held++ {
		if err := l.lock(ctx, keys[held]); err != nil {
			end()
			return nil, nil, err
		}
	}
	return ctx, end, nil
}

func (l *keyLocks) lock(ctx context.Context, key string) error {
	l.mu.Lock()
	k := l.held[key]
	if k == nil {
		k = &keyLock{slot: make(chan struct{}, 1)}
		if l.held == nil {
			l.held = map[string]*keyLock{}
		}
		l.held[key] = k
	}
	k.users++
	l.mu.Unlock()
	if ctx.Err() == nil { // otherwise select might take the lock
		select {
		case k.slot <- struct{}{}:
			return nil
		case <-ctx.Done():
		}
	}
	l.leave(key, false)
	return ended(ctx, "waiting to change "+key)
}

// leave ends one use of a lock, by a goroutine that holds it (has) or has waited for it.
func (l *keyLocks) leave(key string, has bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.held[key]
	if has {
		<-k.slot
	}
	if k.users--; k.users == 0 {
		delete(l.held, key)
	}
}
