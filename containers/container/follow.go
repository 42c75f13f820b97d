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

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/subset"
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

// A standing is the state of a link.
type standing struct {
	mu       sync.Mutex
	choice   *wire.SubsetMessage // nil: there are no servers to choose from
	up       bool
	since    time.Time // of up
	replicas int       // sessions of the model that the server has; 0: unknown
}

// subset returns the choice for hello.
func (s *standing) subset() *wire.SubsetMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.choice
}

func (s *standing) choose(m *wire.SubsetMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.choice = m
}

func (s *standing) registered(replicas int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up, s.since, s.replicas = true, time.Now(), replicas
}

func (s *standing) counted(replicas int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicas = replicas
}

func (s *standing) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up {
		s.since = time.Now()
	}
	s.up, s.replicas = false, 0
}

// sessions returns the number of sessions of the model that the server has; 0: unknown.
func (s *standing) sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replicas
}

func (s *standing) away() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.up && time.Since(s.since) > awayAfter
}

// A held is a link to one of the servers of a name.
type held struct {
	cancel   context.CancelFunc // nil: the server dismissed the container
	standing standing
}

// A dismissal is a server's goodbye without reconnect.
type dismissal struct {
	addr string
	link *held
}

// A follower holds the links to servers of a name.
type follower struct {
	server    *server
	address   address
	choice    *subset.Choice
	since     time.Time // of the trial
	chosen    []string
	live      map[string]*held // by address
	dismissed chan dismissal
	links     sync.WaitGroup
}

// follow holds links to the servers of an address until ctx ends or all of them have dismissed the
// container.
func (s *server) follow(ctx context.Context, a address) {
	if a.host == "" {
		s.link(ctx, a, new(standing))
		return
	}
	f := follower{server: s, address: a, choice: subset.New(s.key, s.size), live: make(map[string]*held), dismissed: make(chan dismissal)}
	defer f.links.Wait()
	defer func() {
		for _, l := range f.live {
			if l.cancel != nil {
				l.cancel()
			}
		}
	}()
	wait := firstBackoff
	for due := time.Now(); ; {
		if !time.Now().Before(due) {
			if found, err := s.lookUp(ctx, a); err == nil {
				wait = resolvePeriod
				f.choice.List(found, time.Now())
			} else {
				wait = min(2*wait, maxBackoff)
				if ctx.Err() == nil {
					s.model.Log.Warn("container: cannot resolve the name of the server; is it spelled right?", "host", a.host, "err", err, "again_in", wait)
				}
			}
			due = time.Now().Add(jitter(wait))
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
		serving := func(l *held) bool { return l.cancel != nil }
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
		return l != nil && l.cancel != nil && l.standing.away()
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
			l.standing.choose(choice)
			continue
		}
		f.hold(ctx, addr, choice)
	}
}

// sessions returns the number of sessions of the model that a server has; 0: unknown.
func (f *follower) sessions(addr string) int {
	if l := f.live[addr]; l != nil {
		return l.standing.sessions()
	}
	return 0
}

// counted reports whether all servers with sessions have reported how many sessions they have.
func (f *follower) counted() bool {
	for _, l := range f.live {
		l.standing.mu.Lock()
		silent := l.standing.up && l.standing.replicas == 0
		l.standing.mu.Unlock()
		if silent {
			return false
		}
	}
	return len(f.live) > 0
}

// hold starts a link.
func (f *follower) hold(ctx context.Context, addr string, choice *wire.SubsetMessage) {
	ctx, cancel := context.WithCancel(ctx)
	l := &held{cancel: cancel, standing: standing{since: time.Now(), choice: choice}}
	f.live[addr] = l
	f.links.Go(func() { // ends with ctx or by a goodbye; joined by follow
		f.server.link(ctx, f.address.at(addr), &l.standing)
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
