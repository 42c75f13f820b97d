package operate

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/listen"
)

// Sessions holds the connections with containers: those that connect, and those that the server
// dials.
type Sessions struct {
	cfg       FleetConfig
	processes *Processes
	retiring  retirement

	// Set by Listen and Call, before the server answers any client.
	listener atomic.Pointer[containers.Listener]
	mu       sync.RWMutex
	dialers  []*containers.Dialer
}

func newSessions(cfg FleetConfig) *Sessions {
	return &Sessions{cfg: cfg,
		retiring: retirement{poke: make(chan struct{}, 1), idle: make(map[scheduler.ModelID][]uint64)}}
}

// Listen opens the addresses that containers connect to.
func (ss *Sessions) Listen(c config.Containers) error {
	l, err := containers.Listen(containers.Config{
		Addrs:     c.Listen,
		Access:    c.Access(),
		Others:    c.Others(),
		Open:      ss.cfg.Network.Open,
		Secure:    ss.cfg.Secure,
		Scheduler: ss.cfg.Scheduler,
		Pool:      ss.cfg.Pool,
		Arena:     ss.cfg.Arena,
		Settings:  c.Settings(),
		Allow:     ss.allow,
		Admit:     ss.cfg.Admit,
		Registered: func(conn net.Conn, i containers.SessionInfo) {
			ss.cfg.Registered(conn, i)
			ss.processes.registered(conn, i.Model)
			ss.audit(i, "register")
		},
		Refused:   ss.refused,
		Returns:   ss.processes.returns,
		Served:    ss.processes.served,
		Left:      func(i containers.SessionInfo) { ss.audit(i, "leave") },
		Dismissed: ss.processes.dismissed,
		Silent:    ss.processes.kill,
		Name:      ss.cfg.Name,
		Log:       ss.cfg.Log,
	})
	if err != nil {
		return err
	}
	ss.listener.Store(l)
	return nil
}

// allow returns who a container is, or an error if it may not serve its model.
//
// The server's own processes need no token: the kernel identifies them, and their [[container]]
// says what they serve, which is all that they may serve, whatever token they show. The identity of
// others follows from the token in the container's hello and the verified certificate of its
// connection. While the server has processes of its own, a process of this machine of which it
// cannot tell whether it is one of them needs an identity, too: it may be one that hides in order
// to serve other models.
func (ss *Sessions) allow(a containers.Applicant) (party containers.Party, err error) {
	party = a.Party
	var hidden error
	if !a.Registered {
		party.Process, hidden = ss.processes.origin(a.Conn)
	}
	if party.Process != "" {
		party.Identity, err = "", ss.processes.mayServe(party.Process, a.Model)
	} else {
		party.Identity, err = ss.identify(a, hidden)
	}
	if err != nil && !a.Registered { // a registered one is recorded when it leaves
		ss.cfg.Trail.Add(access.Entry{Source: sourceOf(party, a.Conn.RemoteAddr().String()),
			Action: "register", What: "container", Name: a.Model.String(), Refused: true, Error: err.Error()})
	}
	return party, err
}

// identify returns the identity of a container that this server has not started, or an error if it
// may not serve its model. hidden, if not nil, says why the server cannot be sure of that.
func (ss *Sessions) identify(a containers.Applicant, hidden error) (name string, err error) {
	var shown access.Credentials
	if a.Token != "" {
		shown = access.Token(a.Token)
	}
	shown.Place = access.InHello
	if a.TLS != nil {
		shown.Certificate = access.NewCertificate(listen.PeerCertificate(a.TLS))
	}
	who := ss.cfg.Identities.Who(&shown)
	if err = who.Check(access.Serve, a.Model.String()); err != nil {
		return who.Name(), err
	}
	if anonymous := who.Name() == "" || who.Name() == access.Anonymous; hidden != nil && anonymous {
		err = fmt.Errorf("%w: %w; since the server has processes of its own, which may serve the models of their [[container]] only, this one needs a token or a certificate of an [[identity]] that may serve %s",
			fault.ErrPermissionDenied, hidden, a.Model)
	}
	return who.Name(), err
}

// sourceOf names a container in the audit trail.
func sourceOf(p containers.Party, address string) access.Source {
	return access.Source{Identity: p.Identity, Container: p.Process, Address: address, Door: "containers"}
}

// audit records an action of a container in the audit trail.
func (ss *Sessions) audit(i containers.SessionInfo, action string) {
	about := struct {
		RPC      string `json:"rpc"`
		Instance string `json:"instance,omitempty"`
		Reason   string `json:"reason,omitempty"`
	}{i.RPC, i.Label, i.Reason}
	ss.cfg.Trail.Add(access.Entry{Source: sourceOf(i.Party, i.Remote),
		Action: action, What: "container", Name: i.Model.String(), After: access.AuditText(about)})
}

// refused records that a container could not register, and tells the process that it is.
func (ss *Sessions) refused(conn net.Conn, i containers.SessionInfo, reason error) {
	if i.Party.Process == "" { // or Allow was not asked yet
		i.Party.Process, _ = ss.processes.origin(conn)
	}
	name := "" // not known yet
	if i.Model.Name != "" {
		name = i.Model.String()
	}
	ss.cfg.Trail.Add(access.Entry{Source: sourceOf(i.Party, i.Remote),
		Action: "register", What: "container", Name: name, Refused: true, Error: reason.Error()})
	if i.Party.Process == "" {
		return
	}
	if p, err := ss.processes.lookup(i.Party.Process); err == nil {
		p.refuse(i.Model, reason)
	}
}

// Review disconnects the containers whose identities may no longer serve their models.
func (ss *Sessions) Review() { ss.Listener().Review() }

// Configure applies new settings to containers that connect from now on, and to those that the
// server dials.
func (ss *Sessions) Configure(c config.Containers) {
	if err := ss.Listener().Configure(c.Settings()); err != nil {
		// This is a bug: the configuration has been validated.
		ss.cfg.Log.Error("new settings of containers cannot be applied", "error", err)
	}
	for _, d := range ss.listDialers() {
		d.SetWriteTimeout(c.WriteTimeout)
	}
}

// Call dials every [[container]] that has an address, and redials until Shutdown.
func (ss *Sessions) Call(list []config.Container, writeTimeout time.Duration) error {
	for _, c := range list {
		if c.Address == "" {
			continue
		}
		input, err := containers.Input(c.Input)
		if err != nil {
			return err
		}
		d, err := containers.Dial(containers.DialConfig{
			Name:         c.Name,
			Addr:         c.Address,
			Model:        scheduler.ModelID{Name: c.Model, Version: c.Version},
			Input:        input,
			Connect:      ss.cfg.Network.Connect,
			Scheduler:    ss.cfg.Scheduler,
			Pool:         ss.cfg.Pool,
			WriteTimeout: writeTimeout,
			Log:          ss.cfg.Log,
		})
		if err != nil {
			return err
		}
		ss.mu.Lock()
		ss.dialers = append(ss.dialers, d)
		ss.mu.Unlock()
	}
	return nil
}

// Listener returns the listener that containers connect to; nil before Listen.
func (ss *Sessions) Listener() *containers.Listener { return ss.listener.Load() }

func (ss *Sessions) listDialers() []*containers.Dialer {
	ss.mu.RLock()
	defer ss.mu.RUnlock()
	return ss.dialers
}

// inboundSessions returns the sessions with containers that have connected by themselves.
func (ss *Sessions) inboundSessions() []containers.SessionInfo {
	if l := ss.Listener(); l != nil {
		return l.Sessions()
	}
	return nil
}

// List returns a snapshot of all sessions, including sessions that could not be served and those of
// dialed containers.
func (ss *Sessions) List() []containers.SessionInfo {
	list := ss.inboundSessions()
	if l := ss.Listener(); l != nil {
		list = append(list, l.Unserved()...)
	}
	for _, d := range ss.listDialers() {
		list = append(list, d.Session())
	}
	for k := range list {
		if i := &list[k]; ss.retiring.stays(*i) {
			i.State = "retired"
			i.Reason = fmt.Sprintf("a newer version has replaced it; RPC %s has no goodbye message, so the container stays connected and idle until you stop it", i.RPC)
		}
	}
	return list
}

// RetireSegment makes the connected containers unmap a segment of shared memory.
func (ss *Sessions) RetireSegment(segment *containers.Segment) {
	if l := ss.Listener(); l != nil {
		l.RetireSegment(segment)
	}
}

// Readable returns the size of the inputs in shared memory that containers may be reading.
func (ss *Sessions) Readable() (bytes int64) {
	for _, i := range ss.inboundSessions() {
		bytes += i.Readable
	}
	return bytes
}

// Count returns how many containers are connected.
func (ss *Sessions) Count() (n int) {
	for _, i := range ss.List() {
		if i.State != containers.StateUnserved {
			n++
		}
	}
	return n
}

// Shutdown disconnects the containers, dialed ones first. Batches that containers still compute are
// not waited for: a stuck container delays the server by a second and is not an error.
func (ss *Sessions) Shutdown(ctx context.Context) error {
	err := each(ss.listDialers(), func(d *containers.Dialer) error { return d.Shutdown(ctx) })
	ss.retiring.goodbyes.Wait()
	if l := ss.Listener(); l != nil {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := l.Shutdown(ctx); err != nil {
			ss.cfg.Log.Warn("containers that did not disconnect within a second of the goodbye were cut off")
		}
	}
	return err
}
