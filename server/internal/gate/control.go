package gate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva"
)

// Control answers the routes that Shiva reserves for questions about the server: "!live",
// "!ready" and "!models". "!server" and the paths below "v2" are predict's (Describe). The
// answer is a JSON object. ok is false when route is none of them, and then it is one to Open.
func (g *Gate) Control(route string) (answer []byte, ok bool, err error) {
	if route == "" || route[0] != '!' {
		return nil, false, nil
	}
	switch route {
	case shiva.LiveNamespace:
		return []byte(`{"live":true}`), true, nil
	case shiva.ReadyNamespace:
		ready, reason := g.Ready()
		return object(struct {
			Ready  bool   `json:"ready"`
			Reason string `json:"reason,omitempty"`
		}{ready, reason}), true, nil
	case shiva.ModelsNamespace:
		return g.routes.Load().list(), true, nil
	}
	return nil, true, fmt.Errorf("%w: no control request %q; there are !live, !ready, !server and !models", scheduler.ErrNotFound, route)
}

// Ready reports whether the server takes requests, and if not, why.
func (g *Gate) Ready() (ready bool, reason string) {
	if g.draining.Load() {
		return false, "draining"
	}
	return g.cfg.Ready()
}

// A ModelStatus is one version of a model as "!models" shows it.
type ModelStatus struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Default  bool   `json:"default"`
	Ready    bool   `json:"ready"`
	Replicas int    `json:"replicas"`
}

// list is the answer to "!models". It is as long as there are models, and asked for as often as
// a client likes, so that all share one.
func (t *Table) list() []byte {
	t.listing.Do(func() {
		t.listed = object(struct {
			Models       []ModelStatus       `json:"models"`
			Applications []ApplicationStatus `json:"applications,omitempty"`
		}{t.models(), t.applications()})
	})
	return t.listed
}

// Models lists every version of every model, by name and then the highest version first.
func (g *Gate) Models() []ModelStatus { return g.routes.Load().models() }

func (t *Table) models() []ModelStatus {
	out := []ModelStatus{}
	for _, name := range t.names {
		for _, target := range t.versions[name] {
			out = append(out, ModelStatus{name, target.ID.Version, t.byModel[name] == target, target.Live > 0, target.Live})
		}
	}
	return out
}

// Applications lists every application by name.
func (g *Gate) Applications() []ApplicationStatus { return g.routes.Load().applications() }

func (t *Table) applications() []ApplicationStatus {
	var out []ApplicationStatus
	for _, name := range slices.Sorted(maps.Keys(t.apps)) {
		out = append(out, t.apps[name].Application.Status())
	}
	return out
}

// Versions are those of a model, the highest first; nil if there is no such model.
func (g *Gate) Versions(name string) []string {
	var out []string
	for _, t := range g.routes.Load().versions[name] {
		out = append(out, t.ID.Version)
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
