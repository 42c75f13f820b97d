package state

import (
	"context"
	"slices"
	"sync"
)

// keyLocks are locks by name that can be waited for with a context. The zero value is ready.
type keyLocks struct {
	mu   sync.Mutex
	held map[string]*keyLock
}

type keyLock struct {
	turn  chan struct{} // holds one element while the lock is held
	users int           // who hold it or wait for it; guarded by keyLocks.mu
}

func (l *keyLocks) lock(ctx context.Context, key string) (unlock func(), err error) {
	l.mu.Lock()
	k := l.held[key]
	if k == nil {
		k = &keyLock{turn: make(chan struct{}, 1)}
		if l.held == nil {
			l.held = map[string]*keyLock{}
		}
		l.held[key] = k
	}
	k.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.held, key)
		}
	}
	if ctx.Err() != nil { // select would take either
		leave()
		return nil, ended(ctx, "waiting to change "+key)
	}
	select {
	case k.turn <- struct{}{}:
		return func() { <-k.turn; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ended(ctx, "waiting to change "+key)
	}
}

// lockAll locks the keys of entries, in one order for all who do.
func (l *keyLocks) lockAll(ctx context.Context, entries []Entry) (unlock func(), err error) {
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = e.Key
	}
	slices.Sort(keys)
	var held []func()
	unlock = func() {
		for _, u := range held {
			u()
		}
	}
	for _, key := range keys {
		u, err := l.lock(ctx, key)
		if err != nil {
			unlock()
			return nil, err
		}
		held = append(held, u)
	}
	return unlock, nil
}
