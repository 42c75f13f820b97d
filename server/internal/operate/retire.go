package operate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/wake"
)

// A retirement is the state of Retire: which versions are being retired.
type retirement struct {
	poke     chan struct{}  // holds one: something changed
	goodbyes sync.WaitGroup // to dialed containers; ends with Shutdown

	// Owned by the goroutine of Retire.
	since     map[scheduler.ModelID]time.Time // when replaced, or last asked to leave
	dismissed map[*containers.Dialer]bool     // dialed containers that were told goodbye

	mu sync.Mutex
	// idle lists sessions of retired versions whose containers do not understand a goodbye.
	idle map[scheduler.ModelID][]uint64
}

// Changed makes Retire look again. It may be called from anywhere and does not block.
func (ss *Sessions) Changed() { wake.Up(ss.retiring.poke) }

// stays reports whether a session should have been retired but stays because its container does not
// understand a goodbye.
func (r *retirement) stays(i containers.SessionInfo) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.idle[i.Model], i.Number)
}

// setIdle records the sessions of a version that stay, and reports whether they have changed.
func (r *retirement) setIdle(id scheduler.ModelID, numbers []uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Equal(r.idle[id], numbers) {
		return false
	}
	r.idle[id] = numbers
	if len(numbers) == 0 {
		delete(r.idle, id)
	}
	return true
}

// prune forgets versions that are not, or no longer, replaced.
func (r *retirement) prune(replaced map[scheduler.ModelID]time.Time) {
	r.since = replaced
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.idle, func(id scheduler.ModelID, _ []uint64) bool {
		_, still := replaced[id]
		return !still
	})
}

// retireAgain is how long until the next look at a version that is due but has rows waiting.
const retireAgain = 50 * time.Millisecond

// Retire says goodbye to the containers of versions that have been older than a ready default for
// the model's retire_after, unless rows wait for them or an application links to them besides the
// default. It runs until the server stops.
//
// The pause gives operators time to go back (shivactl models set-version), and lets the old version
// serve requests that were on their way to it when the new one registered.
//
// Clipper's containers do not understand a goodbye. They stay connected and idle until an operator
// stops them: if the server hung up, they would reconnect at once, again and again. Their version
// is checked again after each retire_after, in case other containers have registered.
func (ss *Sessions) Retire() {
	r := &ss.retiring
	r.since, r.dismissed = make(map[scheduler.ModelID]time.Time), make(map[*containers.Dialer]bool)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ss.cfg.Stopping:
			return
		case <-r.poke:
		case <-timer.C:
		}
		due, next := ss.overdueVersions(time.Now())
		for _, id := range due {
			reason := fmt.Sprintf("version %s of %s is replaced by a newer one", id.Version, id.Name)
			told, idle := ss.Listener().Retire(id, reason)
			for _, d := range ss.listDialers() {
				if d.Model() == id && !r.dismissed[d] {
					told++
					r.dismissed[d] = true
					// No timeout: a server that stops drains first, and then hangs up.
					r.goodbyes.Go(func() { _ = d.Shutdown(context.Background()) })
				}
			}
			if r.setIdle(id, idle) || told > 0 {
				ss.cfg.Trail.Add(access.Entry{Source: access.Source{Door: "server"}, Action: "retire", What: "model",
					Name:  id.String(),
					After: fmt.Sprintf(`{"told_goodbye":%d,"stay_idle":%d}`, told, len(idle))})
			}
		}
		timer.Stop()
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// overdueVersions returns the versions to retire now, and when to look again; 0: when something
// changes. The wait of a due version starts over, for containers that remain.
func (ss *Sessions) overdueVersions(now time.Time) (due []scheduler.ModelID, next time.Duration) {
	again := func(d time.Duration) {
		if next == 0 || d < next {
			next = d
		}
	}
	replaced := make(map[scheduler.ModelID]time.Time)
	// ready is the model whose default is ready and has been passed: its versions after that are
	// older.
	ready := ""
	for _, m := range ss.cfg.Gate.Models() { // the newest version first
		if m.Default && m.Ready {
			ready = m.Name
			continue
		}
		after := ss.cfg.RetireAfter(m.Name)
		if m.Name != ready || !m.Ready || after == 0 || ss.cfg.Linked(m.Name, m.Version) {
			continue
		}
		id := scheduler.ModelID{Name: m.Name, Version: m.Version}
		if ss.processes.wanted(id) {
			continue
		}
		since, known := ss.retiring.since[id]
		if !known {
			since = now
		}
		if wait := after - now.Sub(since); wait > 0 {
			again(wait)
		} else if model, ok := ss.cfg.Scheduler.Model(id); ok && model.Stats().QueueRows > 0 {
			again(retireAgain)
		} else {
			due = append(due, id)
			since = now
			again(max(after, time.Second))
		}
		replaced[id] = since
	}
	ss.retiring.prune(replaced)
	return due, next
}
