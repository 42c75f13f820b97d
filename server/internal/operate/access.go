package operate

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"net/url"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/server/internal/listen"
)

// Access determines who may use the door, and for what. It may change while the door serves.
type Access struct {
	// Hosts are the names by which clients may address the door, besides addresses and localhost;
	// pages of these hosts may use it. "*" allows any name, so that a page of any host can use the
	// door with the rights of its visitor.
	Hosts []string
	// Profiling offers profiles of the process, which take processor time and show what is in its
	// memory.
	Profiling bool
	// ImportBytes is the size of the largest import.
	ImportBytes int64
}

// check returns an error for a request that a page of another site may have sent.
func (a Access) check(r *http.Request) error {
	if !listen.NamedHost(r.Host, a.Hosts) && !slices.Contains(a.Hosts, "*") {
		return refuse(http.StatusForbidden, "the host %.200q is not a name of this endpoint: use an IP address, localhost, or a name that admin.hosts lists", r.Host)
	}
	// Following a link changes nothing.
	followed := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
		r.Header.Get("Sec-Fetch-Dest") == "document"
	if followed && r.Header.Get("Origin") == "" {
		return nil
	}
	err := listen.ForeignPage(r, func(origin *url.URL) bool {
		return slices.ContainsFunc(a.Hosts, func(name string) bool {
			return strings.EqualFold(name, origin.Hostname())
		})
	})
	if err != nil {
		return refuse(http.StatusForbidden, "%v; admin.hosts lists the names whose pages may use this endpoint", err)
	}
	return nil
}

// profiles are the paths of the Go runtime's profiles. The command line is reduced to the name of
// the program: its arguments may contain a password.
func (s Sources) profiles() []route {
	var list []route
	for name, h := range map[string]http.HandlerFunc{
		"": profileLocks, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace,
		"cmdline": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, os.Args[0]) },
	} {
		list = append(list,
			route{path: "/debug/pprof/" + name, early: true, timeout: longTimeout,
				methods: methods{"GET": func(*http.Request) (any, error) {
					if !s.access().Profiling {
						return nil, refuse(http.StatusNotFound, "profiling is off: admin.profiling = true switches it on")
					}
					return h, nil
				}}})
	}
	return list
}

// profileLocks is pprof.Index. It has the runtime record who waits for locks and channels (mutex,
// block) as long as such a profile is being taken: "mutex?seconds=5".
func profileLocks(w http.ResponseWriter, r *http.Request) {
	switch path.Base(r.URL.Path) {
	case "mutex":
		defer runtime.SetMutexProfileFraction(runtime.SetMutexProfileFraction(10))
	case "block":
		runtime.SetBlockProfileRate(int(10 * time.Microsecond))
		defer runtime.SetBlockProfileRate(0)
	}
	pprof.Index(w, r)
}

// access returns the Access in effect.
func (s Sources) access() Access {
	if s.Access == nil {
		return Access{ImportBytes: maxBody}
	}
	return s.Access()
}
