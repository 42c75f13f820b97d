package gate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva"
)

// Control answers the routes that Shiva reserves for questions about the server: "!live", "!ready",
// "!models" and "!whoami". package predict answers "!server" and the paths below "v2" (Describe).
// The answer is a JSON object. ok is false for any other route, which goes to Open.
func (v View) Control(route string) (answer []byte, ok bool, err error) {
	if route == "" || route[0] != '!' {
		return nil, false, nil
	}
	switch route {
	case shiva.LiveNamespace:
		return []byte(`{"live":true}`), true, nil
	case shiva.ReadyNamespace:
		ready, reason := v.Ready()
		return object(struct {
			Ready  bool   `json:"ready"`
			Reason string `json:"reason,omitempty"`
		}{ready, reason}), true, nil
	}
	if err := v.who.Enter(); err != nil {
		return nil, true, err
	}
	switch route {
	case shiva.ModelsNamespace:
		return v.table().list(), true, nil
	case shiva.WhoAmINamespace:
		return object(v.who.Describe()), true, nil
	}
	return nil, true, fmt.Errorf("%w: no control request %q; there are !live, !ready, !server, !models and !whoami",
		scheduler.ErrNotFound, route)
}

// Ready reports whether the server takes requests, and if not, why. The reason names models, so
// only callers who may see all of them get it.
func (v View) Ready() (ready bool, reason string) {
	if v.gate.draining.Load() {
		return false, "draining"
	}
	ready, reason = v.gate.server.Ready()
	if reason != "" && !v.who.May(access.AdminRead, "") {
		reason = "some models that the server should serve are missing; callers with the right admin:read see which"
	}
	return ready, reason
}

// A ModelStatus is one version of a model as "!models" shows it.
type ModelStatus struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Default  bool   `json:"default"`
	Ready    bool   `json:"ready"`
	Replicas int    `json:"replicas"`
}

// list is the answer to "!models". It grows with the number of models, and clients may ask as often
// as they like, so it is encoded once per table.
func (t *Table) list() []byte {
	t.listing.Do(func() {
		t.listed = object(struct {
			Models       []ModelStatus     `json:"models"`
			Applications []CompositeStatus `json:"applications,omitempty"`
			Pipelines    []CompositeStatus `json:"pipelines,omitempty"`
			Routes       []RedirectStatus  `json:"routes,omitempty"`
		}{t.models(), t.all(Application), t.all(Pipeline), t.listRedirects()})
	})
	return t.listed
}

// Models lists every version of every model, by name, the highest version first.
func (v View) Models() []ModelStatus { return v.table().models() }

func (t *Table) models() []ModelStatus {
	out := []ModelStatus{}
	for _, name := range t.names {
		for _, target := range t.versions[name] {
			out = append(out,
				ModelStatus{name, target.ID.Version, t.byModel[name] == target, target.Serves, target.Live})
		}
	}
	return out
}

// Targets returns the targets of Models.
func (v View) Targets() (all []*Target) {
	t := v.table()
	for _, name := range t.names {
		all = append(all, t.versions[name]...)
	}
	return all
}

// TargetsOf returns the versions of one model, the highest first.
func (v View) TargetsOf(name string) []*Target { return v.table().versions[name] }

// Composites lists all applications and pipelines by name.
func (v View) Composites() []CompositeStatus {
	t := v.table()
	return slices.SortedFunc(slices.Values(append(t.all(Application), t.all(Pipeline)...)),
		func(a, b CompositeStatus) int { return strings.Compare(a.Name, b.Name) })
}

// KindOf returns the kind of the composite of that name; "" if there is none.
func (v View) KindOf(name string) Kind {
	if c := v.table().composites[name]; c != nil {
		return c.kind()
	}
	return ""
}

// all lists the composites of a kind by name.
func (t *Table) all(kind Kind) []CompositeStatus {
	var out []CompositeStatus
	for _, name := range slices.Sorted(maps.Keys(t.composites)) {
		if c := t.composites[name].Composite; c.Kind() == kind {
			out = append(out, c.Status())
		}
	}
	return out
}

// Versions lists the versions of a model that requests for a name may ask for, the highest first;
// nil if there is no such model.
func (v View) Versions(name string) []string {
	table := v.table()
	only := ""
	if d := table.redirects[name]; d != nil {
		name, only = d.Model, d.Version
	}
	var out []string
	for _, t := range table.versions[name] {
		if only == "" || t.ID.Version == only {
			out = append(out, t.ID.Version)
		}
	}
	return out
}

// object marshals a struct of strings, numbers and booleans, which cannot fail.
func object(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
