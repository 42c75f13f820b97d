package container

import (
	"context"
	"sync"
	"time"
)

// A health lets the model serve while its Health returns nil. Each such period is a context that
// ends when Health returns an error.
type health struct {
	mu     sync.Mutex
	period context.Context
	end    context.CancelFunc
	well   chan struct{} // closed when a period begins; nil during a period
}

func newHealth() *health {
	h := &health{}
	h.period, h.end = context.WithCancel(context.Background())
	return h
}

// wait returns the current period, or the next one once it begins; nil if ctx ends first.
func (h *health) wait(ctx context.Context) context.Context {
	for {
		h.mu.Lock()
		period, well := h.period, h.well
		h.mu.Unlock()
		if well == nil {
			return period
		}
		select {
		case <-well:
		case <-ctx.Done():
			return nil
		}
	}
}

// set ends the period, or begins the next one.
func (h *health) set(well bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if well {
		h.period, h.end = context.WithCancel(context.Background())
		close(h.well)
		h.well = nil
		return
	}
	h.well = make(chan struct{})
	h.end()
}

// watch calls the model's Health until ctx ends.
func (h *health) watch(ctx context.Context, m *Model) {
	log := m.Log.With("model", m.Name, "version", m.Version)
	ticker := time.NewTicker(m.HealthInterval)
	defer ticker.Stop()
	well := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := hook(ctx, log, "Health", func() error { return m.Health(ctx) })
		if ctx.Err() != nil || well == (err == nil) {
			continue
		}
		if well = err == nil; well {
			log.Info("container: healthy again")
		} else {
			log.Error("container: not healthy; leaving the servers until it is", "reason", err)
		}
		h.set(well)
	}
}
