package tcp

import (
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// An inMemory runs a loop as gnet does, for clients in the same process: it reads what they have
// written, in pieces of the size that a test chooses, is woken, and ticks. In a synctest bubble
// time is virtual, so a test may wait for minutes, and knows when nothing will happen any more.
type inMemory struct {
	*loop
	piece  int           // bytes that are read at a time
	buffer int           // bytes that lie between the two ends, in each direction
	work   chan struct{} // there is some: input, or a turn that was asked for
	end    chan struct{}
	ended  sync.WaitGroup

	mu    sync.Mutex
	woken bool
	links []*link
}

func newInMemory(d *Door) *inMemory {
	m := &inMemory{piece: 64 << 10, buffer: 1 << 20, work: make(chan struct{}, 1), end: make(chan struct{})}
	m.loop = newLoop(d, func() {
		m.mu.Lock()
		m.woken = true
		m.mu.Unlock()
		m.signal()
	})
	m.ended.Go(m.run)
	return m
}

func (m *inMemory) signal() {
	select {
	case m.work <- struct{}{}:
	default:
	}
}

func (m *inMemory) run() {
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for {
		select {
		case <-m.end:
			return
		case <-ticks.C:
			m.tick()
		case <-m.work:
			for m.once() {
			}
		}
	}
}

// once does what there is to do, and reports whether that was anything.
func (m *inMemory) once() (done bool) {
	m.mu.Lock()
	woken, links := m.woken, slices.Clone(m.links)
	m.woken = false
	m.mu.Unlock()
	for _, k := range links {
		p, end := k.in.take(m.piece)
		if len(p) > 0 {
			m.input(k.session, p)
		} else if end {
			m.hangUp(k)
		}
		done = done || len(p) > 0 || end
	}
	if woken {
		m.turn()
	}
	return done || woken
}

// hangUp tells a session that its client has ended its direction.
func (m *inMemory) hangUp(k *link) {
	m.forget(k)
	m.begin()
	defer m.loop.end()
	switch {
	case k.session.gone:
	case k.session.due():
		k.session.hangUp()
	default: // as gnet: the connection is closed, and then the session told
		k.out.finish()
		k.session.closed()
	}
}

// forget reads no more from a link.
func (m *inMemory) forget(k *link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.links = slices.DeleteFunc(m.links, func(other *link) bool { return other == k })
}

// open is how many sessions there are.
func (m *inMemory) open() int {
	m.turns.Lock()
	defer m.turns.Unlock()
	return len(m.sessions)
}

// close ends the sessions as Door.Shutdown does, and the loop.
func (m *inMemory) close() {
	for began := time.Now(); m.open() > 0; time.Sleep(5 * time.Millisecond) {
		m.leave(time.Since(began) >= time.Second)
	}
	close(m.end)
	m.ended.Wait()
	m.spares.Release()
}

// dial connects a client.
func (m *inMemory) dial() *peer {
	k := &link{loop: m, in: newStream(), out: newStream()}
	m.turns.Lock()
	m.look()
	k.session = m.newSession(m.door.opened.Add(1), k)
	m.turns.Unlock()
	m.mu.Lock()
	m.links = append(m.links, k)
	m.mu.Unlock()
	return &peer{link: k}
}

// A link is a connection in memory: the transport of the session at its one end.
type link struct {
	loop    *inMemory
	session *session
	in, out *stream
	gone    atomic.Bool // the client has closed it
}

func (k *link) Read(p []byte) int {
	got, _ := k.in.take(len(p))
	return copy(p, got)
}

func (k *link) Write(vecs [][]byte) (n int, err error) {
	if k.gone.Load() {
		return 0, net.ErrClosed
	}
	for _, v := range vecs {
		took := k.out.put(v, k.loop.buffer)
		n += took
		if took < len(v) { // the client may make room meanwhile, but for what comes next
			break
		}
	}
	return n, nil
}

func (k *link) Unacknowledged() int { return k.out.len() }
func (k *link) Unread() int         { return k.in.len() }
func (k *link) Acknowledge()        {}
func (k *link) CloseWrite()         { k.out.finish() }
func (k *link) Peer() string        { return "memory" }

func (k *link) Close() {
	k.loop.forget(k)
	k.in.finish()
	k.out.finish()
	k.session.closed()
}

// A peer is the client's end of a link.
type peer struct {
	link     *link
	deadline time.Time
}

func (p *peer) Write(b []byte) (n int, err error) {
	for n < len(b) {
		changed := p.link.in.wait()
		if p.link.in.over() {
			return n, net.ErrClosed
		}
		k := p.link.in.put(b[n:], p.link.loop.buffer)
		p.link.loop.signal()
		if n += k; k == 0 {
			<-changed
		}
	}
	return n, nil
}

func (p *peer) Read(b []byte) (int, error) {
	var late <-chan time.Time
	if !p.deadline.IsZero() {
		timer := time.NewTimer(time.Until(p.deadline))
		defer timer.Stop()
		late = timer.C
	}
	for {
		changed := p.link.out.wait()
		got, end := p.link.out.take(len(b))
		switch {
		case len(got) > 0:
			p.link.loop.postRoom(p.link.session, false)
			return copy(b, got), nil
		case end:
			return 0, io.EOF
		}
		select {
		case <-changed:
		case <-late:
			return 0, os.ErrDeadlineExceeded
		}
	}
}

func (p *peer) SetReadDeadline(t time.Time) error {
	p.deadline = t
	return nil
}

func (p *peer) CloseWrite() error {
	p.link.in.finish()
	p.link.loop.signal()
	return nil
}

// Close is the end of the client: what it is sent from now on is refused.
func (p *peer) Close() error {
	p.link.gone.Store(true)
	return p.CloseWrite()
}

// A stream is one direction of a link.
type stream struct {
	mu      sync.Mutex
	bytes   []byte
	ended   bool
	changed chan struct{} // closed at the next change
}

func newStream() *stream { return &stream{changed: make(chan struct{})} }

// wait is closed when anything has changed since.
func (s *stream) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *stream) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// put adds what of p there is room for.
func (s *stream) put(p []byte, size int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(p), max(size-len(s.bytes), 0))
	if s.ended {
		n = len(p) // nobody reads it
	} else if n > 0 {
		s.bytes = append(s.bytes, p[:n]...)
		s.change()
	}
	return n
}

// take removes n bytes at most; end: there are none and there will be none.
func (s *stream) take(n int) (p []byte, end bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.bytes) == 0 {
		return nil, s.ended
	}
	n = min(n, len(s.bytes))
	p = slices.Clone(s.bytes[:n])
	s.bytes = slices.Delete(s.bytes, 0, n)
	s.change()
	return p, false
}

func (s *stream) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.ended = true
		s.change()
	}
}

func (s *stream) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

func (s *stream) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.bytes)
}
