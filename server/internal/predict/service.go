package predict

import (
	"errors"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/regions"
)

// Config configures a Service. All fields are required.
type Config struct {
	Gate       *gate.Gate
	Repository Repository
	Reach      func() string                   // who may load and unload models: server.repository
	Settings   func(model string) config.Model // settings that apply to a model
	Regions    *regions.Registry               // of shared memory
	Trail      *access.Trail                   // nil: nothing is recorded
	// Changed is called when a client has changed a model.
	Changed func(by, what, name, detail string)
	Version string // of the server
}

// A Service answers the requests of the protocol. See the package comment.
type Service struct {
	gate *gate.Gate
	view gate.View // what the caller may see of the gate
	cfg  *Config
}

// New makes a Service for callers with all rights.
func New(cfg Config) *Service { return &Service{cfg.Gate, cfg.Gate.As(nil), &cfg} }

// As returns the Service for callers with that identity.
func (s *Service) As(who *access.Identity) *Service {
	if who == s.view.Who() {
		return s
	}
	return &Service{s.gate, s.gate.As(who), s.cfg}
}

// Draining reports whether the server is shutting down: it completes requests in flight and refuses
// new ones.
func (s *Service) Draining() bool { return s.gate.Draining() }

// A Readiness is the answer of both ready paths. The protocol's text has only a status; name and
// ready are the Open Inference Protocol's.
type Readiness struct {
	Name  string `json:"name,omitempty"` // of the model
	Ready bool   `json:"ready"`
	Error string `json:"error,omitempty"` // why it is not ready
}

// Ready reports whether the server takes requests.
func (s *Service) Ready() Readiness {
	if ready, reason := s.view.Ready(); !ready {
		return Readiness{Error: reason}
	}
	return Readiness{Ready: true}
}

// ModelReady reports whether requests for a version of a model are answered: a live replica serves
// it, or one is started for them. "" is the default. It fails if there is no such model and none is
// expected.
func (s *Service) ModelReady(name, version string) (Readiness, error) {
	t, err := s.view.Behind(name, version)
	if errors.Is(err, scheduler.ErrUnavailable) { // the model is expected
		return Readiness{Name: name, Error: fault.Text(err)}, nil
	}
	if err != nil {
		return Readiness{}, err
	}
	r := Readiness{Name: name, Ready: t.Serves}
	if !r.Ready {
		of := "it"
		if t.Composite != nil {
			of = "a model that it asks"
		}
		r.Error = fault.Text(scheduler.ErrUnavailable) + ": no container of " + of + " is connected"
	}
	return r, nil
}

// AsksNewest reports whether a caller's requests for a name ask for the newest answer of a stream,
// although they do not say so.
func (s *Service) AsksNewest(who *access.Identity, name string) bool {
	return s.gate.As(who).AsksNewest(name)
}

// CheckAsked returns the error that a request for inference to that model would get, before its
// body is read.
func (s *Service) CheckAsked(name, version string) error {
	t, err := s.view.Asked(name, version)
	if err == nil && t.Composite != nil {
		err = t.Composite.Unlinked(s.view)
	}
	return err
}

// A List names everything that is served. The protocol has no such path; the form is that of
// KServe's servers.
type List struct {
	Models []string `json:"models"` // and applications and routes, sorted
}

// List returns the names of models, applications and routes of the configuration.
func (s *Service) List() List { return List{append([]string{}, s.view.Askable()...)} }
