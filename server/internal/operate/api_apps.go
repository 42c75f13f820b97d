package operate

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/jsonscan"
)

func (s Sources) applications() collection[admin.App] {
	return collection[admin.App]{
		Sources: s, of: s.Applications, what: "application", path: "/v1/apps", part: `{"slo": "50ms"}`, parse: parseApp,
		all:  func(list []admin.App) any { return admin.AppList{Apps: list} },
		name: func(a *admin.App) *string { return &a.Name },
	}
}

// parseApp reads an application: see collection.parse.
func parseApp(text []byte) (a admin.App, faults []string, whole bool) {
	faults, whole = parseMembers(text, "an application", `{"name": "digits-app", "models": ["digits"]}`,
		map[string]member{
			"name":    {&a.Name, "a string"},
			"models":  {&a.Models, `a list of strings such as "digits", "digits/2" or "digits/*"`},
			"policy":  {&a.Policy, "a string"},
			"params":  {&a.Params, "an object"},
			"slo":     {&a.SLO, `a string such as "50ms"`},
			"keep":    {&a.Keep, setting.KeepValues},
			"default": {&a.Default, `an object with the value of one row for each output, as {"label": -1}`},
		})
	return a, faults, whole
}

// link adds a model to an application.
func (s Sources) link(r *http.Request, sent []byte) (any, error) {
	var link map[string]string
	if err := jsonscan.Unmarshal(sent, &link); err != nil || len(link) != 1 || link["model"] == "" {
		return nil, refuse(http.StatusBadRequest, `expected {"model": "digits"}, or "digits/2" for one version, or "digits/*" for all that are ready`)
	}
	return s.applications().change(r, func(a admin.App) (admin.App, error) {
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
	return s.applications().change(r, func(a admin.App) (admin.App, error) {
		i := slices.Index(a.Models, model)
		if i < 0 {
			return a, refuse(http.StatusNotFound, "application %q does not link to %q; it links to %q", a.Name, model,
				a.Models)
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
	s.audit(r, act{action: "forget", what: "policy", name: name, before: before.Users})
	return s.Learning.Learned(name, "", true, mostUsers)
}

func (s Sources) policies(*http.Request) (any, error) {
	return admin.PolicyList{Policies: s.Learning.Policies()}, nil
}

func (s Sources) feedback(r *http.Request, sent []byte) (any, error) {
	var object map[string]json.RawMessage
	if err := jsonscan.Unmarshal(sent, &object); err != nil || object == nil {
		return nil, refuse(http.StatusBadRequest,
			`expected a JSON object such as {"id": 7, "user": "anna", "label": 3}%s`, errorSuffix(err))
	}
	return s.Learning.Feedback(r.Context(), r.PathValue("name"), sent)
}
