package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/jsonscan"
)

// Definitions are those of one kind, such as applications, which operators make and change by name.
type Definitions[D any] interface {
	List() ([]D, error) // by name
	Check(D) error      // lists all that is wrong with it
	Create(ctx context.Context, d D) (D, error)
	// Change is atomic; change may be called several times.
	Change(ctx context.Context, name string, change func(D) (D, error)) (D, error)
	Delete(ctx context.Context, name string) error // with all that belongs to it
}

// A collection answers for the paths of the definitions of one kind.
type collection[D any] struct {
	Sources
	of   Definitions[D]
	what string // in errors and in the audit trail, such as "application"
	path string // of all of them
	part string // an example of what a patch may have, such as `{"slo": "50ms"}`
	all  func([]D) any
	name func(*D) *string
	// parse reads a definition. The faults are those of its form; whole reports that all members
	// could be read nevertheless, so that their values can be checked as well.
	parse func(text []byte) (d D, faults []string, whole bool)
}

// A member of a JSON object that clients send.
type member struct {
	to    any // a pointer
	wants string
}

// parseMembers reads an object into its members, and returns the faults of its form.
func parseMembers(text []byte, what, example string, members map[string]member) (faults []string, whole bool) {
	var sent map[string]json.RawMessage
	if err := jsonscan.Unmarshal(text, &sent); err != nil || sent == nil {
		return []string{fmt.Sprintf("expected %s as a JSON object such as %s%s", what, example, errorSuffix(err))},
			false
	}
	whole = true
	for _, key := range slices.Sorted(maps.Keys(sent)) {
		m, known := members[key]
		value := sent[key]
		switch {
		case !known:
			faults = append(faults,
				fmt.Sprintf("%s: unknown member; %s has %s", key, what, strings.Join(slices.Sorted(maps.Keys(members)), ", ")))
		case string(value) == "null": // counts as absent
		case json.Unmarshal(value, m.to) != nil:
			faults = append(faults, fmt.Sprintf("%s: expected %s, got %.100s", key, m.wants, value))
			whole = false
		}
	}
	return faults, whole
}

func errorSuffix(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// read reads a definition; the error lists everything that is wrong with it. It must have the given
// name, unless name is empty.
func (c collection[D]) read(text []byte, name string) (D, error) {
	d, faults, whole := c.parse(text)
	if own := c.name(&d); name != "" {
		if *own != "" && *own != name {
			faults = append(faults,
				fmt.Sprintf("name: the path says %q and the body %q; %s cannot be renamed", name, *own,
					indefinite(c.what)))
		}
		*own = name
	}
	if whole {
		if err := refusal(c.of.Check(d)); err != nil {
			if !isStatus(err, http.StatusBadRequest) {
				return d, err
			}
			faults = append(faults, err.Error())
		}
	}
	return d, refuseAll(faults)
}

// indefinite returns a noun with its article.
func indefinite(noun string) string {
	if strings.ContainsRune("aeiou", rune(noun[0])) {
		return "an " + noun
	}
	return "a " + noun
}

func (c collection[D]) list(*http.Request) (any, error) {
	list, err := c.of.List()
	return c.all(append([]D{}, list...)), err
}

func (c collection[D]) find(name string) (D, error) {
	list, err := c.of.List()
	if i := slices.IndexFunc(list, func(d D) bool { return *c.name(&d) == name }); err == nil && i >= 0 {
		return list[i], nil
	}
	var none D
	if err == nil {
		var known []string
		for i := range list {
			known = append(known, *c.name(&list[i]))
		}
		err = noName(c.what, name, known, c.path)
	}
	return none, err
}

// noName refuses a name that nothing has. It suggests those that are near, or says where all stand.
func noName(what, name string, known []string, path string) error {
	return refuse(http.StatusNotFound, "no %s %q%s", what, name,
		cmp.Or(gate.Near(name, known), "; "+path+" lists them"))
}

func (c collection[D]) show(r *http.Request) (any, error) { return c.find(r.PathValue("name")) }

func (c collection[D]) create(r *http.Request, sent []byte) (any, error) {
	d, err := c.read(sent, "")
	if err != nil {
		return nil, err
	}
	return c.make(r, d)
}

func (c collection[D]) make(r *http.Request, d D) (any, error) {
	d, err := c.of.Create(r.Context(), d)
	if err != nil {
		return nil, err
	}
	c.audit(r, act{action: "create", what: c.what, name: *c.name(&d), after: d})
	return reply{status: http.StatusCreated, location: c.path + "/" + url.PathEscape(*c.name(&d)), body: d}, nil
}

// put makes or replaces a definition. The store decides which of the two it does, so that the log
// shows what was there before.
func (c collection[D]) put(r *http.Request, sent []byte) (any, error) {
	next, err := c.read(sent, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	for {
		v, err := c.change(r, func(D) (D, error) { return next, nil })
		if !isStatus(err, http.StatusNotFound) {
			return v, err
		}
		v, err = c.make(r, next)
		// After a conflict it exists: another client has created it meanwhile.
		if !isStatus(err, http.StatusConflict) || r.Context().Err() != nil {
			return v, err
		}
	}
}

func isStatus(err error, status int) bool {
	e, ok := errors.AsType[*Error](refusal(err))
	return ok && e.Status == status
}

// change changes the definition in the path, and records what it was just before.
func (c collection[D]) change(r *http.Request, change func(D) (D, error)) (any, error) {
	var before D
	after, err := c.of.Change(r.Context(), r.PathValue("name"), func(d D) (D, error) {
		before = d
		return change(d)
	})
	if err != nil {
		return nil, err
	}
	c.audit(r, act{action: "change", what: c.what, name: *c.name(&after), before: before, after: after})
	return after, nil
}

// patch changes a definition by a JSON merge patch (RFC 7396): members are set, and null removes
// them.
func (c collection[D]) patch(r *http.Request, sent []byte) (any, error) {
	var patch any
	err := jsonscan.Unmarshal(sent, &patch)
	if _, isObject := patch.(map[string]any); err != nil || !isObject {
		return nil, refuse(http.StatusBadRequest,
			"expected a JSON object with the members to change, such as %s; null removes a member%s", c.part,
			errorSuffix(err))
	}
	return c.change(r, func(d D) (D, error) {
		old, err := json.Marshal(d)
		if err != nil {
			return d, err
		}
		var target any
		if err := jsonscan.Unmarshal(old, &target); err != nil {
			return d, err
		}
		text, err := json.Marshal(merge(target, patch))
		if err != nil {
			return d, err
		}
		return c.read(text, *c.name(&d))
	})
}

// merge is MergePatch of RFC 7396, section 2. It may change target, and its result shares memory
// with both.
func merge(target, patch any) any {
	changes, isObject := patch.(map[string]any)
	if !isObject {
		return patch
	}
	object, isObject := target.(map[string]any)
	if !isObject {
		object = map[string]any{}
	}
	for name, value := range changes {
		if value == nil {
			delete(object, name)
		} else {
			object[name] = merge(object[name], value)
		}
	}
	return object
}

func (c collection[D]) delete(r *http.Request) (any, error) {
	d, err := c.find(r.PathValue("name"))
	if err == nil {
		err = c.of.Delete(r.Context(), *c.name(&d))
	}
	if err == nil {
		c.audit(r, act{action: "delete", what: c.what, name: *c.name(&d), before: d})
	}
	return d, err
}
