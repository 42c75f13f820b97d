package container

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/shivad/shivad/containers/internal/subset"
	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/shiva/backoff"
)

// Links to the servers that a name resolves to.

const (
	// awayAfter is the time without a session after which a server's place is taken by another one,
	// until it returns.
	awayAfter = 10 * time.Second
	// tryTime is how long a server under trial may take to register the model.
	tryTime = 10 * time.Second
	// lookPeriod is how often the choice is reviewed where there are servers to choose from.
	lookPeriod = time.Second
)

// A linkState is the state of a link.
type linkState struct {
	mu       sync.Mutex
	choice   *wire.SubsetMessage // nil: there are no servers to choose from
	up       bool
	since    time.Time // of up
	served   bool      // it has been up
	replicas int       // sessions of the model that the server has; 0: unknown
}

// subset returns the choice for hello.
func (s *linkState) subset() *wire.SubsetMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.choice
}

// again reports whether the model has been registered over this link.
func (s *linkState) again() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served
}

func (s *linkState) choose(m *wire.SubsetMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.choice = m
}

func (s *linkState) recordRegistration(replicas int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up, s.served, s.since, s.replicas = true, true, time.Now(), replicas
}

func (s *linkState) setReplicas(replicas int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicas = replicas
}

func (s *linkState) recordEnd() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up {
		s.since = time.Now()
	}
	s.up, s.replicas = false, 0
}

// sessions returns the number of sessions of the model that the server has; 0: unknown.
func (s *linkState) sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replicas
}

func (s *linkState) away() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.up && time.Since(s.since) > awayAfter
}

// A heldLink is a link to one of the servers of a name.
type heldLink struct {
	cancel context.CancelFunc // nil: the server dismissed the container
	state  linkState
}

// A dismissal is a server's goodbye without reconnect.
type dismissal struct {
	addr string
	link *heldLink
}

// A follower holds the links to servers of a name.
type follower struct {
	server    *server
	address   address
	choice    *subset.Choice
	since     time.Time // of the trial
	chosen    []string
	live      map[string]*heldLink // by address
	dismissed chan dismissal
	links     sync.WaitGroup
}

// keepLinks holds links to the servers of an address until ctx ends or all of them have dismissed
// the container.
func (s *server) keepLinks(ctx context.Context, a address) {
	if a.host == "" {
		s.link(ctx, a, new(linkState))
		return
	}
	f := follower{server: s, address: a, choice: subset.New(s.key, s.size), live: make(map[string]*heldLink),
		dismissed: make(chan dismissal)}
	defer f.links.Wait()
	defer func() {
		for _, l := range f.live {
			if l.cancel != nil {
				l.cancel()
			}
		}
	}()
	failures := 0
	for due := time.Now(); ; {
		if !time.Now().Before(due) {
			wait := backoff.Jitter(resolvePeriod)
			if found, err := s.lookUp(ctx, a); err == nil {
				failures = 0
				f.choice.List(found, time.Now())
			} else {
				failures++
				wait = attempts.After(failures)
				if ctx.Err() == nil {
					s.model.Log.Warn("container: cannot resolve the name of the server; is it spelled right?",
						"host", a.host, "err", err, "again_in", wait.Round(time.Millisecond))
				}
			}
			due = time.Now().Add(wait)
		}
		f.look(ctx)
		pause := time.Until(due)
		if f.choice.Servers() > f.choice.Size() {
			pause = min(pause, lookPeriod)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case d := <-f.dismissed:
			if f.live[d.addr] == d.link { // unless that link was replaced meanwhile
				d.link.cancel()
				d.link.cancel = nil
			}
		case <-timer.C:
		}
		timer.Stop()
		serving := func(l *heldLink) bool { return l.cancel != nil }
		if ctx.Err() != nil || len(f.live) > 0 && !slices.ContainsFunc(slices.Collect(maps.Values(f.live)), serving) {
			return
		}
	}
}

// look makes the links match the servers that are chosen now.
func (f *follower) look(ctx context.Context) {
	now := time.Now()
	if tried := f.choice.Trying(); tried == "" {
		if f.counted() {
			f.choice.Try(f.chosen, now)
			f.since = now
		}
	} else if f.sessions(tried) > 0 || now.Sub(f.since) > tryTime {
		f.choice.Judge(f.chosen, f.sessions, now)
	}
	f.chosen = f.choice.Chosen(func(a string) bool {
		l := f.live[a]
		return l != nil && l.cancel != nil && l.state.away()
	})
	for addr, l := range f.live {
		if !slices.Contains(f.chosen, addr) {
			if l.cancel != nil {
				l.cancel() // drains that link
			}
			delete(f.live, addr)
		}
	}
	var choice *wire.SubsetMessage
	if f.choice.Servers() > f.choice.Size() {
		choice = &wire.SubsetMessage{Size: f.choice.Size(), Servers: f.choice.Servers()}
	}
	for _, addr := range f.chosen {
		if l := f.live[addr]; l != nil {
			l.state.choose(choice)
			continue
		}
		f.hold(ctx, addr, choice)
	}
}

// sessions returns the number of sessions of the model that a server has; 0: unknown.
func (f *follower) sessions(addr string) int {
	if l := f.live[addr]; l != nil {
		return l.state.sessions()
	}
	return 0
}

// counted reports whether all servers with sessions have reported how many sessions they have.
func (f *follower) counted() bool {
	for _, l := range f.live {
		l.state.mu.Lock()
		silent := l.state.up && l.state.replicas == 0
		l.state.mu.Unlock()
		if silent {
			return false
		}
	}
	return len(f.live) > 0
}

// hold starts a link.
func (f *follower) hold(ctx context.Context, addr string, choice *wire.SubsetMessage) {
	ctx, cancel := context.WithCancel(ctx)
	l := &heldLink{cancel: cancel, state: linkState{since: time.Now(), choice: choice}}
	f.live[addr] = l
	f.links.Go(func() { // ends with ctx or by a goodbye; joined by follow
		f.server.link(ctx, f.address.at(addr), &l.state)
		select {
		case f.dismissed <- dismissal{addr, l}:
		case <-ctx.Done():
		}
	})
}

// lookUp returns the addresses of a host, all of one family.
func (s *server) lookUp(ctx context.Context, a address) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	ips, err := s.resolve(ctx, "ip", a.host)
	if err != nil {
		return nil, err
	}
	has4 := slices.ContainsFunc(ips, func(ip netip.Addr) bool { return ip.Unmap().Is4() })
	var list []string
	for _, ip := range ips {
		if ip = ip.Unmap(); ip.Is4() || !has4 {
			list = append(list, net.JoinHostPort(ip.String(), a.port))
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("container: %s has no address", a.host)
	}
	return list, nil
}
