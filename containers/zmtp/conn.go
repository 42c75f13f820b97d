package zmtp

import (
	"cmp"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/shiva/tensor"
)

// Config describes one connection. The zero value works.
type Config struct {
	// Client is the socket type of the side that connects: Dealer (the default) or Req. The user of
	// a REQ socket writes and reads its envelope, an empty first frame.
	Client string
	Limits Limits
	// Pool is where the bytes of received frames come from; nil means ordinary memory without a
	// budget.
	Pool *tensor.Pool
	// Grant, if not nil, is asked before a message takes more memory: with the bytes that it would
	// hold then, and those that its frames have announced so far. An error refuses the memory, as
	// Pool does, and for small frames as well.
	Grant func(held, whole int64) error
	// HandshakeTimeout is the time for greeting and READY together. Default 10 s.
	HandshakeTimeout time.Duration
	// WriteTimeout ends a connection whose peer takes not one byte for this long while data waits
	// to be written. Default 10 s.
	WriteTimeout time.Duration
	// Secure performs the TLS handshake on the connection before anything else, within
	// HandshakeTimeout, and returns the connection that speaks TLS, a *tls.Conn. nil: the
	// connection is plain.
	Secure func(net.Conn) (net.Conn, error)
	// Unwanted, if not nil, is asked when the handshake has ended, or a deadline of raw has passed:
	// an error is why the connection is not wanted any more, which the peer is told.
	Unwanted func() error
}

// Socket types of clients.
const (
	Dealer = "DEALER"
	Req    = "REQ"
)

const (
	defaultHandshakeTimeout = 10 * time.Second
	defaultWriteTimeout     = 10 * time.Second

	// readBufferSize holds the headers and small frames of many messages. An idle connection costs
	// nothing else; the bulk of a large body goes straight into its own memory.
	readBufferSize = 16 << 10
	// unixSocketBuffer is requested from the system for ipc connections: 1.1 to 1.2 times the rate
	// with large payloads. TCP tunes itself, and gained nothing.
	unixSocketBuffer = 1 << 20
)

// A Conn is one ZMTP connection after its handshake.
type Conn struct {
	// Set once.
	raw     net.Conn // connection that is read and written: the socket, or TLS on it
	socket  net.Conn
	limits  Limits
	pool    *tensor.Pool
	grant   func(held, whole int64) error
	timeout time.Duration // of writing
	peer    Peer
	start   time.Time

	lastByte atomic.Int64 // when the peer's last bytes arrived, ns since start
	// When the current message began to arrive, ns since start; 0: there is none.
	begun   atomic.Int64
	arrived atomic.Int64 // bytes that have arrived since

	// Owned by the goroutine in Receive.
	in      []byte // read buffer
	lo, hi  int    // unread bytes of it
	inErr   error  // the first error; every further Receive returns it
	pinged  bool   // a PING has not been answered yet
	context []byte // of the last PING

	out sender

	closeOnce sync.Once
	closeErr  error
}

// Server runs the ROUTER's side of the handshake on raw and returns the connection. It takes at
// most Config.HandshakeTimeout. On an error raw is closed.
func Server(raw net.Conn, cfg Config) (*Conn, error) { return open(raw, cfg, true) }

// Client runs the handshake of Config.Client's side on raw; otherwise like [Server].
func Client(raw net.Conn, cfg Config) (*Conn, error) { return open(raw, cfg, false) }

func open(raw net.Conn, cfg Config, server bool) (*Conn, error) {
	if cfg.HandshakeTimeout <= 0 {
		cfg.HandshakeTimeout = defaultHandshakeTimeout
	}
	if cfg.WriteTimeout <= 0 {
		cfg.WriteTimeout = defaultWriteTimeout
	}
	if err := raw.SetDeadline(time.Now().Add(cfg.HandshakeTimeout)); err != nil {
		raw.Close()
		return nil, err
	}
	if cfg.Unwanted != nil && cfg.Unwanted() != nil {
		_ = raw.SetDeadline(time.Now()) // since before it was moved
	}
	conn, peer, err := shake(raw, cfg, server)
	if err != nil {
		raw.Close()
		return nil, err
	}
	c := &Conn{
		raw:     conn,
		socket:  raw,
		limits:  cfg.Limits.WithDefaults(),
		pool:    cfg.Pool,
		grant:   cfg.Grant,
		timeout: cfg.WriteTimeout,
		peer:    peer,
		start:   time.Now(),
		in:      make([]byte, readBufferSize),
	}
	if uc, ok := raw.(*net.UnixConn); ok {
		// Refused sizes are clipped by the system; nothing depends on them.
		_ = uc.SetReadBuffer(unixSocketBuffer)
		_ = uc.SetWriteBuffer(unixSocketBuffer)
	}
	c.out.init(c)
	return c, nil
}

// shake performs the handshakes, and returns the connection that carries frames.
func shake(raw net.Conn, cfg Config, server bool) (conn net.Conn, peer Peer, err error) {
	conn = raw
	below := &carrier{Conn: raw, fd: rawConn(raw)}
	if cfg.Secure != nil {
		if conn, err = encrypt(below, cfg.Secure, server); err != nil {
			return nil, Peer{}, err
		}
	}
	if peer, err = handshake(conn, cmp.Or(cfg.Client, Dealer), server, cfg.Unwanted); err != nil {
		return nil, Peer{}, err
	}
	below.timeout = cfg.WriteTimeout
	return conn, peer, raw.SetDeadline(time.Time{})
}

// Peer describes the other side, as known from the handshake.
func (c *Conn) Peer() Peer { return c.peer }

// RemoteAddr returns the address of the other side.
func (c *Conn) RemoteAddr() net.Addr { return c.raw.RemoteAddr() }

// LastByte returns when the peer's last bytes were read, whatever they were: PONGs and parts of
// frames count.
func (c *Conn) LastByte() time.Time { return c.start.Add(time.Duration(c.lastByte.Load())) }

// Receiving returns the time since which a message is being received, and the bytes that have
// arrived since; a zero time if there is none.
func (c *Conn) Receiving() (since time.Time, bytes int64) {
	begun := c.begun.Load()
	bytes = c.arrived.Load()
	if begun == 0 || c.begun.Load() != begun { // the bytes may be another message's
		return time.Time{}, 0
	}
	return c.start.Add(time.Duration(begun)), bytes
}

// CloseWrite ends the outgoing half once everything queued has been written, so that the peer
// can still read the last message; the caller goes on receiving until io.EOF and then calls
// Close. A connection that cannot be half closed is left as it is.
func (c *Conn) CloseWrite() { c.out.finish() }

// Refuse tells the peer why the connection ends, by ZMTP's ERROR, and is CloseWrite otherwise.
func (c *Conn) Refuse(reason error) {
	var o Outgoing
	o.command("ERROR", errorBody(reason))
	_ = c.out.send(&o) // Receive returns its error
	c.out.finish()
}

// Abort ends the connection without waiting for anything: Receive returns the reason, unless it has
// failed already. The caller must still call Close.
func (c *Conn) Abort(reason error) { c.out.fail(reason) }

// SetMessageLimits changes [Limits.MessageBytes] and [Limits.Frames]. Only the goroutine that calls
// Receive may call it.
func (c *Conn) SetMessageLimits(bytes int64, frames int) {
	c.limits.MessageBytes, c.limits.Frames = bytes, frames
}

// Close ends the connection, wakes Receive, and waits for the goroutine that writes. When it
// returns, no memory given to Send is touched any more. It may be called repeatedly.
func (c *Conn) Close() error {
	c.closeOnce.Do(func() {
		c.out.close(ErrClosed)
		c.closeErr = c.socket.Close()
	})
	c.out.join()
	return c.closeErr
}

// read reads some bytes into p and records when they arrived. It first answers the PINGs before
// them, all with one PONG: one read costs one write at most, so that a flood of PINGs costs its
// sender more than this side.
func (c *Conn) read(p []byte) (int, error) {
	if c.pinged {
		c.pinged = false
		c.out.pong(c.context)
	}
	n, err := c.raw.Read(p)
	if n > 0 {
		c.lastByte.Store(int64(time.Since(c.start)))
		c.arrived.Add(int64(n))
		return n, nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return 0, err
}
