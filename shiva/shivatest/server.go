package shivatest

import (
	"net"
	"sync"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Handler gets each message of a connection, one after the other, and decides how to answer: now,
// later from any goroutine, out of turn, with raw bytes, or not at all. The message is released
// when the handler returns; use Clone to keep it longer.
type Handler func(c *Conn, m *shiva.Message)

// Echo answers each message with itself.
func Echo(c *Conn, m *shiva.Message) { _ = c.Send(m) }

// Fail answers each message with the error.
func Fail(e *shiva.RemoteError) Handler {
	return func(c *Conn, _ *shiva.Message) { _ = c.Send(shiva.ErrorMessage(e)) }
}

// A Server is a Shiva server whose handler decides the answers. Messages that cannot be decoded are
// answered with "!error" of type Protocol, and end the connection unless the decoder can continue.
type Server struct {
	listener net.Listener
	handler  Handler
	pool     *tensor.Pool
	wg       sync.WaitGroup // accept and the readers

	mu     sync.Mutex
	conns  []*Conn
	closed bool
}

// Serve starts serving the connections of l. Close ends it.
func Serve(l net.Listener, h Handler) *Server {
	s := &Server{listener: l, handler: h, pool: tensor.NewPool(0)}
	s.wg.Go(s.accept)
	return s
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Conns returns the connections accepted so far, in order, including closed ones.
func (s *Server) Conns() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Conn(nil), s.conns...)
}

// Close stops listening, closes all connections, and returns when all goroutines of the server have
// ended.
func (s *Server) Close() {
	s.listener.Close()
	s.mu.Lock()
	s.closed = true
	for _, c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// Drain stops listening, and closes each connection when the client does. It returns when all are
// closed.
func (s *Server) Drain() {
	s.listener.Close()
	s.wg.Wait()
}

func (s *Server) accept() {
	for {
		nc, err := s.listener.Accept()
		if err != nil {
			return
		}
		c := &Conn{nc: nc}
		s.mu.Lock()
		s.conns = append(s.conns, c)
		closed := s.closed
		s.mu.Unlock()
		if closed {
			nc.Close()
			return
		}
		s.wg.Go(func() { s.read(c) })
	}
}

func (s *Server) read(c *Conn) {
	defer c.Close()
	d := shiva.NewDecoder(shiva.DecoderConfig{Pool: s.pool})
	defer d.Close()
	block := make([]byte, 64<<10)
	for {
		n, err := c.nc.Read(block)
		for p := block[:n]; ; {
			used, m, fault := d.Push(p)
			p = p[used:]
			if fault != nil {
				_ = c.Send(
					shiva.ErrorMessage(&shiva.RemoteError{Type: shiva.Protocol, Message: fault.Error(), Code: 400}))
				if !fault.(*shiva.DecodeError).Keep() {
					return
				}
				continue
			}
			if m == nil {
				break
			}
			s.handler(c, m)
			m.Release()
		}
		if err != nil {
			return
		}
	}
}

// A Conn is a connection that a Server accepted. Any goroutine may use it.
type Conn struct {
	nc net.Conn

	mu  sync.Mutex // serialises writes
	buf []byte     // of the last message sent
}

// Send writes a message.
func (c *Conn) Send(m *shiva.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if c.buf, err = shiva.AppendMessage(c.buf[:0], m); err != nil {
		return err
	}
	_, err = c.nc.Write(c.buf)
	return err
}

// Write writes raw bytes.
func (c *Conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nc.Write(b)
}

// CloseWrite closes the writing side, as TCP does; the server continues to read.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nc.(interface{ CloseWrite() error }).CloseWrite()
}

// Close closes the connection.
func (c *Conn) Close() error { return c.nc.Close() }

// Clone copies a message, bytes and all, into memory that needs no release.
func Clone(m *shiva.Message) *shiva.Message {
	c := &shiva.Message{Namespace: m.Namespace, Metadata: append([]byte(nil), m.Metadata...)}
	for _, t := range m.Tensors {
		c.Tensors = append(c.Tensors, tensor.Tensor{
			Name: t.Name, DType: t.DType,
			Shape: append(tensor.Shape(nil), t.Shape...),
			Data:  append([]byte(nil), t.Data...),
		})
	}
	return c
}
