// Package admintest is a server in memory behind an admin door, for tests of its clients.
package admintest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/operate"
)

// A Server keeps changes, and knows one policy of each kind that tests want. It learns the loss of
// feedback, and checks of applications little more than that they have models.
type Server struct {
	mu      sync.Mutex
	models  []admin.Model
	status  admin.Status
	apps    []admin.App
	lines   []admin.Pipeline
	learned map[string][]admin.LearnedUser // by application
	changed map[string]map[string]string   // settings by model
	stopped map[string]bool                // by container
	journal *operate.Journal
}

// New makes a server that serves these models, and has two lines in its log. The sessions of its
// status belong to its containers, each of which has one process.
func New(models []admin.Model, status admin.Status) *Server {
	s := &Server{models: models, status: status, learned: map[string][]admin.LearnedUser{},
		changed: map[string]map[string]string{}, stopped: map[string]bool{}, journal: operate.NewJournal()}
	log := slog.New(s.journal.Handler(slog.DiscardHandler))
	log.Info("serving", "tcp", ":6174")
	log.Warn("a process ended", "container", "iris", "status", "exit status 1")
	return s
}

// Sources are the sources of its door.
func (s *Server) Sources() operate.Sources {
	return operate.Sources{
		Version: s.status.Version,
		Access: func() operate.Access { // example.com is the host of httptest's requests
			return operate.Access{Hosts: []string{"example.com"}, Profiling: true, ImportBytes: 1 << 20}
		},
		Report:       report{s},
		Settings:     settings{s},
		Applications: s.applications(),
		Pipelines:    s.pipelines(),
		Learning:     learning{s},
		Containers:   containers{s},
		Repository:   repository{s},
		Documents:    documents{s},
		History:      history{s},
		ClearCache:   s.clearCache,
		Try:          s.try,
		Newest:       s.newest,
		Past:         s.past,
		Journal:      s.journal,
		Metrics:      http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "up 1\n") }),
	}
}

// These are the server as the parts of the door see it.
type (
	report     struct{ *Server }
	settings   struct{ *Server }
	learning   struct{ *Server }
	containers struct{ *Server }
	repository struct{ *Server }
	documents  struct{ *Server }
	history    struct{ *Server }
)

func (s report) Ready() admin.Readiness { return s.status.Readiness }
func (s report) Status() admin.Status   { return s.status }
func (s report) Models() []admin.Model  { return s.models }

func (s report) Names() (names []string) {
	for _, m := range s.models {
		names = append(names, m.Name)
	}
	for _, a := range s.apps {
		names = append(names, a.Name)
	}
	for _, p := range s.lines {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// versions returns the versions of a model.
func (s *Server) versions(model string) []admin.Model {
	return slices.DeleteFunc(slices.Clone(s.models), func(m admin.Model) bool { return m.Name != model })
}

func (s report) Explain(model string) (list []admin.Explanation) {
	for _, m := range s.versions(model) {
		list = append(list, admin.Explanation{Name: m.Name, Version: m.Version, Sentences: []string{"It does nothing."}})
	}
	return list
}

func (s report) Streams(model string, most int) (list []admin.VersionStreams) {
	for _, m := range s.versions(model) {
		streams := []admin.Stream{
			{Name: "cam-3", Keep: "latest", Waiting: 1, Span: 60, Frames: 1800, Answered: 150, Superseded: 1649,
				Age: 0.43, Late: 0.02, Silent: 0.03},
			{Name: "10.0.0.7:5001", Connection: true, Keep: 3, Span: 60, Frames: 600, Answered: 600, Age: 0.11,
				Silent: 12},
		}
		list = append(list,
			admin.VersionStreams{Name: m.Name, Version: m.Version, Known: len(streams),
				Streams: streams[:min(most, len(streams))]})
	}
	return list
}

func (s report) Batches() (list []admin.Batches) {
	for _, m := range s.models {
		list = append(list, admin.Batches{
			Name: m.Name, Version: m.Version, Span: 60, Batches: 10, Rows: 40, Failed: 1,
			Closed: map[string]uint64{"idle": 9, "full": 1}, Outcomes: map[string]uint64{"ok": 39, "queue_rows": 1},
			Waits: 4, WaitedRows: 12, WaitsInVain: 1, LastWait: "waited 1ms for 4 rows",
		})
	}
	return list
}

func (s report) Insights(name string) (list []admin.Insight) {
	for _, m := range s.versions(name) {
		list = append(list, admin.Insight{
			Version: m.Version, Sentences: []string{"It does nothing."}, Known: 1,
			Streams: s.Streams(name, 1)[0].Streams, Sent: []admin.Batch{{At: 1.5, Rows: 4, Closed: "idle"}},
			Replicas: []admin.Replica{{Name: "a", State: "live", Measured: []admin.Measured{{Rows: 4, Took: 0.01}},
				Fitted: []admin.Fitted{{Rows: 4, Typical: 0.01, Planned: 0.02}}}},
		})
	}
	return list
}

// try answers with as many elements as the input has bytes.
func (s *Server) try(_ context.Context, t operate.Trial) (admin.Tried, error) {
	for _, m := range s.models {
		if m.Name == t.Name && (t.Version == "" || m.Version == t.Version) {
			return admin.Tried{
				Model: m.Name, Version: m.Version, Total: 0.01, Rows: 1,
				Outputs: []admin.TriedOutput{{Name: "y", Datatype: "INT64", Shape: []int{1}, Data: []any{len(t.Input)},
					Elements: 1}},
			}, nil
		}
	}
	return admin.Tried{}, refuse(http.StatusNotFound, "no model %q", t.Name)
}

// newest has one stream of each model.
func (s *Server) newest(_ *access.Identity, model string, most int) (admin.NewestList, error) {
	for _, m := range s.versions(model) {
		return admin.NewestList{Known: 1, Answers: []admin.NewestAnswer{{
			Name: "cam-3", Client: "10.0.0.4", Seq: 7, Age: 0.043, Skipped: 1, Model: m.Name, Version: m.Version,
			Outputs: []admin.TriedOutput{{Name: "y", Datatype: "INT64", Shape: []int{1}, Data: []any{most},
				Elements: 1}},
		}}}, nil
	}
	return admin.NewestList{}, refuse(http.StatusNotFound, "no model %q", model)
}

func (s settings) Config() any {
	return map[string]any{"tcp": map[string]any{"listen": ":6174", "loops": 0}, "state": map[string]any{"at": ""}}
}

func (s settings) Reload() (admin.Reloaded, error) {
	return admin.Reloaded{
		Changed: []admin.Setting{{Key: "log.level", Before: "info", After: "debug"},
			{Key: "container.new", After: map[string]any{"replicas": 2}}},
		Waiting: []admin.Setting{{Key: "tcp.listen", Before: ":6174", After: ":6175"}},
	}, nil
}

func (s learning) Policies() []admin.Policy { return policies() }

func policies() []admin.Policy {
	return []admin.Policy{
		{Name: "single",
			Parameters: []admin.Parameter{{Name: "model", Wants: `"name/version" or "name" of a model`, Default: ""}}},
		{Name: "exp4",
			Parameters: []admin.Parameter{{Name: "eta", Wants: "a number from 0 to 10", Default: 0.1},
				{Name: "weights", Wants: "numbers by model"}}},
	}
}

func refuse(status int, format string, args ...any) error {
	return &operate.Error{Status: status, Text: fmt.Sprintf(format, args...)}
}

// Set takes whole numbers above 0 and texts, and refuses a default version that is not ready.
func (s settings) Set(_ context.Context, model string,
	settings map[string]*string) (before, after map[string]any, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := settings["default_version"]; v != nil && *v != "" &&
		!slices.ContainsFunc(s.models, func(m admin.Model) bool {
			return m.Name == model && m.Version == *v && m.Ready
		}) {
		return nil, nil, refuse(http.StatusBadRequest, `default_version: no container serves version %q of model %q; ready: "1"`, *v, model)
	}
	before, after = map[string]any{}, map[string]any{}
	if s.changed[model] == nil {
		s.changed[model] = map[string]string{}
	}
	for key, value := range settings {
		before[key] = s.changed[model][key]
		if value == nil {
			delete(s.changed[model], key)
			continue
		}
		s.changed[model][key], after[key] = *value, *value
	}
	return before, after, nil
}

// clearCache reports what the cache contains, and keeps it.
func (s *Server) clearCache(model string) (entries, bytes int64, err error) {
	for _, m := range s.models {
		if m.Name == model && m.Cache != nil {
			entries += m.Cache.Entries
			bytes += m.Cache.Bytes
		}
	}
	return entries, bytes, nil
}

func check(a admin.App) error {
	var faults []string
	if a.Name == "" {
		faults = append(faults, "name: missing")
	}
	if len(a.Models) == 0 {
		faults = append(faults, "models: none")
	}
	if !slices.ContainsFunc(policies(), func(p admin.Policy) bool { return p.Name == cmp.Or(a.Policy, "single") }) {
		faults = append(faults, fmt.Sprintf("policy %s: there is no such policy; there are single, exp4", a.Policy))
	}
	if _, err := time.ParseDuration(a.SLO); err != nil && a.SLO != "" {
		faults = append(faults, fmt.Sprintf("slo: %q is not a duration", a.SLO))
	}
	if faults != nil {
		return refuse(http.StatusBadRequest, "application %q: %s", a.Name, strings.Join(faults, "; "))
	}
	return nil
}

// find returns the index of an application. s.mu is held.
func (s *Server) find(name string) (int, error) { return s.applications().at(name) }

func (s *Server) applications() definitions[admin.App] {
	return definitions[admin.App]{s, "application", &s.apps, func(a *admin.App) string {
		a.Policy = cmp.Or(a.Policy, "single")
		return a.Name
	}, check, func(name string) { delete(s.learned, name) }}
}

func (s learning) Learned(name, user string, every bool, most int) (admin.Learned, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.find(name)
	if err != nil {
		return admin.Learned{}, err
	}
	l := admin.Learned{Application: name, Policy: s.apps[i].Policy, Params: map[string]any{"eta": 0.1},
		Users: []admin.LearnedUser{}}
	for _, u := range s.learned[name] {
		if !every && u.User != user {
			continue
		}
		if l.More = len(l.Users) == most; l.More {
			break
		}
		l.Users = append(l.Users, u)
	}
	return l, nil
}

func (s learning) First(name string) (*admin.LearnedUser, error) {
	l, err := s.Learned(name, "", true, 1)
	if err != nil || len(l.Users) == 0 {
		return nil, err
	}
	return &l.Users[0], nil
}

func (s learning) Forget(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.find(name)
	delete(s.learned, name)
	return err
}

// Feedback learns the loss for every model.
func (s learning) Feedback(_ context.Context, name string, body json.RawMessage) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.find(name)
	if err != nil {
		return nil, err
	}
	var f struct {
		User string
		Loss *float64
	}
	if err := json.Unmarshal(body, &f); err != nil || f.Loss == nil {
		return nil, refuse(http.StatusBadRequest, `expected a "loss"`)
	}
	u := admin.LearnedUser{User: f.User, Rounds: 1}
	for _, m := range s.apps[i].Models {
		u.Models = append(u.Models,
			admin.LearnedModel{Model: m + "/1", Share: 1 / float64(len(s.apps[i].Models)), Loss: *f.Loss, Count: 1})
	}
	s.learned[name] = append(s.learned[name], u)
	return map[string]any{"application": name, "learned": true, "rounds": 1}, nil
}

func (s containers) List() admin.Containers {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := admin.Containers{Containers: []admin.Container{}, Sessions: s.status.Sessions}
	for _, p := range s.status.Processes {
		c := admin.Container{Name: p.Name, Model: p.Name, State: "READY", Processes: []admin.Process{p}}
		if s.stopped[p.Name] {
			c.State, c.Reason, c.Processes = "UNAVAILABLE", "unloaded", []admin.Process{}
		} else if p.State != "running" {
			c.State, c.Reason = "UNAVAILABLE", p.State
		}
		list.Containers = append(list.Containers, c)
	}
	return list
}

func (s containers) Start(_ context.Context, name string) error   { return s.run(name, true) }
func (s containers) Restart(_ context.Context, name string) error { return s.run(name, true) }
func (s containers) Stop(_ context.Context, name string) error    { return s.run(name, false) }

func (s repository) Load(_ context.Context, _ *access.Identity, _ access.Source, model string) error {
	return s.run(model, true)
}

func (s repository) Unload(_ *access.Identity, _ access.Source, model string) error {
	return s.run(model, false)
}

func (s repository) run(model string, runs bool) error {
	if !slices.ContainsFunc(s.models, func(m admin.Model) bool { return m.Name == model }) {
		return &operate.Error{Status: http.StatusNotFound, Text: fmt.Sprintf("no model %q", model)}
	}
	return containers(s).run(model, runs)
}

func (s containers) run(name string, runs bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped[name] = !runs
	return nil
}

func (s documents) Export() (admin.Document, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := admin.Document{Format: admin.DocumentFormat, Applications: slices.Clone(s.apps),
		Policies: []admin.PolicyState{}, Settings: s.changed}
	if d.Applications == nil {
		d.Applications = []admin.App{}
	}
	for name, users := range s.learned {
		for _, u := range users {
			state, err := json.Marshal(u)
			if err != nil {
				return d, err
			}
			d.Policies = append(d.Policies, admin.PolicyState{Application: name, User: u.User, State: state})
		}
	}
	return d, nil
}

func (s documents) Check(d admin.Document) (faults []string, err error) {
	for _, a := range d.Applications {
		if err := check(a); err != nil {
			faults = append(faults, err.Error())
		}
	}
	return faults, nil
}

// Import takes the applications of a document.
func (s documents) Import(_ context.Context, d admin.Document, dryRun bool) (changes []admin.Change, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range d.Applications {
		c := admin.Change{What: "application", Name: a.Name}
		if c.After, err = json.Marshal(a); err != nil {
			return changes, err
		}
		i, _ := s.find(a.Name)
		if i >= 0 {
			if c.Before, err = json.Marshal(s.apps[i]); err != nil {
				return changes, err
			}
		}
		changes = append(changes, c)
		switch {
		case dryRun:
		case i >= 0:
			s.apps[i] = a
		default:
			s.apps = append(s.apps, a)
		}
	}
	return changes, nil
}

// Changed ignores the change.
func (s history) Changed(_, _, _, _ string) {}

// past returns two samples, the second of which has a request.
func (s *Server) past(float64) admin.Past {
	none := float32(math.NaN())
	p := admin.Past{Times: []float64{1764000000, 1764000005}, Models: []admin.PastModel{},
		Applications: []admin.PastApplication{{Name: "app", Shares: map[string]admin.Series{"digits/1": {none, 1}}}}}
	for _, m := range s.models {
		took := admin.Series{none, 0.001}
		p.Models = append(p.Models,
			admin.PastModel{Name: m.Name, Version: m.Version, Requests: admin.Series{0, 0.2},
				Failed: admin.Series{0, 0}, InTime: admin.Series{none, 1}, P50: took, P99: took,
				Waiting: admin.Series{0, 0}})
	}
	return p
}

// Of returns the history of any model: one version served for a day, and then an operator changed
// what the name means.
func (s history) Of(name string) (admin.History, error) {
	h := admin.History{Name: name, Events: []admin.Event{}}
	began := time.Date(2026, 11, 1, 9, 0, 0, 0, time.UTC)
	ended := began.Add(24 * time.Hour)
	for _, m := range s.versions(name) {
		h.Events = []admin.Event{
			{At: began, Until: &ended, What: "served", Version: "0", By: "gpu-3 at 10.0.0.7:40312, RPC v4",
				Registrations: 2, Server: "box"},
			{At: began, What: "default", Version: "0", Server: "box"},
			{At: ended, What: "served", Version: m.Version, By: "10.0.0.8:51000, RPC v3", Registrations: 1, Server: "box"},
			{At: ended, What: "changed", By: "127.0.0.1:50000",
				Detail: `model: {"default_version":"0"} → {"default_version":"1"}`, Server: "box"},
		}
		return h, nil
	}
	return h, &operate.Error{Status: http.StatusNotFound, Text: fmt.Sprintf("there is no history of a model or application %q", name)}
}

// What tests outside the server's tree need of the room that they cannot import.
type (
	Sources  = operate.Sources
	Operator = operate.Operator
	Error    = operate.Error
)

// Handler is the handler of the admin API.
func Handler(s Sources) http.Handler { return operate.Handler(s) }
