package rest

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/predict"
)

// A call is a request on its way through a handler.
type call struct {
	door     *Door
	settings *Settings // those at the start of the request
	w        http.ResponseWriter
	r        *http.Request
	conn     *conn
	who      *access.Identity
	model    string   // from the path, decoded; for shared memory, the region's name
	version  string   // from the path, decoded; "": the default
	in       *arrival // the body; nil until it is read
	begun    bool     // the head of the answer has been sent
	use      access.Use
	charged  bool // use has been charged
}

// A handler serves a request. If it has not answered yet, its error is the answer.
type handler func(*call) error

// A route is a path and its handler. A step in braces is a name.
type route struct {
	method string // GET, which includes HEAD, or POST
	both   bool   // it takes GET and POST
	path   string
	serve  handler
	open   bool     // needs no identity: health, and paths that are the same on every server
	does   string   // the action and its object, as in "load model"; "": it changes nothing
	steps  []string // of the path
}

// methods are those that the route takes.
func (r *route) methods() []string {
	if r.both {
		return []string{http.MethodGet, http.MethodHead, http.MethodPost}
	}
	if r.method == http.MethodGet {
		return []string{http.MethodGet, http.MethodHead}
	}
	return []string{r.method}
}

var routes = func() []route {
	const model, version, memory, cuda = "/v2/models/{model}", "/versions/{version}", "/v2/systemsharedmemory", "/v2/cudasharedmemory"
	list := []route{
		{method: "GET", path: "/v2", serve: (*call).server},
		{method: "GET", path: "/v2/docs/openapi.json", serve: (*call).openAPI, open: true},
		{method: "POST", path: model + "/infer", serve: (*call).infer},
		{method: "POST", path: model + version + "/infer", serve: (*call).infer},
		{method: "GET", both: true, path: model + "/latest", serve: (*call).latest},
		{method: "POST", path: "/v2/repository/index", serve: (*call).index},
		{method: "POST", path: "/v2/repository/models/{model}/load", serve: (*call).load, does: "load model"},
		{method: "POST", path: "/v2/repository/models/{model}/unload", serve: (*call).unload, does: "unload model"},
		{method: "GET", path: memory + "/status", serve: (*call).regionStatus},
		{method: "GET", path: memory + "/region/{region}/status", serve: (*call).regionStatus},
		{method: "POST", path: memory + "/region/{region}/register", serve: (*call).registerRegion, does: "register region"},
		{method: "POST", path: memory + "/unregister", serve: (*call).unregisterRegion, does: "unregister region"},
		{method: "POST", path: memory + "/region/{region}/unregister", serve: (*call).unregisterRegion, does: "unregister region"},
		{method: "GET", path: cuda + "/status", serve: (*call).cudaStatus},
		{method: "POST", path: cuda + "/unregister", serve: (*call).unregisterCuda},
		{method: "POST", path: cuda + "/region/{region}/unregister", serve: (*call).unregisterCuda},
		{method: "POST", path: "/{model}/predict", serve: (*call).clipperPredict},
		{method: "POST", path: "/{model}/update", serve: (*call).update},
	}
	for i := range list {
		list[i].steps = strings.Split(list[i].path[1:], "/")
	}
	for _, p := range predict.Paths {
		list = append(list,
			route{method: "GET", path: "/" + strings.Join(p.Steps, "/"),
				serve: func(c *call) error { return c.tell(p) }, open: p.Open, steps: p.Steps})
	}
	return list
}()

// find returns the route of an escaped path, and the names in the path. It ignores a slash at the
// end. Steps are decoded one by one, so that a name with an escaped slash stays one step.
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
	for i := range routes {
		if model, version, ok = predict.Match(routes[i].steps, steps); ok {
			return &routes[i], model, version
		}
	}
	return nil, "", ""
}

// ServeHTTP answers a request.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{door: d, settings: d.settings.Load(), w: w, r: r, conn: r.Context().Value(connKey{}).(*conn)}
	c.conn.answering.Store(true)
	defer c.rescue()
	found, model, version := find(r.URL.EscapedPath())
	if c.crossOrigin(found) {
		return
	}
	c.model, c.version = model, version
	c.who = c.identify()
	defer c.use.End()
	if err := c.admit(found); err != nil {
		c.fail(err)
	}
}

// admit serves a request if its client has the right and the quota for it. Whatever has a body is
// charged, also if its path does not exist.
func (c *call) admit(found *route) error {
	if found == nil || !found.open || c.r.Body != http.NoBody {
		if err := c.charge(); err != nil {
			return err
		}
	}
	if found == nil {
		return &refusal{status: http.StatusNotFound,
			err: fmt.Errorf("no such path: %s; /v2/docs/openapi.json lists all paths", c.r.URL.Path)}
	}
	if methods := found.methods(); !slices.Contains(methods, c.r.Method) {
		c.w.Header().Set("Allow", strings.Join(methods, ", "))
		return &refusal{status: http.StatusMethodNotAllowed,
			err: fmt.Errorf("%s takes %s, not %s", c.r.URL.Path, methods[0], c.r.Method)}
	}
	if found.open {
		return found.serve(c)
	}
	err := c.who.Enter()
	if err == nil {
		return found.serve(c)
	}
	if found.does != "" {
		action, what, _ := strings.Cut(found.does, " ")
		c.door.predict.As(nil).Refused(c.source(), action, what, c.model, err)
	}
	return err
}

// identify returns the identity that a request comes from. A browser shows its user's certificate
// for any page that asks, so requests of pages of other origins have no identity.
func (c *call) identify() *access.Identity {
	shown := access.Bearer(access.InHeader, c.r.Header["Authorization"])
	if c.conn.certificate != nil && (!listen.SentByPage(c.r) || c.ownPage() == nil) {
		shown.Certificate = c.conn.certificate
	}
	return c.door.identities.Who(&shown)
}

// charge takes what the request costs from its client's quotas. Parts of the body that were not
// announced are charged as they arrive.
func (c *call) charge() error {
	now := time.Now()
	err := c.conn.Claim(c.who.Account())
	if err != nil {
		c.w.Header().Set("Connection", "close")
		c.conn.Because(metrics.ClosedQuota)
	} else {
		err = c.conn.Charge(&c.use, c.who.Payers(c.conn.Account()), c.announced(), now)
	}
	if err != nil {
		return c.countRefusal(err, now)
	}
	c.charged = true
	return nil
}

// announced is the size of the body as far as the head tells it. A size above the limit is refused
// before any of the body is read.
func (c *call) announced() int64 {
	return max(0, min(c.r.ContentLength, c.settings.Limits.MessageBytes))
}

// service is the door's service for the caller.
func (c *call) service() *predict.Service { return c.door.predict.As(c.who) }

// rescue, deferred, answers a panic with an error. An answer that has begun is broken off, so that
// the client does not take it for complete.
func (c *call) rescue() {
	switch p := recover(); p {
	case nil:
	case http.ErrAbortHandler:
		panic(p)
	default:
		c.door.log.Error("panic while serving a request", "path", c.r.URL.Path, "panic", p, "stack",
			string(bytes.TrimSpace(debug.Stack())))
		if c.begun {
			panic(http.ErrAbortHandler)
		}
		c.fail(&refusal{status: http.StatusInternalServerError, err: errBug})
	}
}
