package operate

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/access"
)

// A watch is a stream of events (text/event-stream of the HTML standard) that shows what happens
// for as long as the client reads it. Each event is a part of the picture: its name, and JSON. A
// part is sent when a watch begins and whenever the part has changed. A watch that asks for changes
// is sent these alone, after the first time, as events with the name of the part and "-change".
//
// All watches share one picture. The first watch to wake in a tick makes it, so that its cost does
// not depend on the number of watches; without watches it is not made.

const (
	// MaxWatches is how many watches may be open: they must not take all connections of the door.
	MaxWatches = 8

	tick         = time.Second
	watchTimeout = 10 * time.Second // for a client to read the events that are due
	eventStream  = "text/event-stream"
	mostShown    = 100 // of the audit's entries, and of the log's lines
)

// A part is a part of the picture. Its fields are guarded by the feed's mutex.
type part struct {
	event string
	every int64 // interval, in ticks
	look  func() (any, error)

	watches int    // number of watches that show it
	tick    int64  // of the last look
	text    []byte // what look returned, as JSON
	before  []byte // the text before it
	edition int    // of the text

	change  []byte // from before to text; made when a watch asks for it
	changed int    // the edition that change leads to
}

// A feed has the picture that all watches show.
type feed struct {
	sources Sources

	mu       sync.Mutex
	watches  int
	common   []*part
	insights map[string]*part // by model, while a watch shows it
}

func newFeed(s Sources) *feed {
	return &feed{sources: s, insights: map[string]*part{}, common: []*part{
		{event: "status", every: 1, look: func() (any, error) { return s.Report.Status(), nil }},
		{event: "batches", every: 1, look: func() (any, error) {
			return admin.BatchList{Models: s.Report.Batches()}, nil
		}},
		{event: "containers", every: 2, look: func() (any, error) { return s.Containers.List(), nil }},
		{event: "models", every: 2, look: func() (any, error) { return s.models(nil) }},
		{event: "pipelines", every: 2, look: func() (any, error) { return s.pipelines().list(nil) }},
		{event: "applications", every: 5, look: s.learnedApps},
		{event: "audit", every: 2, look: func() (any, error) {
			return admin.Audit{Entries: s.Trail.List(mostShown)}, nil
		}},
		{event: "logs", every: 2, look: func() (any, error) {
			return admin.Logs{Entries: s.Journal.List(mostShown, slog.LevelInfo, 0)}, nil
		}},
	}}
}

// enter begins a watch, which shows one model in detail if it names one.
func (f *feed) enter(model string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watches == MaxWatches {
		return refuse(http.StatusTooManyRequests,
			"%d clients watch this server, which is the limit: close a page that is not in use", MaxWatches)
	}
	f.watches++
	if model == "" {
		return nil
	}
	p := f.insights[model]
	if p == nil {
		p = &part{event: "insight", every: 2, look: func() (any, error) {
			return admin.InsightList{Name: model, Versions: f.sources.Report.Insights(model)}, nil
		}}
		f.insights[model] = p
	}
	p.watches++
	return nil
}

func (f *feed) leave(model string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watches--
	if p := f.insights[model]; p != nil {
		if p.watches--; p.watches == 0 {
			delete(f.insights, model)
		}
	}
}

// changes appends the events of all parts that have changed since the editions in seen; brief says
// that only what has changed in them is wanted.
func (f *feed) changes(to []byte, model string, brief bool, seen map[*part]int) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now().UnixNano() / int64(tick)
	for _, p := range append(f.common[:len(f.common):len(f.common)], f.insights[model]) {
		if p == nil {
			continue
		}
		f.refresh(p, now)
		last := seen[p]
		seen[p] = p.edition
		switch {
		case last == p.edition:
		case brief && last > 0 && last == p.edition-1:
			to = appendEvent(to, p.event+"-change", p.brief())
		default:
			to = appendEvent(to, p.event, p.text)
		}
	}
	return to
}

// brief returns the change from the edition before.
func (p *part) brief() []byte {
	if p.changed != p.edition {
		p.change, p.changed = appendChange(p.change[:0], p.before, p.text), p.edition
	}
	return p.change
}

// appendEvent appends an event; text is JSON, which has no line break.
func appendEvent(to []byte, name string, text []byte) []byte {
	to = append(append(append(to, "event: "...), name...), "\ndata: "...)
	return append(append(to, text...), "\n\n"...)
}

// refresh updates a part if that is due.
func (f *feed) refresh(p *part, now int64) {
	if p.edition > 0 && now/p.every == p.tick/p.every {
		return
	}
	p.tick = now
	v, err := p.look()
	if err = refusal(err); err != nil { // such as an unreachable store
		v = map[string]string{"error": err.Error()}
	}
	text, err := json.Marshal(v)
	if err != nil {
		f.sources.Log.Error("admin: event is not JSON", "event", p.event, "error", err)
		return
	}
	if !bytes.Equal(text, p.text) {
		p.before, p.text = p.text, text
		p.edition++
	}
}

// watch answers with the stream of events.
func (f *feed) watch(r *http.Request) (any, error) {
	if r.Method == http.MethodHead { // it has no body, and would not end
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", eventStream)
		}), nil
	}
	from, wanted, err := since(r)
	if err != nil {
		return nil, err
	}
	brief, err := boolParameter(r, "changes")
	if err != nil {
		return nil, err
	}
	model := r.URL.Query().Get("model")
	if err := f.enter(model); err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer f.leave(model)
		var past []byte
		if wanted && f.sources.Past != nil {
			past = appendEvent(nil, "past", []byte(access.AuditText(f.sources.Past(from))))
		}
		f.stream(w, r, model, brief, past)
	}), nil
}

// stream sends the given events, and then those of all changes until the client leaves.
func (f *feed) stream(w http.ResponseWriter, r *http.Request, model string, brief bool, events []byte) {
	var stopped <-chan struct{}
	if k, ok := r.Context().Value(connKey{}).(*boundedConn); ok {
		stopped = k.listener.stopped
	}
	control := http.NewResponseController(w)
	h := w.Header()
	h.Set("Content-Type", eventStream)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	seen := map[*part]int{}
	for timer := time.NewTimer(0); ; timer.Reset(time.Until(time.Now().Truncate(tick).Add(tick))) {
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return
		case <-stopped:
			return
		}
		err := needRight.permit(f.sources.who(r), http.MethodGet)
		if err != nil { // a reload has removed the right
			events = appendEvent(events, "end", []byte(access.AuditText(map[string]string{"error": err.Error()})))
		} else {
			events = f.changes(events, model, brief, seen)
		}
		_ = control.SetWriteDeadline(time.Now().Add(watchTimeout))
		if _, lost := w.Write(events); lost != nil || control.Flush() != nil || err != nil {
			return
		}
		events = events[:0]
	}
}

func (s Sources) learnedApps() (any, error) {
	list, err := s.Applications.List()
	out := admin.WatchedAppList{Apps: []admin.WatchedApp{}}
	for _, a := range list {
		one := admin.WatchedApp{App: a}
		one.Learned, _ = s.Learning.First(a.Name) // an application may have been deleted meanwhile
		out.Apps = append(out.Apps, one)
	}
	return out, err
}
