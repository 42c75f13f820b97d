package admin

import (
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
	"strconv"
	"strings"
	"time"
)

// An Error is an answer that says no.
type Error struct {
	Status int // of HTTP
	Text   string
}

func (e *Error) Error() string { return e.Text }

func refuse(status int, format string, args ...any) *Error {
	return &Error{status, fmt.Sprintf(format, args...)}
}

// refuseAll is one error for all that is wrong with what was sent; nil if nothing is.
func refuseAll(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	const most = 100 // of a document there may be a fault for every line
	if more := len(faults) - most; more > 0 {
		faults = append(slices.Clip(faults[:most]), fmt.Sprintf("and %d faults more", more))
	}
	return refuse(http.StatusBadRequest, "%s", strings.Join(faults, "; "))
}

// How long a client may take to read an answer. A profile also needs its own seconds, and a
// container those of loading its model.
const (
	writeTimeout = 30 * time.Second
	longTimeout  = 10 * time.Minute
)

// A route is a path of the door and what it takes there.
type route struct {
	path    string // as http.ServeMux has it
	methods methods
	timeout time.Duration   // 0 is writeTimeout
	opened  <-chan struct{} // what is asked before waits for it; nil: nothing does
}

// methods are what a path does, by HTTP method. GET stands for HEAD as well.
type methods map[string]http.HandlerFunc

// routes are all paths but the root.
func (s Sources) routes() []route {
	list := []route{
		{path: "/livez", methods: methods{"GET": s.live}},
		{path: "/readyz", methods: methods{"GET": s.ready}},
		{path: "/metrics", methods: methods{"GET": func(w http.ResponseWriter, r *http.Request) { s.Metrics.ServeHTTP(w, r) }}},
		{path: "/v1/apps", methods: methods{"GET": s.apps, "POST": s.createApp}},
		{path: "/v1/apps/{name}", methods: methods{"GET": s.app, "PUT": s.putApp, "PATCH": s.patchApp, "DELETE": s.deleteApp}},
		{path: "/v1/apps/{name}/links", methods: methods{"POST": s.link, "DELETE": s.unlink}},
		{path: "/v1/apps/{name}/policy", methods: methods{"GET": s.learned, "DELETE": s.forget}},
		{path: "/v1/apps/{name}/feedback", methods: methods{"POST": s.feedback}},
		{path: "/v1/policies", methods: methods{"GET": s.policies}},
		{path: "/v1/models", methods: methods{"GET": s.models}},
		{path: "/v1/models/{name}", methods: methods{"GET": s.model, "PATCH": s.setModel}},
		{path: "/v1/models/{name}/explain", methods: methods{"GET": s.explain}},
		{path: "/v1/models/{name}/cache", methods: methods{"GET": s.cache, "DELETE": s.clearCache}},
		{path: "/v1/models/{name}/default_version", methods: methods{"PUT": s.setDefaultVersion}},
		{path: "/v1/models/{name}/versions", methods: methods{"GET": s.model}},
		{path: "/v1/models/{name}/versions/{version}", methods: methods{"GET": s.version}},
		{path: "/v1/history/{name}", methods: methods{"GET": s.history}},
		{path: "/v1/containers", methods: methods{"GET": s.containers}},
		{path: "/v1/containers/{name}/start", methods: methods{"POST": s.startContainer}, timeout: longTimeout},
		{path: "/v1/containers/{name}/restart", methods: methods{"POST": s.restartContainer}, timeout: longTimeout},
		{path: "/v1/containers/{name}/stop", methods: methods{"POST": s.stopContainer}, timeout: longTimeout},
		{path: "/v1/export", methods: methods{"GET": s.export}},
		{path: "/v1/import", methods: methods{"POST": s.importState}, timeout: longTimeout},
		{path: "/v1/status", methods: methods{"GET": s.status}},
		{path: "/v1/config", methods: methods{"GET": s.config}},
		{path: "/v1/config/reload", methods: methods{"POST": s.reload}, timeout: longTimeout},
		{path: "/v1/openapi.json", methods: methods{"GET": openAPI}},
	}
	return append(list, s.profiles()...)
}

// Handler returns the door's HTTP handler.
func Handler(s Sources) http.Handler {
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	mux := http.NewServeMux()
	var paths []string
	for _, r := range s.routes() {
		if r.path != "/livez" && r.path != "/readyz" && !strings.HasPrefix(r.path, "/debug/") {
			r.opened = s.Opened
		}
		mux.Handle(r.path, r)
		if !strings.HasPrefix(r.path, "/debug/pprof/") || r.path == "/debug/pprof/" {
			paths = append(paths, r.path)
		}
	}
	mux.Handle("/{$}", route{path: "/", methods: methods{"GET": func(w http.ResponseWriter, r *http.Request) {
		s.write(w, http.StatusOK, map[string]any{"server": "shivad", "version": s.Version, "paths": paths})
	}}})
	mux.HandleFunc("/", notFound)
	return s.guard(mux)
}

// guard keeps strangers out, and answers bugs, and paths that the mux would redirect in HTML, with
// JSON.
func (s Sources) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
			s.answer(w, 0, nil, err)
			return
		}
		if p := r.URL.Path; p != path.Clean(p) && p != "/debug/pprof/" {
			notFound(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

const internal = "internal error; the server's log has more"

// ServeHTTP allows the methods of the route, and gives the client time to send what it asks and to
// read the answer.
func (t route) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	h := t.methods[method]
	if h == nil {
		allowed := slices.Sorted(maps.Keys(t.methods))
		if t.methods[http.MethodGet] != nil {
			allowed = append(allowed, http.MethodHead)
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		fail(w, http.StatusMethodNotAllowed, fmt.Sprintf("%s takes %s, not %s", r.URL.Path, strings.Join(allowed, ", "), r.Method))
		return
	}
	timeout := t.timeout
	if timeout == 0 {
		timeout = writeTimeout
	}
	// A writer without deadlines is one of a test.
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(timeout))
	if method != http.MethodGet {
		_ = control.SetReadDeadline(time.Now().Add(timeout))
	}
	// A page in the operator's browser can send other types to localhost without asking, but not
	// these. What has no body says so too: it changes something nonetheless. A browser asks before
	// any DELETE.
	if method != http.MethodGet && method != http.MethodDelete {
		kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if err != nil || kind != "application/json" && (method != http.MethodPatch || kind != "application/merge-patch+json") {
			fail(w, http.StatusUnsupportedMediaType, fmt.Sprintf("%s is sent as Content-Type: application/json", method))
			return
		}
	}
	if t.opened != nil {
		select {
		case <-t.opened:
		case <-r.Context().Done():
			return
		}
	}
	h(w, r)
}

func notFound(w http.ResponseWriter, r *http.Request) {
	fail(w, http.StatusNotFound, fmt.Sprintf("no such path: %s; GET / lists those that there are", r.URL.Path))
}

func (s Sources) live(w http.ResponseWriter, r *http.Request) {
	s.write(w, http.StatusOK, map[string]bool{"live": true})
}

func (s Sources) ready(w http.ResponseWriter, r *http.Request) {
	ready := s.Report.Ready()
	status := http.StatusOK
	if !ready.Ready {
		status = http.StatusServiceUnavailable
	}
	s.write(w, status, ready)
}

func (s Sources) status(w http.ResponseWriter, r *http.Request) {
	s.write(w, http.StatusOK, s.Report.Status())
}

func (s Sources) config(w http.ResponseWriter, r *http.Request) {
	s.write(w, http.StatusOK, s.Settings.Config())
}

// maxBody bounds what is sent, in bytes, but for an import.
const maxBody = 16 << 20

// body reads what was sent.
func body(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, refuse(http.StatusRequestEntityTooLarge, "%d bytes were sent, or more: the limit of %s is %d", tooLarge.Limit+1, r.URL.Path, most)
	}
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "what was sent cannot be read: %v", err)
	}
	return b, nil
}

// audit logs a change: who made it, and what was before and is after; nil for nothing.
func (s Sources) audit(r *http.Request, what, name string, before, after any) {
	s.Log.Info("changed by an operator", "what", what, "name", name, "from", r.RemoteAddr, "before", text(before), "after", text(after))
	if s.History != nil {
		s.History.Changed(r.RemoteAddr, what, name, text(before)+" → "+text(after))
	}
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// answer answers with a value, or with the error if there is one.
func (s Sources) answer(w http.ResponseWriter, status int, v any, err error) {
	if err == nil {
		s.write(w, status, v)
		return
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		s.Log.Error("admin: internal error", "error", err)
		e = refuse(http.StatusInternalServerError, internal)
	}
	if e.Status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", strconv.Itoa(1))
	}
	fail(w, e.Status, e.Text)
}

// write answers with a value as JSON.
func (s Sources) write(w http.ResponseWriter, status int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		s.Log.Error("admin: answer is not JSON", "error", err)
		fail(w, http.StatusInternalServerError, internal)
		return
	}
	respond(w, status, body)
}

// fail answers with an error.
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
	w.Write(append(body, '\n')) // an error means the client has gone
}
