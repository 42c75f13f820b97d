package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/wake"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/backoff"
)

// The state store holds the history of each model and application under one key: a list of events,
// oldest first, that tells what served when, who registered it and who changed it. The time that a
// version serves is one event with a beginning and an end, whatever its replicas do meanwhile; if
// the version is back within historyGap, the event continues. So a container that keeps
// reconnecting writes one event. No name has more than maxEvents, and no store more than
// maxHistories.
const (
	historyPrefix = "history/"
	maxEvents     = 100
	maxHistories  = 256
	historyGap    = time.Minute

	historyDelay = 100 * time.Millisecond // from change to write: containers register in groups
	historyPause = 300 * time.Millisecond // at least, from one write to the next
	historyEach  = 20 * time.Millisecond  // added to the pause for each name written
	historyRetry = 5 * time.Second        // while the store is unavailable
	historyWait  = time.Second            // for the store when the server stops or someone asks
)

// History records what served when, and who changed it. It holds the events that are not yet
// written.
type History struct {
	store    *Store
	settings *Settings
	gate     *gate.Gate
	started  time.Time
	stopping <-chan struct{}
	log      *slog.Logger

	poke    chan struct{}                   // holds one: something changed
	earlier atomic.Pointer[map[string]bool] // see readEarlier; nil: not read yet

	mu      sync.Mutex
	pending map[string]*pending // by name

	// writing holds one while the history of a name is written. mu may be taken below it.
	writing chan struct{}
	server  string                    // how events name this server; "" before Run
	written map[string]servedVersions // by name
	asked   map[string]bool           // names written on request since write began
	begun   bool                      // events left open by an earlier run are closed
}

// A pending holds what has happened to a name since its history was last written.
type pending struct {
	arrivals map[string]arrival // by version
	changes  []admin.Event
}

// An arrival counts the registrations of a version.
type arrival struct {
	by    string
	times int
}

// A servedVersions is what a name serves.
type servedVersions struct {
	versions map[string]bool // versions that have a live replica
	standard string          // the default version; "" if there is none
}

func (s servedVersions) equal(other servedVersions) bool {
	return s.standard == other.standard && maps.Equal(s.versions, other.versions)
}

// NewHistory returns the history of what the gate serves. Run writes it until stopping is closed.
func NewHistory(store *Store, settings *Settings, g *gate.Gate, started time.Time, stopping <-chan struct{},
	log *slog.Logger) *History {
	return &History{store: store, settings: settings, gate: g, started: started, stopping: stopping, log: log,
		poke: make(chan struct{}, 1), pending: map[string]*pending{}, writing: make(chan struct{}, 1),
		written: map[string]servedVersions{}, asked: map[string]bool{}}
}

// Look makes Run look for changes to write. Any goroutine may call it; it does not block.
func (h *History) Look() { wake.Up(h.poke) }

// Arrived records a registration.
func (h *History) Arrived(conn net.Conn, i containers.SessionInfo) {
	by := conn.RemoteAddr().String()
	if i.Label != "" {
		by = i.Label + " at " + by
	}
	h.arrivedAs(i.Model, by+", RPC "+i.RPC)
}

func (h *History) arrivedAs(id scheduler.ModelID, by string) {
	h.change(id.Name, func(p *pending) {
		if a, known := p.arrivals[id.Version]; known || len(p.arrivals) < maxEvents {
			p.arrivals[id.Version] = arrival{by, a.times + 1}
		}
	})
}

// addEvent records an event in the history of a name.
func (h *History) addEvent(name string, e admin.Event) {
	h.change(name, func(p *pending) { p.changes = newest(append(p.changes, e)) })
}

// change applies a change to the pending record of a name and makes Run write it. Names above
// maxHistories are ignored.
func (h *History) change(name string, change func(*pending)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.pending[name]
	if p == nil && len(h.pending) < maxHistories {
		p = &pending{arrivals: map[string]arrival{}}
		h.pending[name] = p
	}
	if p != nil {
		change(p)
	}
	h.Look()
}

// newest returns the latest events, as many as a history may have.
func newest(events []admin.Event) []admin.Event { return events[max(0, len(events)-maxEvents):] }

// Changed records a change that an operator or a client has made.
func (h *History) Changed(by, what, name, detail string) {
	switch what {
	case "container":
		for _, c := range h.settings.File().Supervised {
			if c.Name == name {
				detail, name = "container "+name+": "+detail, cmp.Or(c.Model, c.Name)
			}
		}
	case "model", "application", "pipeline", "policy":
	default: // no change of what is served
		return
	}
	const most = 1 << 10
	h.addEvent(name,
		admin.Event{At: time.Now().UTC(), What: "changed", By: by, Detail: fault.Cut(what+": "+detail, most)})
}

// Run writes the history until the server stops, and finally that nothing is served any more.
// server names this server among those that share its store; it must be the same after a restart.
func (h *History) Run(server string) {
	h.writing <- struct{}{}
	h.server = server
	<-h.writing
	h.readEarlier()
	h.Look() // an earlier run may have left events open
	failing := false
	for h.recording() {
		ctx, cancel := context.WithTimeout(context.Background(), historyRetry)
		n, err := h.write(ctx, h.served, time.Now())
		cancel()
		pause := historyPause + time.Duration(n)*historyEach
		if err != nil {
			if !failing { // logged once: a store may be unavailable for hours
				h.log.Warn("the history of models cannot be written; it is tried again", "error", err)
			}
			pause = historyRetry
			h.Look()
		}
		failing = err != nil
		if !backoff.Wait(pause, h.stopping) {
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), historyWait)
	defer cancel()
	nothing := func() map[string]servedVersions { return nil }
	_, _ = h.write(ctx, nothing, time.Now()) // Run has logged the error
}

// recording waits until there is something to write; false when the server stops.
func (h *History) recording() bool {
	select {
	case <-h.poke:
		return backoff.Wait(historyDelay, h.stopping)
	case <-h.stopping:
		return false
	}
}

// served returns what is served now, by name.
func (h *History) served() map[string]servedVersions {
	now := map[string]servedVersions{}
	for _, m := range h.gate.Models() {
		one, ok := now[m.Name]
		if !ok {
			one.versions = map[string]bool{}
		}
		if m.Ready {
			one.versions[m.Version] = true
			if m.Default {
				one.standard = m.Version
			}
		}
		now[m.Name] = one
	}
	return now
}

// write writes the pending events, and returns the number of names written. After an error the rest
// is kept for the next time. served returns what is served now.
func (h *History) write(ctx context.Context, served func() map[string]servedVersions,
	at time.Time) (n int, err error) {
	store := h.store.State()
	names, now, err := h.unwritten(store, served)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		h.writing <- struct{}{}
		if !h.asked[name] { // or what is written is newer than now
			err = h.writeOne(ctx, store, name, now[name], at)
		}
		<-h.writing
		if err != nil {
			return n, err
		}
		n++
	}
	h.writing <- struct{}{}
	h.begun = true
	<-h.writing
	return n, forgetHistories(ctx, store, now)
}

// unwritten returns the names whose history differs from what the store has, in order, and what is
// served now. At first that is every name of the store: an earlier run may have left its events
// open.
func (h *History) unwritten(store state.Store, served func() map[string]servedVersions) ([]string,
	map[string]servedVersions, error) {
	h.writing <- struct{}{}
	defer func() { <-h.writing }()
	clear(h.asked)
	now, names := served(), map[string]bool{}
	h.mu.Lock()
	for _, some := range []iter.Seq[string]{maps.Keys(now), maps.Keys(h.written), maps.Keys(h.pending)} {
		for name := range some {
			if !h.begun || h.pending[name] != nil || !now[name].equal(h.written[name]) {
				names[name] = true
			}
		}
	}
	h.mu.Unlock()
	if !h.begun {
		entries, err := store.List(historyPrefix)
		if err != nil {
			return nil, nil, err
		}
		for _, e := range entries {
			if segments, err := state.Segments(e.Key); err == nil && len(segments) == 2 {
				names[segments[1]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names)), now, nil
}

// writeNow writes what an operator asks for, unless it is written: who has made a change finds it.
// A store that cannot be written in time holds nobody up: what it has is what can be shown.
func (h *History) writeNow(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), historyWait)
	defer cancel()
	select {
	case h.writing <- struct{}{}:
		defer func() { <-h.writing }()
	case <-ctx.Done():
		return
	}
	select {
	case <-h.stopping: // Run writes the end
	default:
		h.writeAsked(ctx, name, h.served()[name])
	}
}

// writeAsked writes the history of one name, unless it is written. The caller holds h.writing.
func (h *History) writeAsked(ctx context.Context, name string, now servedVersions) {
	h.mu.Lock()
	written := h.pending[name] == nil && now.equal(h.written[name])
	h.mu.Unlock()
	if !h.begun || written { // events that an earlier run left open come first
		return
	}
	if err := h.writeOne(ctx, h.store.State(), name, now, time.Now()); err == nil {
		h.asked[name] = true // else Run tries it again, and logs the error
	}
}

// writeOne writes the history of one name. The caller holds h.writing.
func (h *History) writeOne(ctx context.Context, store state.Store, name string, now servedVersions,
	at time.Time) error {
	p := h.take(name)
	_, err := store.Update(ctx, state.Key("history", name), "", func(old []byte) ([]byte, error) {
		var events []admin.Event
		_ = json.Unmarshal(old, &events) // an unreadable history starts over
		if events = h.follow(events, p, now, at.UTC()); len(events) == 0 {
			return old, nil
		}
		return json.Marshal(events)
	})
	if err != nil {
		h.putBack(name, p)
		return err
	}
	if h.written[name] = now; len(now.versions) == 0 {
		delete(h.written, name)
	}
	return nil
}

// take returns what is pending for a name, which is pending no longer.
func (h *History) take(name string) pending {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.pending[name]
	delete(h.pending, name)
	if p == nil {
		return pending{}
	}
	return *p
}

// putBack keeps unwritten events for the next time.
func (h *History) putBack(name string, p pending) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.arrivals == nil {
		return // nothing was pending
	}
	if later := h.pending[name]; later != nil {
		for version, a := range later.arrivals {
			p.arrivals[version] = arrival{a.by, a.times + p.arrivals[version].times}
		}
		p.changes = newest(append(p.changes, later.changes...))
	}
	h.pending[name] = &p
}

// closeEarlier ends the events that an earlier run of this server left open because it was killed.
// Their end is the start of this run, the latest possible time.
func (h *History) closeEarlier(events []admin.Event, began time.Time) {
	for i := range events {
		if e := &events[i]; e.What == "served" && e.Server == h.server && e.Until == nil {
			e.Until, e.Detail = &began, "the server was killed; the end is the latest possible time"
		}
	}
}

// follow brings the events of the store up to what is pending and to what is served now.
func (h *History) follow(events []admin.Event, p pending, now servedVersions, at time.Time) []admin.Event {
	if !h.begun {
		h.closeEarlier(events, h.started.UTC())
	}
	for _, e := range p.changes {
		e.Server = h.server
		events = append(events, e)
	}
	last := map[string]int{} // index of the last event of a version
	standard := ""
	for i := range events {
		e := &events[i]
		if e.Server != h.server {
			continue
		}
		switch e.What {
		case "served":
			last[e.Version] = i
			if e.Until == nil && !now.versions[e.Version] {
				e.Until = &at
			}
		case "default":
			standard = e.Version
		}
	}
	for version, a := range p.arrivals { // including versions that no longer serve
		if _, known := now.versions[version]; !known {
			events, last[version] = h.ensureOpen(events, last, version, a, at)
			events[last[version]].Until = &at
		}
	}
	for _, version := range slices.Sorted(maps.Keys(now.versions)) {
		events, last[version] = h.ensureOpen(events, last, version, p.arrivals[version], at)
	}
	if now.standard != "" && now.standard != standard {
		events = append(events, admin.Event{At: at, What: "default", Version: now.standard, Server: h.server})
	}
	return newest(events)
}

// ensureOpen makes sure that a version has an open event: its last one, or a new one if that has
// ended for good. It returns the events and the index of the open one.
func (h *History) ensureOpen(events []admin.Event, last map[string]int, version string, a arrival,
	at time.Time) ([]admin.Event, int) {
	i, known := last[version]
	if known && events[i].Until != nil && (events[i].Detail != "" || at.Sub(*events[i].Until) > historyGap) {
		known = false
	}
	if !known {
		events = append(events, admin.Event{At: at, What: "served", Version: version, Server: h.server})
		i = len(events) - 1
	}
	e := &events[i]
	e.Until = nil
	e.By = cmp.Or(a.by, e.By)
	e.Registrations += a.times
	return events, i
}

// forgetHistories deletes histories above maxHistories: first those of names that are not served,
// longest without an event first.
func forgetHistories(ctx context.Context, store state.Store, now map[string]servedVersions) error {
	entries, err := store.List(historyPrefix)
	if err != nil || len(entries) <= maxHistories {
		return err
	}
	type history struct {
		key    string
		served int // 1 if a version is served
		last   time.Time
	}
	var list []history
	for _, e := range entries {
		var events []admin.Event
		_ = json.Unmarshal(e.Value, &events)
		one := history{key: e.Key}
		if segments, err := state.Segments(e.Key); err == nil && len(segments) == 2 {
			one.served = min(len(now[segments[1]].versions), 1)
		}
		for _, e := range events {
			one.last = e.At
			if e.Until != nil && e.Until.After(e.At) {
				one.last = *e.Until
			}
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b history) int {
		return cmp.Or(cmp.Compare(a.served, b.served), a.last.Compare(b.last))
	})
	for _, one := range list[:len(list)-maxHistories] {
		if _, err := store.Update(ctx, one.key, "", func([]byte) ([]byte, error) { return nil, nil }); err != nil {
			return err
		}
	}
	return nil
}

// Of returns the history of a name as the admin door shows it.
func (h *History) Of(name string) (admin.History, error) {
	out := admin.History{Name: name, Events: []admin.Event{}}
	h.writeNow(name)
	e, err := h.store.State().Get(state.Key("history", name))
	if err != nil {
		return out, refusal(err)
	}
	if e.Value == nil {
		return out, &Error{Status: http.StatusNotFound, Text: fmt.Sprintf("there is no history of a model or application %q", name)}
	}
	if err := json.Unmarshal(e.Value, &out.Events); err != nil {
		return out, fmt.Errorf("manage: the history of %q in the state store: %w", name, err)
	}
	return out, nil
}
