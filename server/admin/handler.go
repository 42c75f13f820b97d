package admin

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"net/http/pprof"
	"path"
	"slices"
	"strings"
	"time"
)

// Sources is what the door shows. Each function may be called from several goroutines at once, and returns
// what the door may keep. Slices are shown in their order.
type Sources struct {
	Version string
	Ready   func() Readiness
	Models  func() []Model // by name, then newest version first
	Status  func() Status
	Config  func() any // what json.Marshal makes of it is shown
	Explain func(model string) []Explanation
	// Set changes settings of a model while it serves: all of them, or none and an error that says why.
	// Keys and values are those of [model.NAME] in the file, values without quotes.
	Set func(model string, settings map[string]string) error
	// ClearCache lets go what is kept of a model's answers, and tells how much that was.
	ClearCache func(model string) (entries, bytes int64, err error)
	Metrics    http.Handler
	Log        *slog.Logger // nil is silent
}

// writeTimeout is what a client may take to read an answer; a profile also needs its own seconds.
const (
	writeTimeout   = 30 * time.Second
	profileTimeout = 10 * time.Minute
)

// Handler returns the door's HTTP handler.
func Handler(s Sources) http.Handler {
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	mux := http.NewServeMux()
	handle := func(pattern string, h http.HandlerFunc) {
		mux.HandleFunc(pattern, get(writeTimeout, h))
	}
	handle("/livez", func(w http.ResponseWriter, r *http.Request) {
		s.write(w, http.StatusOK, map[string]bool{"live": true})
	})
	handle("/readyz", func(w http.ResponseWriter, r *http.Request) {
		ready := s.Ready()
		status := http.StatusOK
		if !ready.Ready {
			status = http.StatusServiceUnavailable
		}
		s.write(w, status, ready)
	})
	handle("/metrics", s.Metrics.ServeHTTP)
	handle("/v1/models", s.models)
	handle("/v1/models/{name}/explain", s.explain)
	mux.HandleFunc("/v1/models/{name}", s.modelOrSet)
	mux.HandleFunc("/v1/models/{name}/cache", getOrDelete(s.cache))
	handle("/v1/models/{name}/versions/{version}", s.version)
	handle("/v1/status", func(w http.ResponseWriter, r *http.Request) { s.write(w, http.StatusOK, s.Status()) })
	handle("/v1/config", func(w http.ResponseWriter, r *http.Request) { s.write(w, http.StatusOK, s.Config()) })

	for name, h := range map[string]http.HandlerFunc{
		"": pprof.Index, "cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace,
	} {
		mux.HandleFunc("/debug/pprof/"+name, get(profileTimeout, h))
	}

	handle("/{$}", func(w http.ResponseWriter, r *http.Request) {
		s.write(w, http.StatusOK, map[string]any{"server": "shivad", "version": s.Version, "paths": paths})
	})
	mux.HandleFunc("/", notFound)
	return s.guard(mux)
}

// paths is what the root shows to whoever looks around.
var paths = []string{"/livez", "/readyz", "/metrics", "/v1/models", "/v1/models/{name}", "/v1/models/{name}/explain", "/v1/models/{name}/cache", "/v1/models/{name}/versions/{version}", "/v1/status", "/v1/config", "/debug/pprof/"}

// guard answers bugs, and paths that the mux would redirect in HTML, with JSON.
func (s Sources) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler {
					panic(p)
				}
				s.Log.Error("admin: panic", "path", r.URL.Path, "panic", p)
				fail(w, http.StatusInternalServerError, "internal error; the server's log has more")
			}
		}()
		if p := r.URL.Path; p != path.Clean(p) && p != "/debug/pprof/" {
			notFound(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// get allows GET and HEAD, and gives the client time to read the answer.
func get(timeout time.Duration, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			fail(w, http.StatusMethodNotAllowed, fmt.Sprintf("%s is read with GET, not %s", r.URL.Path, r.Method))
			return
		}
		// A writer without deadlines is one of a test.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(timeout))
		h(w, r)
	}
}

func notFound(w http.ResponseWriter, r *http.Request) {
	fail(w, http.StatusNotFound, fmt.Sprintf("no such path: %s; there are %s", r.URL.Path, strings.Join(paths, ", ")))
}

func (s Sources) models(w http.ResponseWriter, r *http.Request) {
	models := s.Models()
	if models == nil {
		models = []Model{}
	}
	s.write(w, http.StatusOK, ModelList{models})
}

// A ModelList is the answer to /v1/models.
type ModelList struct {
	Models []Model `json:"models"`
}

// ModelVersions is the answer to /v1/models/{name}.
type ModelVersions struct {
	Name           string  `json:"name"`
	DefaultVersion string  `json:"default_version"`
	Versions       []Model `json:"versions"`
}

func (s Sources) model(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	out := ModelVersions{Name: name}
	for _, m := range s.Models() {
		if m.Name == name {
			out.Versions = append(out.Versions, m)
			if m.Default {
				out.DefaultVersion = m.Version
			}
		}
	}
	if out.Versions == nil {
		fail(w, http.StatusNotFound, fmt.Sprintf("no model %q; /v1/models lists them", name))
		return
	}
	s.write(w, http.StatusOK, out)
}

// maxSettings bounds the body of a change of settings, in bytes.
const maxSettings = 64 << 10

// modelOrSet shows a model, or with PATCH changes its settings first.
func (s Sources) modelOrSet(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPatch {
		get(writeTimeout, s.model)(w, r)
		return
	}
	name := r.PathValue("name")
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(writeTimeout))
	_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
	// A page in the operator's browser can send other types to localhost without asking, but not this one.
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		fail(w, http.StatusUnsupportedMediaType, "settings are sent as Content-Type: application/json")
		return
	}
	var settings map[string]string
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSettings)).Decode(&settings); err != nil || len(settings) == 0 {
		fail(w, http.StatusBadRequest, `expected a JSON object of settings as texts, such as {"objective": "20ms"}`)
		return
	}
	if !slices.ContainsFunc(s.Models(), func(m Model) bool { return m.Name == name }) {
		fail(w, http.StatusNotFound, fmt.Sprintf("no model %q; /v1/models lists them", name))
		return
	}
	if err := s.Set(name, settings); err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	s.Log.Info("settings changed", "model", name, "settings", settings)
	s.model(w, r)
}

// Explanations is the answer to /v1/models/{name}/explain.
type Explanations struct {
	Versions []Explanation `json:"versions"`
}

// An Explanation says in sentences what a version of a model does, why its batches have the size they have,
// what limits it, and what to change.
type Explanation struct {
	Name      string   `json:"name"`
	Version   string   `json:"version"`
	Sentences []string `json:"sentences"`
}

func (s Sources) explain(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	all := s.Explain(name)
	if len(all) == 0 {
		fail(w, http.StatusNotFound, fmt.Sprintf("no model %q; /v1/models lists them", name))
		return
	}
	s.write(w, http.StatusOK, Explanations{all})
}

func (s Sources) version(w http.ResponseWriter, r *http.Request) {
	name, version := r.PathValue("name"), r.PathValue("version")
	models := s.Models()
	i := slices.IndexFunc(models, func(m Model) bool { return m.Name == name && m.Version == version })
	if i < 0 {
		fail(w, http.StatusNotFound, fmt.Sprintf("no version %q of a model %q; /v1/models lists them", version, name))
		return
	}
	s.write(w, http.StatusOK, models[i])
}

// write answers with a value as JSON.
func (s Sources) write(w http.ResponseWriter, status int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		s.Log.Error("admin: answer is not JSON", "error", err)
		fail(w, http.StatusInternalServerError, "internal error; the server's log has more")
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
