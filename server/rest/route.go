package rest

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
)

// A call is a request on its way through a handler.
type call struct {
	door     *Door
	settings *Settings // as the request found them
	w        http.ResponseWriter
	r        *http.Request
	model    string   // from the path, decoded
	version  string   // likewise; "" = the default
	in       *arrival // the body; nil until it is read
	begun    bool     // the head of the answer has left: nothing can be said any more
}

// A handler answers one method of a path. Its error is answered as such, if nothing else was.
type handler func(*call) error

// A route is a path with what it does: for GET and HEAD, or for POST. A step in braces is a name.
type route struct {
	path  string
	get   handler // HEAD too; nil: it is for POST
	post  handler
	steps []string
}

// methods are those that it takes.
func (r *route) methods() []string {
	if r.post != nil {
		return []string{http.MethodPost}
	}
	return []string{http.MethodGet, http.MethodHead}
}

// routes are all paths there are. Those of a model also exist with its version: see versioned.
var routes = func() []route {
	list := []route{
		{path: "/v2", get: (*call).server},
		{path: "/v2/health/live", get: (*call).live},
		{path: "/v2/health/ready", get: (*call).ready},
		{path: "/v2/docs/openapi.json", get: (*call).openAPI},
		{path: "/v2/models", get: (*call).models},
		{path: "/v2/models/stats", get: (*call).statistics},
		{path: "/v2/repository/index", post: (*call).index},
		{path: "/v2/repository/models/{model}/load", post: (*call).load},
		{path: "/v2/repository/models/{model}/unload", post: (*call).unload},
		{path: "/{model}/predict", post: (*call).clipperPredict},
		{path: "/{model}/update", post: (*call).update},
	}
	for _, version := range []string{"", "/versions/{version}"} {
		of := "/v2/models/{model}" + version
		list = append(list,
			route{path: of, get: (*call).metadata},
			route{path: of + "/ready", get: (*call).modelReady},
			route{path: of + "/config", get: (*call).config},
			route{path: of + "/stats", get: (*call).statistics},
			route{path: of + "/infer", post: (*call).infer},
		)
	}
	for i := range list {
		list[i].steps = strings.Split(list[i].path[1:], "/")
	}
	return list
}()

// find returns the route of a path as it was sent, with the names in it. One slash at its end
// does not matter. Steps are decoded one by one, so that a name may have an escaped slash
// without becoming two steps.
func find(escaped string) (found *route, model, version string) {
	path, ok := strings.CutPrefix(strings.TrimSuffix(escaped, "/"), "/")
	if !ok {
		return nil, "", ""
	}
	var room [8]string
	steps := room[:0]
	for step := range strings.SplitSeq(path, "/") {
		plain, err := url.PathUnescape(step)
		if err != nil || plain == "" || len(steps) == cap(steps) {
			return nil, "", ""
		}
		steps = append(steps, plain)
	}
next:
	for i := range routes {
		r := &routes[i]
		if len(r.steps) != len(steps) {
			continue
		}
		model, version = "", ""
		for k, want := range r.steps {
			switch {
			case want == "{model}":
				model = steps[k]
			case want == "{version}":
				version = steps[k]
			case want != steps[k]:
				continue next
			}
		}
		return r, model, version
	}
	return nil, "", ""
}

// ServeHTTP answers a request.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if k := connOf(r); k != nil {
		k.answering = true
	}
	c := &call{door: d, settings: d.settings.Load(), w: w, r: r}
	defer c.rescue()
	found, model, version := find(r.URL.EscapedPath())
	if c.crossOrigin(found) {
		return
	}
	if found == nil {
		c.fail(&refusal{status: http.StatusNotFound, err: fmt.Errorf("no such path: %s; those that exist are in /v2/docs/openapi.json", r.URL.Path)})
		return
	}
	c.model, c.version = model, version
	h := found.post
	if h == nil {
		h = found.get
	}
	methods := found.methods()
	if !slices.Contains(methods, r.Method) {
		w.Header().Set("Allow", strings.Join(methods, ", "))
		c.fail(&refusal{status: http.StatusMethodNotAllowed, err: fmt.Errorf("%s takes %s, not %s", r.URL.Path, methods[0], r.Method)})
		return
	}
	if err := h(c); err != nil {
		c.fail(err)
	}
}

// rescue, deferred, answers for a bug. If the answer has begun, the client must not take it for
// whole.
func (c *call) rescue() {
	switch p := recover(); p {
	case nil:
	case http.ErrAbortHandler:
		panic(p)
	default:
		c.door.log.Error("panic while serving a request", "path", c.r.URL.Path, "panic", p, "stack", string(bytes.TrimSpace(debug.Stack())))
		if c.begun {
			panic(http.ErrAbortHandler)
		}
		c.fail(&refusal{status: http.StatusInternalServerError, err: errBug})
	}
}
