package gate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/cache"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/latest"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/nearest"
	"github.com/shivad/shivad/shiva/nested"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Target is one version of a model as requests see it. Immutable.
type Target struct {
	ID       scheduler.ModelID
	Model    *scheduler.Model
	Spec     scheduler.Spec
	Cast     setting.Cast  // the casts of inputs that are allowed
	Pixels   int64         // maximum for one picture in a file
	Deadline time.Duration // for requests without one
	Keep     setting.Keep  // for frames without one
	Live     int           // replicas when the table was made
	Serves   bool          // a replica was live, or one is started for the next request
	Metrics  *metrics.Model

	Composite Composite        // nil for a model; else this is how the composite looks to clients
	Nested    *nested.Pipeline // of a pipeline: how its answer becomes objects; nil otherwise
	Stages    []*metrics.Stage // of a pipeline: the counts of those of Nested
	Learns    bool             // some replica asks for feedback

	pictures bool           // some input takes pictures
	regions  bool           // ... and regions of one
	newest   *latest.Name   // the newest answers of its name's streams
	cache    *cache.Version // nil: no cache
	rowBytes int            // of a row of the answer; -1: not declared
	rowSeen  *atomic.Int64  // the measured size instead, shared by all clients; -1: none yet
	answer   []byte         // the end of every answer's metadata, up to the list of tensors
	full     []byte         // the same, with all declared tensors except texts, and a "}"
}

// Unbatched is the metadata's flag that a leading -1 does not count rows: false then, nil
// otherwise.
func (t *Target) Unbatched() *bool {
	if t.Spec.Batched() || t.Model == nil {
		return nil
	}
	return new(false)
}

// AppendAnswer appends the end of an answer's metadata: model, version and the names of the
// tensors, which are all declared outputs except texts. A model with an adapter has one output, a
// tensor or a text; for a text, tensors is empty.
func (t *Target) AppendAnswer(b []byte, tensors []tensor.Tensor) []byte {
	if t.Spec.Adapter == nil {
		return append(b, t.full...)
	}
	b = append(b, t.answer...)
	if len(tensors) > 0 {
		b = jsonscan.AppendString(b, t.Spec.Outputs[0].Name)
	}
	return append(b, ']', '}')
}

// AppendNamed is AppendAnswer for an answer that has only some of the declared tensors, which are
// identified by name.
func (t *Target) AppendNamed(b []byte, tensors []tensor.Tensor) []byte {
	b = append(b, t.answer...)
	for i := range tensors {
		if i > 0 {
			b = append(b, ',')
		}
		b = jsonscan.AppendString(b, tensors[i].Name)
	}
	return append(b, ']', '}')
}

// A Table holds all routes at one moment. It is immutable except for what list caches; readers take
// it from an atomic pointer.
type Table struct {
	who *access.Identity // the identity it was made for; nil: callers with all rights
	// "m", "m/1", "v2/models/m/infer", "v2/models/m/versions/1/infer"
	infer      map[string]*Target
	visible    map[string]*Target   // the same, plus those that the caller may see but not use
	versions   map[string][]*Target // by model name, the highest version first
	names      []string             // model names, sorted
	byModel    map[string]*Target   // default version by model name
	composites map[string]*Target   // by name
	redirects  map[string]*Redirect // by name, in the place of what else has that name
	unread     bool                 // the store has not been read: composites not known yet
	// Server.Awaited
	awaited func(string) (why string, guessed bool)

	listing sync.Once
	listed  []byte // set by listing
}

// refresh rebuilds the table. The scheduler calls it (as Hooks.ModelChanged) whenever replicas are
// added or removed. That is rare, so it reads everything from the scheduler again instead of
// patching.
func (g *Gate) refresh() {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := &Table{
		infer:    make(map[string]*Target),
		versions: make(map[string][]*Target),
		byModel:  make(map[string]*Target),
		awaited:  g.server.Awaited,
	}
	t.visible = t.infer
	if g.cfg.Redirects != nil {
		t.redirects = g.cfg.Redirects()
	}
	models := g.sched.Models()
	g.cfg.Metrics.Keep(g.present(t, models)) // before the new ones count
	rows := make(map[scheduler.ModelID]*atomic.Int64)
	for _, m := range models {
		target := g.target(m)
		t.versions[target.ID.Name] = append(t.versions[target.ID.Name], target)
		rows[target.ID] = target.rowSeen
	}
	seen := g.rows
	g.rows = rows
	for name, targets := range t.versions {
		slices.SortFunc(targets, func(a, b *Target) int { return compareVersions(b.ID.Version, a.ID.Version) })
		t.byModel[name] = choose(targets, g.cfg.Options(name).DefaultVersion)
		t.route(t.infer, name)
	}
	t.names = slices.Sorted(maps.Keys(t.versions))
	ended := g.attachCaches(t)
	g.link(t, seen)
	g.attachLatest(t)
	g.routes.Store(t)
	for _, end := range ended {
		end()
	}
	g.dropLatest(t)
}

// route adds the routes of a name.
func (t *Table) route(routes map[string]*Target, name string) {
	for _, target := range t.versions[name] {
		routes[name+"/"+target.ID.Version] = target
		routes["v2/models/"+name+"/versions/"+target.ID.Version+"/infer"] = target
	}
	chosen := t.byModel[name]
	if composite := t.composites[name]; composite != nil {
		chosen = composite
	}
	routes[name] = chosen
	routes["v2/models/"+name+"/infer"] = chosen
}

// present returns the names and versions of all models and composites.
func (g *Gate) present(t *Table, models []*scheduler.Model) map[[2]string]bool {
	all := make(map[[2]string]bool)
	for _, m := range models {
		all[[2]string{m.ID().Name, m.ID().Version}] = true
	}
	for _, kind := range g.composites {
		names, known := kind.Names()
		for _, name := range names {
			all[[2]string{name, ""}] = true
		}
		t.unread = t.unread || !known
	}
	return all
}

// choose picks the default version: the configured one, else the highest with a live replica, else
// the highest.
func choose(targets []*Target, configured string) *Target {
	for _, t := range targets {
		if configured != "" && t.ID.Version == configured {
			return t
		}
	}
	for _, t := range targets {
		if t.Serves {
			return t
		}
	}
	return targets[0]
}

func (g *Gate) target(m *scheduler.Model) *Target {
	o := g.cfg.Options(m.ID().Name)
	t := &Target{ID: m.ID(), Model: m, Spec: m.Spec(), Cast: o.Cast, Pixels: o.Pixels, Deadline: o.Deadline,
		Keep: o.Keep, Live: m.Replicas(), Learns: m.TakesFeedback(),
		Metrics: g.cfg.Metrics.Model(m.ID().Name, m.ID().Version)}
	for _, in := range t.Spec.Inputs {
		t.pictures, t.regions = t.pictures || in.Image != nil, t.regions || in.Regions != ""
	}
	t.Serves = t.Live > 0 || m.Awaited()
	t.setRow(g.rows)
	t.Metrics.SetSLO(t.Deadline)
	t.compose()
	return t
}

// compose makes the end of every answer's metadata.
func (t *Target) compose() {
	b := []byte(`"model_name":`)
	b = jsonscan.AppendString(b, t.ID.Name)
	b = append(b, `,"model_version":`...)
	b = jsonscan.AppendString(b, t.ID.Version)
	b = append(b, `,"__tensors__":[`...)
	t.answer = b[:len(b):len(b)]
	for i, o := range t.Spec.Outputs {
		if o.DType == tensor.Bytes {
			continue
		}
		if len(b) > len(t.answer) {
			b = append(b, ',')
		}
		b = jsonscan.AppendString(b, t.Spec.Outputs[i].Name)
	}
	t.full = append(b, ']', '}')
}

// Versions lists the versions of a model, the highest first.
func (t *Table) Versions(name string) []*Target { return t.versions[name] }

// Default returns the version that a model's bare name stands for; nil if there is no such model.
func (t *Table) Default(name string) *Target { return t.byModel[name] }

// Target returns a version of a model; nil if there is none.
func (t *Table) Target(name, version string) *Target {
	for _, target := range t.versions[name] {
		if target.ID.Version == version {
			return target
		}
	}
	return nil
}

// compareVersions orders "2" below "10" and "1.2.0" below "1.10.0": runs of digits count as
// numbers. A pre-release, which goes on with a hyphen and a letter, is below its release, as in
// semantic versioning: "1.2.0-beta" is below "1.2.0". Only equal texts are equal, so that "1" and
// "01" always have the same order.
func compareVersions(a, b string) int {
	x, y := a, b
	for x != "" || y != "" {
		n, m := digits(x), digits(y)
		if n == 0 || m == 0 {
			if c := cmp.Compare(continuation(x), continuation(y)); c != 0 {
				return c
			}
			if x[0] != y[0] {
				return cmp.Compare(x[0], y[0])
			}
			x, y = x[1:], y[1:]
			continue
		}
		u, v := strings.TrimLeft(x[:n], "0"), strings.TrimLeft(y[:m], "0")
		if c := cmp.Or(cmp.Compare(len(u), len(v)), strings.Compare(u, v)); c != 0 {
			return c
		}
		x, y = x[n:], y[m:]
	}
	return strings.Compare(a, b)
}

// continuation ranks the rest of a version: a pre-release, nothing, anything else.
func continuation(rest string) int {
	switch {
	case rest == "":
		return 1
	case len(rest) > 1 && rest[0] == '-' && (rest[1]|0x20) >= 'a' && (rest[1]|0x20) <= 'z':
		return 0
	}
	return 2
}

func digits(s string) int {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return n
}

// resolve finds the target of a route. version, from the request's metadata, may narrow a bare
// name.
func (t *Table) resolve(route, version string) (*Target, error) {
	target := t.infer[route]
	if target == nil {
		return nil, t.routeError(route, shivaWords)
	}
	if version == "" || version == target.ID.Version {
		return target, nil
	}
	if route != target.ID.Name && route != "v2/models/"+target.ID.Name+"/infer" {
		return nil, fault.Invalid("route %s names version %s, but metadata \"version\" names %s",
			strconv.Quote(route), strconv.Quote(target.ID.Version), strconv.Quote(version))
	}
	if narrowed := t.infer[target.ID.Name+"/"+version]; narrowed != nil {
		return narrowed, nil
	}
	if target.Composite != nil {
		return nil, target.noVersion(version)
	}
	return nil, t.noVersion(target.ID.Name, version)
}

// Target finds a model to describe, for a door that has name and version separately; version "" is
// the default. A composite none of whose models has ever been connected has only a name, and no
// target.
func (v View) Target(name, version string) (*Target, error) {
	t := v.table()
	err := v.who.CheckSees(name)
	if err != nil {
		return nil, err
	}
	target, err := t.find(t.visible, name, version)
	if err == nil && target.Composite != nil {
		err = target.Composite.Unlinked(v)
	}
	if err != nil {
		return nil, err
	}
	return target, nil
}

// Behind is Target for a name as clients have it: of a redirect, it finds what that stands for.
func (v View) Behind(name, version string) (*Target, error) {
	name, version, err := v.table().behind(name, version)
	if err != nil {
		return nil, err
	}
	return v.Target(name, version)
}

// Known is Behind, but also finds applications that have only a name.
func (v View) Known(name, version string) (*Target, error) {
	t := v.table()
	name, version, err := t.behind(name, version)
	if err == nil {
		err = v.who.CheckSees(name)
	}
	if err != nil {
		return nil, err
	}
	return t.find(t.visible, name, version)
}

// Asked is Behind for a request for inference. OpenTarget returns the error for an application that
// has no models.
func (v View) Asked(name, version string) (*Target, error) {
	t := v.table()
	name, version, err := t.behind(name, version)
	if err != nil {
		return nil, err
	}
	target, err := t.find(t.infer, name, version)
	if err != nil {
		if denied := v.who.Check(access.Infer, name); denied != nil {
			err = denied
		}
		return nil, err
	}
	return target, nil
}

// find finds a model among routes.
func (t *Table) find(routes map[string]*Target, name, version string) (*Target, error) {
	if strings.Contains(name, "/") {
		return nil, fmt.Errorf("%w: no model %q: the name of a model has no slash; give the version separately",
			scheduler.ErrNotFound, name)
	}
	route := name
	if version != "" {
		route += "/" + version
	}
	if target := routes[route]; target != nil {
		return target, nil
	}
	if _, known := t.versions[name]; known && version != "" {
		return nil, t.noVersion(name, version)
	}
	return nil, t.unknown(route, predictWords)
}

// noVersion returns the error for a version of a composite.
func (t *Target) noVersion(version string) error {
	return fmt.Errorf("%w: %s, but the request names version %q", scheduler.ErrNotFound, t.unversioned(), version)
}

// unversioned says of a composite that it has no versions.
func (t *Target) unversioned() string {
	article := "a"
	if t.kind() == Application {
		article = "an"
	}
	return fmt.Sprintf("%q is %s %s, which has no versions", t.ID.Name, article, t.kind())
}

func (t *Table) noVersion(name, version string) error {
	return t.missing(name, version, predictWords)
}

// missing returns the error for a name or a version that is not there. One that is expected is
// Unavailable: a retry may succeed.
func (t *Table) missing(name, version string, w words) error {
	why, awaited := t.whyMissing(name, version, t.askable(), w)
	if awaited {
		return fmt.Errorf("%w: %s", scheduler.ErrUnavailable, why)
	}
	return fault.UnknownModel(name, "%s", why)
}

// whyMissing says why nothing has a name or, of a model, why it has no such version. awaited: it is
// expected. names are those that may have been meant instead.
func (t *Table) whyMissing(name, version string, names []string, w words) (why string, awaited bool) {
	id, have := name, ""
	if targets := t.versions[name]; targets != nil {
		id = name + "/" + version
		have = Join(targets, func(target *Target) string { return strconv.Quote(target.ID.Version) }, ", ")
	} else if composite := t.composites[name]; composite != nil {
		return composite.unversioned(), false
	} else if t.unread {
		return fmt.Sprintf("no model %q, and applications and pipelines are not known yet: the state store has not been reached since this server started",
			name), true
	}
	guessed := false
	if t.awaited != nil {
		why, guessed = t.awaited(id)
	}
	switch {
	case why != "" && !guessed:
		return why, true
	case why != "" && have != "":
		return fmt.Sprintf("%s; model %q has %s", why, name, have), true
	case why != "":
		return why + Near(name, names), true
	case have != "":
		return fmt.Sprintf("model %q has no version %q; it has %s", name, version, have), false
	}
	return fmt.Sprintf("no model, application or pipeline %q%s", name,
		cmp.Or(Near(name, names), known(names, w))), false
}

// Near is the end of an error about a name that nothing has: which ones may have been meant; "": no
// name is near.
func Near(name string, names []string) string {
	near := nearest.Names(name, names)
	if len(near) == 0 {
		return ""
	}
	return "; nearest: " + Join(near, strconv.Quote, ", ")
}

// words are the terms that a door uses in errors.
type words struct {
	name string // where a request says which model it is for
	list string // what lists the models
}

var (
	shivaWords   = words{"namespace", `namespace "!models"`}
	predictWords = words{"model's name", "the repository index"}
)

// routeError returns the error for a route that takes no requests. A caller without the right to
// use a model does not learn whether it exists.
func (t *Table) routeError(route string, w words) error {
	name := strings.TrimPrefix(route, "v2/models/")
	name, _, _ = strings.Cut(name, "/")
	if err := t.who.Check(access.Infer, name); err != nil {
		return err
	}
	return t.unknown(route, w)
}

// unknown suggests what the route might have meant.
func (t *Table) unknown(route string, w words) error {
	if route == "" {
		return fmt.Errorf("%w: the %s is empty; it must name a model%s", scheduler.ErrNotFound, w.name,
			known(t.askable(), w))
	}
	name := strings.TrimPrefix(route, "v2/models/")
	name, rest, _ := strings.Cut(name, "/")
	if _, ok := t.versions[name]; ok {
		if rest == "update" {
			return fmt.Errorf("%w: %q is a model and not an application: only applications take feedback",
				scheduler.ErrNotFound, name)
		}
		if !strings.HasPrefix(route, "v2/") {
			return t.noVersion(name, rest)
		}
		return fmt.Errorf("%w: no route %q; under model %q there are infer, latest, ready, config, stats and versions/…",
			scheduler.ErrNotFound, route, name)
	}
	if composite := t.composites[name]; composite != nil {
		if !strings.HasPrefix(route, "v2/") {
			return composite.noVersion(rest)
		}
		return fmt.Errorf("%w: no route %q; under %s %q there are infer, latest, ready, config and stats",
			scheduler.ErrNotFound, route, composite.kind(), name)
	}
	return t.missing(name, rest, w)
}

// known lists the names if they are few enough to read.
func known(names []string, w words) string {
	const most = 8
	switch {
	case len(names) == 0:
		return "; no container has registered a model yet"
	case len(names) <= most:
		return "; registered: " + strings.Join(names, ", ")
	}
	return "; " + w.list + " lists all of them"
}

// askable lists the names that requests may have: those of models, composites and redirects,
// sorted.
func (t *Table) askable() []string {
	all := slices.AppendSeq(t.sorted(), maps.Keys(t.redirects))
	slices.Sort(all)
	return slices.Compact(all)
}

// sorted lists the names of models and composites.
func (t *Table) sorted() []string {
	all := slices.AppendSeq(slices.Clone(t.names), maps.Keys(t.composites))
	slices.Sort(all)
	return slices.Compact(all)
}
