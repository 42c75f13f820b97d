package server

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"os"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/modelfiles"
	"github.com/shivad/shivad/server/internal/operate"
)

// manage builds the fleet of containers, and what operators see and change.
func (s *Server) manage() {
	started := time.Now()
	s.history = operate.NewHistory(s.store, s.settings, s.gate, started, s.stopping, s.log)
	s.containers, s.processes = operate.NewFleet(operate.FleetConfig{
		Name:       "shivad/" + Version,
		Scheduler:  s.sched,
		Gate:       s.gate,
		Pool:       s.pool,
		Arena:      s.arena,
		Network:    s.surroundings.containers,
		Supervise:  s.surroundings.supervise,
		Admit:      s.store.Admit,
		Identities: &s.identities,
		Secure: func(c net.Conn) (*tls.Conn, error) {
			return listen.Handshake(c, s.certificates.config("containers").Config)
		},
		Trail: s.trail,
		Registered: func(conn net.Conn, i containers.SessionInfo) {
			s.history.Arrived(conn, i)
			s.arrived(i)
		},
		RetireAfter: func(model string) time.Duration { return s.settings.Now().Model(model).RetireAfter },
		Linked:      s.store.Linked,
		Stopping:    s.stopping,
		Log:         s.log,
	})
	s.models = modelfiles.New(modelfiles.Config{Fleet: s.processes, Log: s.log, Changed: func(model string) {
		_, _, _ = s.gate.ClearCache(model) // it may have none
	}})
	s.models.Configure(s.cfg)
	s.demand = operate.NewDemand(s.store, s.sched, s.gate, s.log)
	host, _ := os.Hostname() // without a name, operators see the addresses
	s.report = &operate.Report{
		Host:       host,
		Version:    Version,
		Started:    started,
		Phase:      func() string { return *s.phase.Load() },
		Listening:  func() admin.Addresses { return listening(s.Addrs()) },
		Expiring:   s.certificates.expiring,
		Settings:   s.settings,
		Store:      s.store,
		Gate:       s.gate,
		Scheduler:  s.sched,
		Metrics:    s.metrics,
		Pool:       s.pool,
		Unpacked:   s.unpacked,
		Unfinished: s.unfinished,
		Arena:      s.arena.Usage,
		Regions:    s.regions,
		Sessions:   s.containers,
		Processes:  s.processes,
		Files:      s.models,

		Identities: &s.identities,
		Addresses:  &s.addresses,
	}
	s.past = &operate.Past{Report: s.report, Learning: operate.Learning{Store: s.store, Gate: s.gate}}
}

// sources returns the data and the operations of the admin door.
func (s *Server) sources() operate.Sources {
	trials := operate.Trials{Gate: s.gate, Door: s.library}
	return operate.Sources{
		Version:      Version,
		Await:        s.awaitOpen,
		Identities:   &s.identities,
		Addresses:    &s.addresses,
		Access:       s.settings.Access,
		Report:       s.report,
		Settings:     configuration{s.settings, s},
		Applications: operate.Applications(s.store),
		Pipelines:    operate.PipelinesOf(s.report),
		Learning:     operate.Learning{Store: s.store, Gate: s.gate},
		Containers: operate.Containers{Settings: s.settings, Sessions: s.containers, Processes: s.processes,
			Gate: s.gate},
		Repository: operate.Repository{Service: s.predict},
		Documents:  operate.Documents{Store: s.store, Settings: s.settings, Log: s.log},
		History:    s.history,
		ClearCache: s.gate.ClearCache,
		Try:        trials.Try,
		Newest:     trials.Newest,
		Past:       s.past.Since,
		Trail:      s.trail,
		Journal:    s.journal,
		Metrics:    s.metrics.Handler(),
		Log:        s.limited(),
	}
}

// awaitOpen waits until Start has opened the store, and fails if Start has failed.
func (s *Server) awaitOpen(ctx context.Context) error {
	select {
	case <-s.opened:
	case <-ctx.Done():
	}
	_, err := s.store.Registry()
	return err
}

// configuration holds the settings that operators see and change: those of models, and the server's
// own.
type configuration struct {
	*operate.Settings
	server *Server
}

// Config returns the configuration in effect, without passwords.
func (c configuration) Config() any {
	return c.server.share.Load().Apply(c.Now().Redacted())
}

// Reload is Server.reload.
func (c configuration) Reload() (admin.Reloaded, error) { return c.server.reload() }

// listening converts addresses to the admin door's type.
func listening(a Addrs) admin.Addresses {
	list := admin.Addresses{
		Containers: addressStrings(a.Containers), V1b: addressStrings(a.ContainersV1b),
		V2: addressStrings(a.ContainersV2), V2a: addressStrings(a.ContainersV2a),
	}
	doors := maps.Collect(a.Doors())
	for name, at := range list.Doors() {
		*at = addressStrings(*doors[name])
	}
	if a.Admin != nil {
		list.Admin = a.Admin.String()
	}
	if a.Health != nil {
		list.Health = a.Health.String()
	}
	return list
}

func addressStrings(addrs []net.Addr) (list []string) {
	for _, a := range addrs {
		list = append(list, a.String())
	}
	return list
}

// nameOf returns the name of a server among those that share its store, the same after a restart:
// the machine's name and, with a shared store, the address for containers.
func nameOf(c config.State, a Addrs) string {
	host, err := os.Hostname()
	if err != nil {
		host = "server"
	}
	if c.Shared() && len(a.Containers) > 0 {
		host += " " + a.Containers[0].String()
	}
	return host
}
