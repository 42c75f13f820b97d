package gate

import (
	"slices"
	"strings"

	"github.com/shivad/shivad/server/internal/access"
)

// A View is the gate as an identity sees it. Models that the identity may neither use nor see do
// not exist there: neither in lists nor in errors that list names.
type View struct {
	gate *Gate
	who  *access.Identity
}

// As returns the gate as who sees it; nil sees everything.
func (g *Gate) As(who *access.Identity) View { return View{g, who} }

// Who returns the identity of the view.
func (v View) Who() *access.Identity { return v.who }

// Names lists the names of models and composites, sorted.
func (v View) Names() []string { return v.table().sorted() }

// Askable lists all names that requests may have: those of models, composites and redirects,
// sorted.
func (v View) Askable() []string { return v.table().askable() }

// WhyMissing says why nothing has the name of a model, "m" or "m/2", that a composite asks; "" if
// the identity may not see the name. What has the composite's own name cannot be meant instead.
func (v View) WhyMissing(model, composite string) string {
	name, version, _ := strings.Cut(model, "/")
	if v.who.CheckSees(name) != nil {
		return ""
	}
	names := slices.DeleteFunc(v.Names(), func(n string) bool { return n == composite })
	why, _ := v.table().whyMissing(name, version, names, predictWords)
	return why
}

func (v View) table() *Table { return v.gate.table(v.who) }

// An identityTable is a table derived from another for one identity.
type identityTable struct{ base, table *Table }

// table returns the routes of an identity. They are made at its first request after a change of the
// routes, so that a request costs two loads.
func (g *Gate) table(who *access.Identity) *Table {
	all := g.routes.Load()
	if who == nil {
		return all
	}
	if v, ok := who.Routes.Load().(*identityTable); ok && v.base == all {
		return v.table
	}
	v := &identityTable{all, all.visibleTo(who)}
	who.Routes.Store(v)
	return v.table
}

// visibleTo returns the part of a table that an identity may use or see.
func (t *Table) visibleTo(who *access.Identity) *Table {
	v := &Table{
		who:        who,
		infer:      make(map[string]*Target),
		visible:    make(map[string]*Target),
		versions:   make(map[string][]*Target),
		byModel:    make(map[string]*Target),
		composites: make(map[string]*Target),
		unread:     t.unread,
		awaited:    t.awaited,
	}
	v.redirects = v.redirectsOf(t.redirects)
	for _, name := range t.sorted() {
		if !who.Sees(name) {
			continue
		}
		if targets := t.versions[name]; targets != nil {
			v.names = append(v.names, name)
			v.versions[name], v.byModel[name] = targets, t.byModel[name]
		}
		if a := t.composites[name]; a != nil {
			v.composites[name] = a
		}
		v.route(v.visible, name)
		if who.May(access.Infer, name) {
			v.route(v.infer, name)
		}
	}
	return v
}
