package tcp

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/capacity"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/wake"
)

// sockets is the carrier on the standard library's sockets, for Unix sockets and TLS. Each
// connection has a goroutine that waits for bytes in the runtime's poller and takes a turn of its
// session's loop with them. doc.go compares it with gnet. It also carries connections of
// the network in memory, see pollable.
type sockets struct {
	door  *Door
	loops []*loop
	next  atomic.Uint32 // of loops, for the next connection
	conns sync.WaitGroup
	ended chan struct{} // closed by stop
	turns sync.WaitGroup
}

// newSockets starts the given number of loops; 0: one per processor.
func newSockets(d *Door, loops int) *sockets {
	loops = cmp.Or(loops, capacity.Processors())
	s := &sockets{door: d, ended: make(chan struct{})}
	for range loops {
		requested, clock := make(chan struct{}, 1), time.NewTimer(0)
		clock.Stop()
		l := newLoop(d, func() { wake.Up(requested) }, func() { clock.Reset(tick) })
		s.loops = append(s.loops, l)
		s.turns.Go(func() { s.run(l, requested, clock) }) // ended by stop, which waits for it
	}
	return s
}

// run takes the turns of a loop that are not taken by a connection's goroutine.
func (s *sockets) run(l *loop, requested <-chan struct{}, clock *time.Timer) {
	defer clock.Stop()
	for {
		select {
		case <-requested:
			l.turn()
		case <-clock.C:
			l.tick()
		case <-s.ended:
			return
		}
	}
}

func (s *sockets) each(f func(*loop)) {
	for _, l := range s.loops {
		f(l)
	}
}

func (s *sockets) stop() error {
	for _, l := range s.loops {
		l.begin()
		for _, session := range l.sessions {
			session.close()
		}
		l.end()
	}
	s.conns.Wait()
	close(s.ended)
	s.turns.Wait()
	for _, l := range s.loops {
		l.spares.Release()
	}
	return nil
}

func (s *sockets) enroll(in *listen.Conn) {
	k, err := newSocket(in)
	if err != nil {
		s.door.log.Debug("a connection failed while it was accepted", "peer", in.RemoteAddr(), "error", err)
		in.Close()
		return
	}
	l := s.loops[int(s.next.Add(1))%len(s.loops)]
	l.turns.Lock()
	l.refresh()
	k.session = l.newSession(s.door.opened.Add(1), k)
	if c := in.PeerCertificate(); c != nil {
		k.session.credentials = &access.Credentials{Certificate: access.NewCertificate(c)}
	}
	k.session.conn = in
	l.turns.Unlock()
	s.conns.Go(k.run) // ends with the session; stop waits for it
}

// A socket is a transport on a pollable. Its goroutine is always in below.AwaitInput, so a
// descriptor stays valid until the session knows that it is closed, and turns may use it freely.
type socket struct {
	place    *listen.Conn // its place in the door's limits
	session  *session
	pollable pollable
	medium   medium
	closing  atomic.Bool
	watched  atomic.Bool // a goroutine waits for room
	hungUp   bool        // the peer has ended its direction

	rest time.Duration // until the next read; 0: none
	slow bool          // it has rested: read a buffer at a time
}

// newSocket makes the transport of a connection, without its session.
func newSocket(in *listen.Conn) (*socket, error) {
	w, err := pollableOf(in.Socket())
	if err != nil {
		return nil, err
	}
	k := &socket{place: in, pollable: w, medium: w}
	cipher := &ciphertext{Conn: in.Socket(), pollable: w}
	if t := in.TLS(cipher); t != nil {
		k.medium = &encrypted{tls: t, cipher: cipher}
	}
	return k, nil
}

// buffers hold input while it is processed: idle connections have none.
var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// readers is how many goroutines of a loop may hold a buffer: the one in a turn, and some that read
// and decrypt meanwhile. All others wait without a buffer, even if thousands of clients send at
// once.
const readers = 4

func (k *socket) run() {
	for k.rested() && k.pollable.AwaitInput(k.input) == nil && k.rest > 0 {
	}
	l := k.session.loop
	l.begin()
	k.session.closed()
	k.place.Because(k.session.reason)
	l.end()
	k.place.Close()
}

// rested waits until the client may be read again, and reports whether the connection goes on.
// Answers leave meanwhile, and a connection that breaks or is closed does not wait.
func (k *socket) rested() bool {
	if k.rest == 0 {
		return true
	}
	k.place.Lumps(true)
	for k.rest > 0 && !k.closing.Load() && !k.pollable.Gone() {
		_ = k.place.SetReadDeadline(time.Now().Add(k.rest))
		if !k.closing.Load() { // Close sets a deadline, too
			_ = k.pollable.AwaitInput(k.pollable.Gone)
		}
		k.rest = 0
		k.session.loop.begin()
		k.session.paceOn()
		k.session.loop.end()
	}
	k.rest = 0
	_ = k.place.SetReadDeadline(time.Time{})
	k.place.Lumps(false)
	return !k.closing.Load()
}

// input reads the bytes that have arrived, and reports whether the input has ended or must wait. It
// reads until nothing is left: the poller reports each arrival once, and several together as one.
func (k *socket) input() (done bool) {
	s := k.session
	for !k.closing.Load() {
		if k.hungUp {
			k.look()
			return false
		}
		switch n, err := k.read(); {
		case n > 0:
			if k.slow = k.rest > 0; k.slow {
				return true
			}
		case err == unix.EAGAIN:
			return false
		case err != nil:
			return true
		default:
			s.loop.begin()
			if k.hungUp = s.due(); k.hungUp {
				s.hangUp()
			}
			s.loop.end()
			if !k.hungUp {
				return true
			}
		}
	}
	return true
}

// read takes a turn with one buffer of input. A connection with more input queues again behind
// those that already wait for a buffer.
func (k *socket) read() (n int, err error) {
	l := k.session.loop
	l.readers <- struct{}{}
	p := buffers.Get().(*[64 << 10]byte)
	defer func() {
		buffers.Put(p)
		<-l.readers
	}()
	if n, err = k.medium.TryRead(p[:]); n > 0 {
		l.input(k.session, p[:n])
	}
	return n, err
}

// look tells the session if a peer that had ended its direction has closed the connection.
func (k *socket) look() {
	if k.pollable.Gone() {
		k.session.loop.postReport(k.session, lostPeer)
	}
}

func (k *socket) Read(p []byte) int {
	if k.slow {
		return 0
	}
	n, _ := k.medium.TryRead(p)
	return max(n, 0) // input finds the same end or error
}

func (k *socket) Write(vecs [][]byte) (int, error) {
	all := size(vecs)
	n, err := k.medium.TryWrite(vecs)
	if err == nil && n < all && k.watched.CompareAndSwap(false, true) {
		go k.watch() // ends when there is room, or the socket is closed
	}
	return n, err
}

// watch waits for room once, and takes a turn to use it. The poller reports only room that appears
// after it was asked, so the socket is checked first.
func (k *socket) watch() {
	asked := false
	err := k.pollable.AwaitRoom(func() bool {
		room := asked || k.pollable.Room()
		asked = true
		return room
	})
	k.watched.Store(false)
	if err == nil {
		l := k.session.loop
		l.begin()
		k.session.hear(hasRoom)
		l.end()
	}
}

func (k *socket) Unread() int          { return k.medium.Unread() }
func (k *socket) Unacknowledged() int  { return k.pollable.Unacknowledged() }
func (k *socket) Acknowledge()         { k.pollable.Acknowledge() }
func (k *socket) Rest(d time.Duration) { k.rest = d }
func (k *socket) CloseWrite()          { _ = k.medium.CloseWrite() }

// Close ends the wait for input, after which the socket is closed.
func (k *socket) Close() {
	k.closing.Store(true)
	_ = k.place.SetReadDeadline(time.Unix(1, 0))
}

func (k *socket) Peer() string { return k.place.RemoteAddr().String() }
