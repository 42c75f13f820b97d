package operate

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/jsonscan"
)

// parseApp reads an application. The faults are those of its form; whole reports that all fields
// could be read nevertheless, so that their values can be checked as well.
func parseApp(text []byte) (a admin.App, faults []string, whole bool) {
	var members map[string]json.RawMessage
	if err := jsonscan.Unmarshal(text, &members); err != nil || members == nil {
		return a, []string{`expected an application as a JSON object such as {"name": "digits-app", "models": ["digits"]}` + errorSuffix(err)}, false
	}
	fields := map[string]struct {
		to    any
		wants string
	}{
		"name":    {&a.Name, "a string"},
		"models":  {&a.Models, `a list of strings such as "digits", "digits/2" or "digits/*"`},
		"policy":  {&a.Policy, "a string"},
		"params":  {&a.Params, "an object"},
		"slo":     {&a.SLO, `a string such as "50ms"`},
		"keep":    {&a.Keep, setting.KeepValues},
		"default": {&a.Default, `an object with the value of one row for each output, as {"label": -1}`},
	}
	whole = true
	for _, key := range slices.Sorted(maps.Keys(members)) {
		field, known := fields[key]
		value := members[key]
		switch {
		case !known:
			faults = append(faults, fmt.Sprintf("%s: unknown member; an application has %s", key, strings.Join(slices.Sorted(maps.Keys(fields)), ", ")))
		case string(value) == "null": // counts as absent
		case json.Unmarshal(value, field.to) != nil:
			faults = append(faults, fmt.Sprintf("%s: expected %s, got %.100s", key, field.wants, value))
			whole = false
		}
	}
	return a, faults, whole
}

func errorSuffix(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// readApp reads an application; the error lists everything that is wrong with it. The application
// must have the given name, unless name is empty.
func (s Sources) readApp(text []byte, name string) (admin.App, error) {
	a, faults, whole := parseApp(text)
	if name != "" {
		if a.Name != "" && a.Name != name {
			faults = append(faults, fmt.Sprintf("name: the path says %q and the body %q; an application cannot be renamed", name, a.Name))
		}
		a.Name = name
	}
	if whole {
		if err := s.Applications.Check(a); err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || e.Status != http.StatusBadRequest {
				return a, err
			}
			faults = append(faults, err.Error())
		}
	}
	return a, refuseAll(faults)
}

func (s Sources) apps(*http.Request) (any, error) {
	list, err := s.Applications.List()
	return admin.AppList{Apps: append([]admin.App{}, list...)}, err
}

func (s Sources) findApp(name string) (admin.App, error) {
	list, err := s.Applications.List()
	if err != nil {
		return admin.App{}, err
	}
	if i := slices.IndexFunc(list, func(a admin.App) bool { return a.Name == name }); i >= 0 {
		return list[i], nil
	}
	return admin.App{}, refuse(http.StatusNotFound, "no application %q; /v1/apps lists them", name)
}

func (s Sources) app(r *http.Request) (any, error) { return s.findApp(r.PathValue("name")) }

func (s Sources) createApp(r *http.Request, sent []byte) (any, error) {
	a, err := s.readApp(sent, "")
	if err != nil {
		return nil, err
	}
	return s.create(r, a)
}

func (s Sources) create(r *http.Request, a admin.App) (any, error) {
	a, err := s.Applications.Create(r.Context(), a)
	if err != nil {
		return nil, err
	}
	s.audit(r, "create", "application", a.Name, nil, a, nil)
	return reply{status: http.StatusCreated, location: "/v1/apps/" + url.PathEscape(a.Name), body: a}, nil
}

// putApp creates or replaces an application. The store decides which of the two it does, so that
// the log shows what was there before.
func (s Sources) putApp(r *http.Request, sent []byte) (any, error) {
	next, err := s.readApp(sent, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	for {
		v, err := s.changeApp(r, func(admin.App) (admin.App, error) { return next, nil })
		if !isStatus(err, http.StatusNotFound) {
			return v, err
		}
		v, err = s.create(r, next)
		// After a conflict it exists: another client has created it meanwhile.
		if !isStatus(err, http.StatusConflict) || r.Context().Err() != nil {
			return v, err
		}
	}
}

func isStatus(err error, status int) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == status
}

// changeApp changes the application in the path, and records what it was just before.
func (s Sources) changeApp(r *http.Request, change func(admin.App) (admin.App, error)) (any, error) {
	var before admin.App
	after, err := s.Applications.Change(r.Context(), r.PathValue("name"), func(a admin.App) (admin.App, error) {
		before = a
		return change(a)
	})
	if err != nil {
		return nil, err
	}
	s.audit(r, "change", "application", after.Name, before, after, nil)
	return after, nil
}

// patchApp changes an application by a JSON merge patch (RFC 7396): members are set, and null
// removes them.
func (s Sources) patchApp(r *http.Request, sent []byte) (any, error) {
	var patch any
	err := jsonscan.Unmarshal(sent, &patch)
	if _, isObject := patch.(map[string]any); err != nil || !isObject {
		return nil, refuse(http.StatusBadRequest, `expected a JSON object with the members to change, such as {"slo": "50ms"}; null removes a member%s`, errorSuffix(err))
	}
	return s.changeApp(r, func(a admin.App) (admin.App, error) {
		old, err := json.Marshal(a)
		if err != nil {
			return a, err
		}
		var target any
		if err := jsonscan.Unmarshal(old, &target); err != nil {
			return a, err
		}
		text, err := json.Marshal(merge(target, patch))
		if err != nil {
			return a, err
		}
		return s.readApp(text, a.Name)
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

func (s Sources) deleteApp(r *http.Request) (any, error) {
	a, err := s.findApp(r.PathValue("name"))
	if err == nil {
		err = s.Applications.Delete(r.Context(), a.Name)
	}
	if err == nil {
		s.audit(r, "delete", "application", a.Name, a, nil, nil)
	}
	return a, err
}

// link adds a model to an application.
func (s Sources) link(r *http.Request, sent []byte) (any, error) {
	var link map[string]string
	if err := jsonscan.Unmarshal(sent, &link); err != nil || len(link) != 1 || link["model"] == "" {
		return nil, refuse(http.StatusBadRequest, `expected {"model": "digits"}, or "digits/2" for one version, or "digits/*" for all that are ready`)
	}
	return s.changeApp(r, func(a admin.App) (admin.App, error) {
		if slices.Contains(a.Models, link["model"]) {
			return a, refuse(http.StatusConflict, "application %q links to %q already", a.Name, link["model"])
		}
		a.Models = append(slices.Clone(a.Models), link["model"])
		return a, nil
	})
}

// unlink removes a link: ?model=digits/2, as it was linked.
func (s Sources) unlink(r *http.Request) (any, error) {
	model := r.URL.Query().Get("model")
	if model == "" {
		return nil, refuse(http.StatusBadRequest, "expected the link to remove as a parameter, such as ?model=digits/2")
	}
	return s.changeApp(r, func(a admin.App) (admin.App, error) {
		i := slices.Index(a.Models, model)
		if i < 0 {
			return a, refuse(http.StatusNotFound, "application %q does not link to %q; it links to %q", a.Name, model, a.Models)
		}
		a.Models = slices.Delete(slices.Clone(a.Models), i, i+1)
		return a, nil
	})
}

// mostUsers is how many users are shown unless ?limit says otherwise.
const mostUsers = 1000

func (s Sources) learned(r *http.Request) (any, error) {
	q := r.URL.Query()
	most, err := readLimit(r, mostUsers, "users")
	if err != nil {
		return nil, err
	}
	return s.Learning.Learned(r.PathValue("name"), q.Get("user"), !q.Has("user"), most)
}

// limit reads ?limit; without it, the limit is usual.
func readLimit(r *http.Request, usual int, of string) (int, error) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, refuse(http.StatusBadRequest, "limit: expected a number of %s of at least 1, got %.40q", of, text)
	}
	return n, nil
}

func (s Sources) forget(r *http.Request) (any, error) {
	name := r.PathValue("name")
	before, err := s.Learning.Learned(name, "", true, mostUsers)
	if err == nil {
		err = s.Learning.Forget(r.Context(), name)
	}
	if err != nil {
		return nil, err
	}
	s.audit(r, "forget", "policy", name, before.Users, nil, nil)
	return s.Learning.Learned(name, "", true, mostUsers)
}

func (s Sources) policies(*http.Request) (any, error) {
	return admin.PolicyList{Policies: s.Learning.Policies()}, nil
}

func (s Sources) feedback(r *http.Request, sent []byte) (any, error) {
	var object map[string]json.RawMessage
	if err := jsonscan.Unmarshal(sent, &object); err != nil || object == nil {
		return nil, refuse(http.StatusBadRequest, `expected a JSON object such as {"id": 7, "user": "anna", "label": 3}%s`, errorSuffix(err))
	}
	return s.Learning.Feedback(r.Context(), r.PathValue("name"), sent)
}
