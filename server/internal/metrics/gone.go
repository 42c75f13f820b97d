package metrics

import (
	"maps"
	"sync/atomic"
	"time"
)

// lingering is how long the series of a removed model stay, so that its last counts are read: even
// a reader that scrapes once a minute has four chances.
const lingering = 5 * time.Minute

// Keep sets which models and applications exist, by name and version; the version of an application
// is "". All others are removed: their series disappear after a while, and begin at 0 if the model
// returns, which Prometheus takes for a restart. Until the first call all exist.
func (m *Metrics) Keep(present map[[2]string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.present = make(map[id]bool, len(present))
	for name := range present {
		m.present[idOf(name[0], name[1])] = true
	}
	m.sweepLocked()
}

// sweepLocked records which models were removed and which have returned, and releases those removed
// long ago. mu is held.
func (m *Metrics) sweepLocked() {
	if m.present == nil {
		return
	}
	now := m.now()
	old := *m.models.Load()
	var left []id
	for key, model := range old {
		switch {
		case key == id{} || key == overflowID || m.present[key]:
			model.removedAt.Store(0)
		case model.removedAt.Load() == 0:
			model.removedAt.Store(now.UnixNano())
		case now.Sub(time.Unix(0, model.removedAt.Load())) >= lingering:
			left = append(left, key)
		}
	}
	m.dropLocked(left...)
}

// oldestLocked returns the model that was removed first. mu is held.
func (m *Metrics) oldestLocked() (oldest id, ok bool) {
	var since int64
	for key, model := range *m.models.Load() {
		if at := model.removedAt.Load(); at != 0 && (!ok || at < since) {
			oldest, since, ok = key, at, true
		}
	}
	return oldest, ok
}

// dropLocked releases models, and keeps their counts in the doors' totals. mu is held.
func (m *Metrics) dropLocked(keys ...id) {
	if len(keys) == 0 {
		return
	}
	models := maps.Clone(*m.models.Load())
	for _, key := range keys {
		model := models[key]
		for i := range model.doors {
			for o := range outcomes {
				m.released[i][o].Add(model.doors[i].requests[o].Load())
			}
		}
		model.dropped.Store(true)
		delete(models, key)
	}
	m.models.Store(&models)
	m.drops.Add(1) // after dropped: a tally that sees this must see dropped, too
}

// answered returns how many requests a door has answered with that outcome, over all models ever.
func (m *Metrics) answered(d *Door, o Outcome) uint64 {
	n := m.released[d.index][o].Load()
	for _, model := range *m.models.Load() {
		n += model.doors[d.index].requests[o].Load()
	}
	return n
}

// used reports whether anything was counted.
func (m *Model) used() bool {
	for i := range m.doors {
		if m.asked(i) {
			return true
		}
	}
	return counted(m.closed) || counted(m.drops) || m.execution.count() > 0 || m.failures.Load() > 0 ||
		m.wasted.Load() > 0 || m.hasFeedback() || m.cache.used.Load()
}

// asked reports whether any request came through the door with that index.
func (m *Model) asked(door int) bool {
	return counted(m.doors[door].requests[:])
}

// counted reports whether any of the counters has counted.
func counted(list []atomic.Uint64) bool {
	for i := range list {
		if list[i].Load() > 0 {
			return true
		}
	}
	return false
}

// prune forgets the models that were released.
func (t *Tally) prune() {
	now := t.door.metrics.drops.Load()
	if now == t.seen {
		return
	}
	t.seen, t.last = now, nil
	maps.DeleteFunc(t.models, func(m *Model, _ *modelTally) bool { return m.dropped.Load() })
}
