package state

import (
	"context"
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
