package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/shiva/plural"
)

// An Error is an answer that refuses a request.
type Error struct {
	Status int // of HTTP
	Text   string
}

func (e *Error) Error() string { return e.Text }

func refuse(status int, format string, args ...any) *Error {
	return &Error{status, fmt.Sprintf(format, args...)}
}

// refuseAll makes one error of everything that is wrong with a body; nil if nothing is.
func refuseAll(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	const most = 100 // a document may have a fault in every line
	if more := len(faults) - most; more > 0 {
		faults = append(slices.Clip(faults[:most]), "and "+plural.Of(more, "more fault"))
	}
	return refuse(http.StatusBadRequest, "%s", strings.Join(faults, "; "))
}

// How long a client may take to read an answer. A profile adds the seconds that were requested, and
// a container the time that its model takes to load.
const (
	writeTimeout = 30 * time.Second
	longTimeout  = 10 * time.Minute
)

// A route is a path of the door, and what a client needs to use it.
type route struct {
	path      string // as http.ServeMux has it
	methods   methods
	timeout   time.Duration // 0 is writeTimeout
	early     bool          // it is answered before the server is open
	need      need
	unaudited bool         // no method changes anything of an operator's: refusals are not audited
	most      func() int64 // bytes that may be sent; nil is maxBody
}

// need is the right that a client of a path must have.
type need uint8

const (
	needRight    need = iota // the right to read for GET, to change for all other methods
	needRead                 // the right to read, for any method
	needIdentity             // any identity
	needNothing              // no right: health is public
)

// permit returns an error if the client lacks the right.
func (n need) permit(who *access.Identity, method string) error {
	var err error
	switch {
	case n == needIdentity:
		err = who.Enter()
	case n == needRead || n == needRight && method == http.MethodGet:
		err = who.Check(access.AdminRead, "")
	case n == needRight:
		err = who.Check(access.AdminWrite, "")
	}
	switch {
	case errors.Is(err, fault.ErrUnauthenticated):
		return refuse(http.StatusUnauthorized, "%v", err)
	case err != nil:
		return refuse(http.StatusForbidden, "%v", err)
	}
	return nil
}

// whoKey is the key, in a request's context, of the identity that sent it, as of its arrival: a
// reload may remove the identity while a long request runs.
type whoKey struct{}

// who returns the client's identity now.
func (s Sources) who(r *http.Request) *access.Identity {
	if s.Identities == nil {
		return nil
	}
	shown := access.Bearer(access.InHeader, r.Header["Authorization"])
	if k, ok := r.Context().Value(connKey{}).(*boundedConn); ok {
		shown.Certificate = k.certificate()
	}
	return s.Identities.Who(&shown)
}

// methods are the handlers of a path by HTTP method. GET stands for HEAD as well.
type methods map[string]handler

// A handler answers a request with a value, which is sent as JSON, or with an error. The value may
// be a reply, or an http.HandlerFunc that writes something other than JSON.
type handler func(*http.Request) (any, error)

// A reply is a value with a status other than 200.
type reply struct {
	status   int
	location string // of a new resource; "": none was made
	body     any
}

// withBody is the handler of a request that has a body.
func withBody(h func(r *http.Request, sent []byte) (any, error)) handler {
	return func(r *http.Request) (any, error) {
		sent, err := body(r)
		if err != nil {
			return nil, err
		}
		return h(r, sent)
	}
}

// always answers with the same value.
func always(v any) handler { return func(*http.Request) (any, error) { return v, nil } }

// health are the paths that need no right.
func (s Sources) health() []route {
	return []route{
		{path: "/livez", early: true, need: needNothing, methods: methods{"GET": always(map[string]bool{"live": true})}},
		{path: "/readyz", early: true, need: needNothing, methods: methods{"GET": s.ready}},
	}
}

// routes are all paths except the root.
func (s Sources) routes() []route {
	apps, pipelines := s.applications(), s.pipelines()
	list := []route{
		{path: "/metrics",
			methods: methods{
				"GET": always(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					s.Metrics.ServeHTTP(w, r)
				}))}},
		{path: "/v1/apps", methods: methods{"GET": apps.list, "POST": withBody(apps.create)}},
		{path: "/v1/apps/{name}",
			methods: methods{"GET": apps.show, "PUT": withBody(apps.put), "PATCH": withBody(apps.patch),
				"DELETE": apps.delete}},
		{path: "/v1/apps/{name}/links", methods: methods{"POST": withBody(s.link), "DELETE": s.unlink}},
		{path: "/v1/apps/{name}/policy", methods: methods{"GET": s.learned, "DELETE": s.forget}},
		{path: "/v1/apps/{name}/feedback", unaudited: true, methods: methods{"POST": withBody(s.feedback)}},
		{path: "/v1/pipelines", methods: methods{"GET": pipelines.list, "POST": withBody(s.createPipeline)}},
		{path: "/v1/pipelines/{name}",
			methods: methods{"GET": s.pipeline, "PUT": withBody(pipelines.put), "PATCH": withBody(pipelines.patch),
				"DELETE": pipelines.delete}},
		{path: "/v1/pipelines/{name}/drawing", methods: methods{"GET": s.drawPipeline}},
		{path: "/v1/policies", methods: methods{"GET": s.policies}},
		{path: "/v1/models", methods: methods{"GET": s.models}},
		{path: "/v1/models/{name}", methods: methods{"GET": s.model, "PATCH": withBody(s.setModel)}},
		{path: "/v1/models/{name}/explain", methods: methods{"GET": s.explain}},
		{path: "/v1/models/{name}/streams", methods: methods{"GET": s.streams}},
		{path: "/v1/models/{name}/latest", methods: methods{"GET": s.newest}},
		{path: "/v1/models/{name}/cache", methods: methods{"GET": s.cache, "DELETE": s.clearCache}},
		{path: "/v1/models/{name}/default_version", methods: methods{"PUT": withBody(s.setDefaultVersion)}},
		{path: "/v1/models/{name}/versions", methods: methods{"GET": s.model}},
		{path: "/v1/models/{name}/versions/{version}", methods: methods{"GET": s.version}},
		{path: "/v1/models/{name}/load", need: needIdentity, methods: methods{"POST": s.load}, timeout: longTimeout},
		{path: "/v1/models/{name}/unload", need: needIdentity, methods: methods{"POST": s.unload},
			timeout: longTimeout},
		{path: "/v1/models/{name}/try", need: needRead, methods: methods{"POST": withBody(s.try)}},
		{path: "/v1/history/{name}", methods: methods{"GET": s.history}},
		{path: "/v1/containers", methods: methods{"GET": s.containers}},
		{path: "/v1/containers/{name}/start", methods: methods{"POST": s.operate(Operator.Start)},
			timeout: longTimeout},
		{path: "/v1/containers/{name}/restart", methods: methods{"POST": s.operate(Operator.Restart)},
			timeout: longTimeout},
		{path: "/v1/containers/{name}/stop", methods: methods{"POST": s.operate(Operator.Stop)}, timeout: longTimeout},
		{path: "/v1/audit", methods: methods{"GET": s.trail}},
		{path: "/v1/logs", methods: methods{"GET": s.logs}},
		{path: "/v1/export", methods: methods{"GET": s.export}},
		{path: "/v1/import", methods: methods{"POST": s.importState}, timeout: longTimeout,
			most: func() int64 { return s.access().ImportBytes }},
		{path: "/v1/status", methods: methods{"GET": s.status}},
		{path: "/v1/config", methods: methods{"GET": s.config}},
		{path: "/v1/config/reload", methods: methods{"POST": s.reload}, timeout: longTimeout},
		{path: "/v1/whoami", early: true, need: needIdentity,
			methods: methods{"GET": func(r *http.Request) (any, error) { return s.who(r).Describe(), nil }}},
		{path: "/v1/watch", methods: methods{"GET": newFeed(s).watch}},
		{path: "/v1/openapi.json", need: needNothing, methods: methods{"GET": always(http.HandlerFunc(openAPI))}},
	}
	return slices.Concat(s.health(), list, s.profiles())
}

// Handler returns the door's HTTP handler.
func Handler(s Sources) http.Handler {
	s.Log = cmp.Or(s.Log, slog.New(slog.DiscardHandler))
	mux := http.NewServeMux()
	var paths []string
	for _, t := range s.routes() {
		mux.Handle(t.path, s.serve(t))
		if !strings.HasPrefix(t.path, "/debug/pprof/") || t.path == "/debug/pprof/" {
			paths = append(paths, t.path)
		}
	}
	list := s.serve(
		route{early: true, methods: methods{"GET": always(map[string]any{"server": "shivad", "version": s.Version, "paths": paths})}})
	mux.HandleFunc("/{$}", pageOr(list))
	mux.Handle("/page/",
		s.serve(route{early: true, need: needNothing, methods: methods{"GET": always(http.HandlerFunc(servePage))}}))
	// Where browsers look for the icon of what is no page, such as the description of the API.
	mux.Handle("/favicon.ico", s.serve(route{early: true, need: needNothing,
		methods: methods{"GET": always(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			pageAt(w, r, "/page/icon.png")
		}))}}))
	mux.Handle(manualPath,
		s.serve(route{early: true, need: needNothing, methods: methods{"GET": always(http.HandlerFunc(serveManual))}}))
	mux.HandleFunc("/", notFound)
	return s.guard(mux)
}

// HealthHandler returns a handler of /livez and /readyz alone, for probes where the rest must not
// be open.
func HealthHandler(s Sources) http.Handler {
	s.Log = cmp.Or(s.Log, slog.New(slog.DiscardHandler))
	mux := http.NewServeMux()
	for _, t := range s.health() {
		mux.Handle(t.path, s.serve(t))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, "this address (admin.health) has /livez and /readyz only")
	})
	return s.guard(mux)
}

// guard refuses requests of other sites' pages, and sees to bodies that nobody reads. It answers in
// JSON where a handler panics, and where the mux would redirect in HTML.
func (s Sources) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			u := &upload{ResponseWriter: w, ReadCloser: r.Body, sources: &s, request: r}
			defer u.finish()
			w, r.Body = u, u
		}
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler {
					panic(p)
				}
				s.Log.Error("admin: panic", "path", r.URL.Path, "panic", p)
				fail(w, http.StatusInternalServerError, internal)
			}
		}()
		if err := s.access().check(r); err != nil {
			s.answer(w, r, nil, err)
			return
		}
		if p := r.URL.Path; p != path.Clean(p) && p != "/debug/pprof/" && p != manualPath {
			notFound(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

const internal = "internal error; see the server's log"

// serve allows the methods of a route, and sets how long the client may take to send its request
// and to read the answer.
func (s Sources) serve(t route) http.HandlerFunc {
	allowed := slices.Sorted(maps.Keys(t.methods))
	if t.methods[http.MethodGet] != nil {
		allowed = append(allowed, http.MethodHead)
	}
	timeout := cmp.Or(t.timeout, writeTimeout)
	return func(w http.ResponseWriter, r *http.Request) {
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		h := t.methods[method]
		if h == nil {
			w.Header().Set("Allow", strings.Join(allowed, ", "))
			fail(w, http.StatusMethodNotAllowed,
				fmt.Sprintf("%s takes %s, not %s", r.URL.Path, strings.Join(allowed, ", "), r.Method))
			return
		}
		who := s.who(r)
		r = r.WithContext(context.WithValue(r.Context(), whoKey{}, who))
		if err := t.need.permit(who, method); err != nil {
			if method != http.MethodGet && t.need == needRight && !t.unaudited {
				s.Trail.Add(access.Entry{Source: s.source(r), Action: method, What: "path", Name: r.URL.Path,
					Refused: true, Error: err.Error()})
			}
			s.answer(w, r, nil, err)
			return
		}
		// Errors do not matter: only the writers of tests lack deadlines.
		control := http.NewResponseController(w)
		_ = control.SetWriteDeadline(time.Now().Add(timeout))
		if method != http.MethodGet {
			_ = control.SetReadDeadline(time.Now().Add(timeout))
		}
		// A page in the operator's browser can send other types to localhost without a preflight
		// request, but not this one. Requests without a body need it too, since they change
		// something. A browser always sends a preflight request for DELETE.
		if method != http.MethodGet && method != http.MethodDelete {
			kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
			if err != nil || kind != "application/json" && (method != http.MethodPatch || kind != "application/merge-patch+json") {
				fail(w, http.StatusUnsupportedMediaType, fmt.Sprintf("%s requires Content-Type: application/json", method))
				return
			}
		}
		if s.Await != nil && !t.early {
			if err := s.Await(r.Context()); err != nil {
				s.answer(w, r, nil, err)
				return
			}
		}
		most := int64(maxBody)
		if t.most != nil {
			most = t.most()
		}
		r.Body = http.MaxBytesReader(w, r.Body, most)
		v, err := h(r)
		s.answer(w, r, v, err)
	}
}

func notFound(w http.ResponseWriter, r *http.Request) {
	fail(w, http.StatusNotFound, fmt.Sprintf("no such path: %s; GET / lists all paths", r.URL.Path))
}

// ready tells any client whether the server is ready, and why not if the client may see its models.
func (s Sources) ready(r *http.Request) (any, error) {
	ready := s.Report.Ready()
	if !s.who(r).May(access.AdminRead, "") {
		ready = admin.Readiness{Ready: ready.Ready, State: ready.State}
	}
	status := http.StatusOK
	if !ready.Ready {
		status = http.StatusServiceUnavailable
	}
	return reply{status: status, body: ready}, nil
}

func (s Sources) status(*http.Request) (any, error) { return s.Report.Status(), nil }

func (s Sources) config(*http.Request) (any, error) { return s.Settings.Config(), nil }

// maxBody bounds the body of a request, in bytes, except for an import.
const maxBody = 16 << 20

// body reads the body of a request.
func body(r *http.Request) ([]byte, error) {
	b, err := io.ReadAll(r.Body)
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, refuse(http.StatusRequestEntityTooLarge, "the body has at least %d bytes: the limit of %s is %d",
			tooLarge.Limit+1, r.URL.Path, tooLarge.Limit)
	}
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "the body cannot be read: %v", err)
	}
	return b, nil
}

// source returns the sender of a request, for the audit trail.
func (s Sources) source(r *http.Request) access.Source {
	who, _ := r.Context().Value(whoKey{}).(*access.Identity)
	return access.Source{Identity: who.Name(), Address: r.RemoteAddr, Door: "admin"}
}

// An act is what an operator did to something.
type act struct {
	action, what, name string
	before, after      any   // its values; nil: none
	err                error // what stopped it part-way
}

// audit records an act and its author.
func (s Sources) audit(r *http.Request, a act) {
	e := access.Entry{
		Source: s.source(r), Action: a.action, What: a.what, Name: a.name,
		Before: access.AuditText(a.before), After: access.AuditText(a.after),
	}
	if a.err != nil {
		e.Error = refusal(a.err).Error()
	}
	s.Trail.Add(e)
	s.chronicle(r, a.what, a.name, a.before, a.after)
}

// chronicle records a change in the history of a model or an application.
func (s Sources) chronicle(r *http.Request, what, name string, before, after any) {
	if s.History != nil {
		s.History.Changed(s.source(r).String(), what, name, textOrNull(before)+" → "+textOrNull(after))
	}
}

// textOrNull is access.AuditText, but nil is "null".
func textOrNull(v any) string { return cmp.Or(access.AuditText(v), "null") }

// answer writes what a handler returns.
func (s Sources) answer(w http.ResponseWriter, r *http.Request, v any, err error) {
	if err = refusal(err); err != nil {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			s.Log.Error("admin: internal error", "error", err)
			e = refuse(http.StatusInternalServerError, internal)
		}
		if e.Status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", access.Challenge)
		}
		if e.Status == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "1")
		}
		fail(w, e.Status, e.Text)
		return
	}
	if write, ok := v.(http.HandlerFunc); ok {
		write(w, r)
		return
	}
	out, ok := v.(reply)
	if !ok {
		out = reply{status: http.StatusOK, body: v}
	}
	body, err := json.MarshalIndent(out.body, "", "  ")
	if err != nil {
		s.Log.Error("admin: answer is not JSON", "error", err)
		fail(w, http.StatusInternalServerError, internal)
		return
	}
	if out.location != "" {
		w.Header().Set("Location", out.location)
	}
	respond(w, out.status, body)
}

// fail writes an error.
func fail(w http.ResponseWriter, status int, message string) {
	body, _ := json.Marshal(map[string]string{"error": message}) // a map of strings always marshals
	respond(w, status, body)
}

func respond(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	w.Write(append(body, '\n')) // an error means that the client has disconnected
}
