package container

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/shiva/backoff"
	"github.com/shivad/shivad/shiva/tensor"
	"github.com/shivad/shivad/shiva/token"
)

// ServersEnv names the environment variable with Serve's default addresses, comma-separated. The
// server sets it for the containers that it supervises.
const ServersEnv = "SHIVA_SERVERS"

// DefaultServer is the address that Serve uses when neither its caller nor the environment names
// one.
const DefaultServer = "tcp://127.0.0.1:7000"

const (
	resolvePeriod  = 20 * time.Second
	connectTimeout = 10 * time.Second
)

// The pace of attempts to connect, and of those that a server refuses: an early one would be
// refused again.
var (
	attempts = backoff.Backoff{First: 100 * time.Millisecond, Most: 5 * time.Second}
	refused  = backoff.Backoff{First: 5 * time.Second, Most: time.Minute}
)

// Serve connects to the servers and answers their batches until ctx ends or every server has
// dismissed the container by a goodbye without reconnect. Addresses are "tcp://host:port",
// "host:port", "tls://host:port" (see Model.TLS) or "ipc://path". A host that resolves to several
// addresses stands for several servers, and is looked up again from time to time; if it has
// addresses of both families only those of IPv4 are used, assuming that each server has both.
// Without addresses Serve uses those of $SHIVA_SERVERS, or DefaultServer. A Model without a Token
// uses the token of the environment, see package token.
//
// Serve returns nil after a drain, the error of an invalid Model or address or of WarmUp, and
// context.DeadlineExceeded if DrainTimeout was too short. Functions of the model that have not
// returned by then keep running after it.
func Serve(ctx context.Context, m Model, addrs ...string) error {
	return serve(ctx, m, net.DefaultResolver.LookupNetIP, addrs)
}

type lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)

// setDefaults sets the fields of Serve that are left out.
func (m *Model) setDefaults() {
	if m.DrainTimeout <= 0 {
		m.DrainTimeout = defaultDrainTimeout
	}
	if m.MessageBytes <= 0 {
		m.MessageBytes = defaultMessageBytes
	}
	if m.HealthInterval <= 0 {
		m.HealthInterval = defaultHealthInterval
	}
	m.Log = cmp.Or(m.Log, slog.Default())
	if m.Dial == nil {
		m.Dial = new(net.Dialer).DialContext
	}
}

func serve(ctx context.Context, m Model, resolve lookup, addrs []string) error {
	shown := token.Fixed(m.Token)
	if m.Token == "" {
		var err error
		if shown, err = token.FromEnvironment(); err != nil {
			return fmt.Errorf("container: %w", err)
		}
	}
	if _, err := m.hello("", nil, false); err != nil {
		return err
	}
	size, err := m.subsetSize()
	if err != nil {
		return err
	}
	if len(addrs) == 0 {
		addrs = strings.FieldsFunc(os.Getenv(ServersEnv), func(r rune) bool { return r == ',' || r == ' ' })
	}
	if len(addrs) == 0 {
		addrs = []string{DefaultServer}
	}
	var list []address
	for _, a := range addrs {
		parsed, err := parseAddress(a)
		if err != nil {
			return err
		}
		list = append(list, parsed)
	}
	if encrypted := func(a address) bool { return a.encrypted }; slices.ContainsFunc(list, encrypted) {
		if _, err := m.tls(); err != nil { // report faults of its files now
			return err
		}
	} else if m.TLS != nil {
		return fmt.Errorf("container: expected an address tls://host:port with TLS, got %q", addrs)
	}
	m.setDefaults()
	hard, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	var links, watch sync.WaitGroup
	defer watch.Wait()
	defer stop(nil)
	watch.Go(func() { // bounds the drain that begins with the end of ctx; ends with hard
		select {
		case <-ctx.Done():
		case <-hard.Done():
			return
		}
		timer := time.NewTimer(m.DrainTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
			stop(context.DeadlineExceeded)
		case <-hard.Done():
		}
	})
	if m.WarmUp != nil {
		if err := hook(hard, m.Log, "WarmUp", func() error { return m.WarmUp(ctx) }); err != nil {
			return fmt.Errorf("container: model %q: warm-up: %w", m.Name, err)
		}
	}
	s := &server{model: &m, token: shown, hard: hard, pool: tensor.NewPool(0),
		slots: make(chan struct{}, max(1, m.Concurrency)), resolve: resolve, health: newHealth(), size: size,
		key: rand.Text()}
	s.arbiter = newArbiter(s)
	if m.Feedback != nil {
		s.lessons = make(chan lesson, maxLessons)
		go s.learn(hard) // ends with hard and the last Feedback; not joined
	}
	for _, a := range list {
		links.Go(func() { s.keepLinks(ctx, a) }) // ends after ctx, with its sessions
	}
	if m.Health != nil {
		watch.Go(func() { s.health.watch(hard, &m) }) // ends with hard
	}
	served := make(chan struct{})
	go func() { // ends with the last Predict
		links.Wait()
		close(served)
	}()
	select {
	case <-served:
	case <-hard.Done():
		select {
		case <-served:
		case <-time.After(closeTime):
			m.Log.Error("container: Predict ignores the end of its ctx and is abandoned", "model", m.Name)
		}
	}
	return context.Cause(hard)
}

// hook calls a function of the model's author. A panic becomes an error; a function that has not
// returned when until ends is abandoned.
func hook(until context.Context, log *slog.Logger, name string, f func() error) error {
	done := make(chan error, 1)
	go func() { // ends with f
		err := errors.New("it called runtime.Goexit")
		defer func() {
			if r := recover(); r != nil {
				log.Error("container: "+name+" panicked", "panic", r, "stack", string(debug.Stack()))
				err = fmt.Errorf("panic: %v", r)
			}
			done <- err
		}()
		err = f()
	}()
	select {
	case err := <-done:
		return err
	case <-until.Done():
		return context.Cause(until)
	}
}

// A server is the state that all sessions of a Serve share.
type server struct {
	model   *Model
	token   *token.Source
	hard    context.Context // ends when the drain has taken too long
	pool    *tensor.Pool
	slots   chan struct{} // one is held while a batch is computed
	resolve lookup
	health  *health
	arbiter *arbiter
	lessons chan lesson // feedback that waits for the model; nil: Model.Feedback is nil
	size    int         // servers of a name with which there are sessions
	key     string      // different from all other containers'
}

// An address stands for one server, or for those that a host resolves to.
type address struct {
	text, network, host, port string // host is empty if the address needs no lookup
	encrypted                 bool   // by TLS
	name                      string // the host, which the server's certificate must name
}

// at returns the address of one of the servers that a stands for.
func (a address) at(text string) address {
	a.text = text
	return a
}

// String returns the dialed address, for people.
func (a address) String() string {
	if a.encrypted {
		return "tls://" + a.text
	}
	return a.text
}

func parseAddress(text string) (address, error) {
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		scheme, rest = "tcp", text
	}
	switch scheme {
	case "ipc":
		if rest == "" || rest == "@" {
			return address{}, fmt.Errorf("container: address %q: expected ipc://path", text)
		}
		return address{text: rest, network: "unix"}, nil
	case "tcp", "tls":
		host, port, err := net.SplitHostPort(rest)
		if err != nil || host == "" || port == "" {
			return address{}, fmt.Errorf("container: address %q: expected %s://host:port", text, scheme)
		}
		a := address{text: rest, network: "tcp", host: host, port: port, encrypted: scheme == "tls", name: host}
		if _, err := netip.ParseAddr(host); err == nil {
			a.host = ""
		}
		return a, nil
	}
	return address{}, fmt.Errorf("container: address %q: expected tcp://, tls:// or ipc://", text)
}

// link holds a session with one server until ctx ends or the server dismisses the container.
func (s *server) link(ctx context.Context, a address, st *linkState) {
	log := s.model.Log.With("model", s.model.Name, "version", s.model.Version, "server", a.String())
	failures, refusals, down, said := 0, 0, false, ""
	next := func() time.Duration {
		failures++
		return max(attempts.After(failures), refused.After(refusals))
	}
	for ctx.Err() == nil {
		well := s.health.wait(ctx)
		if well == nil {
			return
		}
		during, cancel := context.WithCancel(ctx)
		unhook := context.AfterFunc(well, cancel)
		shown := s.token.Token()
		err := s.session(during, log, a, shown, st)
		st.recordEnd()
		unhook()
		cancel()
		var refusal *refusedError
		var wait time.Duration
		var told *zmtp.PeerError
		switch {
		case well.Err() != nil && ctx.Err() == nil:
			failures, refusals = 0, 0
			continue
		case errors.Is(err, errDismissed):
			log.Info("container: dismissed", "reason", err)
			return
		case ctx.Err() != nil:
			return
		case errors.As(err, &refusal) && shown != s.token.Token():
			log.Warn("container: refused, and the token has been replaced; trying the new one",
				"reason", refusal.reason)
			failures, refusals = 0, 0
			continue
		case errors.As(err, &refusal):
			refusals++
			wait = refused.After(refusals)
			log.Error("container: the server refuses this model",
				"reason", refusal.reason, "again_in", wait.Round(time.Millisecond))
		case errors.Is(err, errWaited):
			failures, refusals = 0, 0
			wait = next()
			log.Info("container: registering again after the wait", "reason", err)
		case errors.Is(err, errServed):
			failures, refusals, down = 0, 0, true
			wait = next()
			log.Warn("container: session ended", "reason", err, "again_in", wait.Round(time.Millisecond))
		case errors.As(err, &told):
			if told.Reason != said {
				log.Warn("container: the server ended the connection before the model was registered; retrying",
					"reason", told.Reason)
			}
			said, down = told.Reason, true
			wait = next()
		default:
			if !down {
				log.Warn("container: cannot connect; retrying. Is shivad running, and is this its port for containers (containers.listen)?",
					"err", err)
			}
			down = true
			wait = next()
		}
		if !backoff.Wait(wait, ctx.Done()) {
			return
		}
	}
}
