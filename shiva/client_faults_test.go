package shiva_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// How calls end when connections, answers or memory fail.

// TestClientLostConnection: a request that was sent fails and reports that it may have run, a
// waiting one is sent on the next connection, and later ones are not affected.
func TestClientLostConnection(t *testing.T) {
	var got atomic.Int32
	h := func(c *shivatest.Conn, m *shiva.Message) {
		if got.Add(1); number(m) == 0 {
			return // never answered
		}
		shivatest.Echo(c, m)
	}
	withRig(t, h, func(r *rig) {
		var wg sync.WaitGroup
		wg.Go(func() { wantCallError(r.T, r.do(r.Context(), 0), true, syscall.ECONNRESET) })
		synctest.Wait()
		wg.Go(func() { // waits for the slot of the first
			if err := r.do(r.Context(), 1); err != nil {
				r.Error(err)
			}
		})
		synctest.Wait()
		r.net.Cut()
		wg.Wait()
		if err := r.do(r.Context(), 2); err != nil {
			r.Error(err)
		}
		if n := len(r.server.Conns()); n != 2 {
			r.Errorf("%d connections, want 2", n)
		}
		if n := got.Load(); n != 3 {
			r.Errorf("the server got %d requests, want 3", n)
		}
	}, shiva.WithInFlight(1))
}

// TestClientHangUpInAnswer: the end of the stream inside an answer is reported as such.
func TestClientHangUpInAnswer(t *testing.T) {
	h := func(c *shivatest.Conn, m *shiva.Message) {
		b, _ := shiva.AppendMessage(nil, m)
		_, _ = c.Write(b[:len(b)-1])
		c.Close()
	}
	withRig(t, h, func(r *rig) {
		_, err := r.client.Do(r.Context(), numbered(1))
		e, ok := errors.AsType[*shiva.DecodeError](err)
		if !ok || e.Kind != shiva.KindTruncated {
			r.Errorf("error %v, want one of kind truncated", err)
		}
		wantCallError(r.T, err, true, e)
	})
}

// TestClientFaultyAnswers: an answer that cannot be decoded fails only its own call if the stream
// is still in step, and ends the connection if not.
func TestClientFaultyAnswers(t *testing.T) {
	h := func(c *shivatest.Conn, m *shiva.Message) {
		switch number(m) {
		case 0:
			bad := shivatest.Clone(m)
			bad.Metadata = []byte(`{"id":7,`)
			_ = c.Send(bad)
		case 1:
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
		default:
			shivatest.Echo(c, m)
		}
	}
	withRig(t, h, func(r *rig) {
		e, ok := errors.AsType[*shiva.DecodeError](r.do(r.Context(), 0))
		if !ok || e.Kind != shiva.KindInvalidJSON || !e.Keep() {
			r.Errorf("an answer with bad JSON: %v", e)
		}
		if err := r.do(r.Context(), 2); err != nil {
			r.Error(err)
		}
		if n := len(r.server.Conns()); n != 1 {
			r.Errorf("%d connections after bad JSON, want 1", n)
		}
		err := r.do(r.Context(), 1)
		if e, ok = errors.AsType[*shiva.DecodeError](err); !ok || e.Kind != shiva.KindBadMagic {
			r.Errorf("an answer in HTTP: %v", err)
		}
		wantCallError(r.T, err, true, e)
		if err := r.do(r.Context(), 3); err != nil {
			r.Error(err)
		}
		if n := len(r.server.Conns()); n != 2 {
			r.Errorf("%d connections after HTTP, want 2", n)
		}
	})
}

// TestClientUnasked: a message that answers no request ends the connection, and the next request
// makes another.
func TestClientUnasked(t *testing.T) {
	withRig(t, shivatest.Echo, func(r *rig) {
		for i, m := range []*shiva.Message{numbered(1), shiva.ErrorMessage(&shiva.RemoteError{Type: shiva.Draining})} {
			synctest.Wait()
			if err := r.server.Conns()[i].Send(m); err != nil {
				r.Fatal(err)
			}
			synctest.Wait()
			if err := r.do(r.Context(), 1); err != nil {
				r.Error(err)
			}
			if n := len(r.server.Conns()); n != i+2 {
				r.Errorf("%d connections, want %d", n, i+2)
			}
		}
		// A broken message, while no caller waits.
		_, _ = io.WriteString(r.server.Conns()[2], "HTTP/1.1 400 Bad Request\r\n\r\n")
		synctest.Wait()
		if err := r.do(r.Context(), 1); err != nil {
			r.Error(err)
		}
	}, shiva.WithBackoff(time.Millisecond, time.Millisecond))
}

// TestClientRefusedAtTheDoor: a server that takes no more connections sends an error and hangs up;
// callers get that error, whether or not their request was sent.
func TestClientRefusedAtTheDoor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n shivatest.Net
		l, err := n.Listen(rigAddr)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			refusal := mustEncode(t,
				shiva.ErrorMessage(&shiva.RemoteError{Type: shiva.Overloaded, Message: "full", Code: 429,
					Retryable: true}))
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write(refusal)
				c.Close()
			}
		})
		for range 20 {
			c, err := shiva.Dial(t.Context(), rigAddr, shiva.WithDialer(n.Dial))
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.Do(t.Context(), numbered(1))
			if e, ok := errors.AsType[*shiva.RemoteError](err); !ok || e.Type != shiva.Overloaded {
				t.Errorf("error %v, want the server's", err)
			}
			c.Close()
		}
		l.Close()
		wg.Wait()
	})
}

// A deafConn is connected to a peer that no longer reads, but may still send.
type deafConn struct{ net.Conn }

func (deafConn) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// TestClientLastWords: when the writer fails, the reader continues for a second.
func TestClientLastWords(t *testing.T) {
	for _, speaks := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			dial := func(context.Context, string, string) (net.Conn, error) { return deafConn{near}, nil }
			c, err := shiva.Dial(t.Context(), rigAddr, shiva.WithDialer(dial))
			if err != nil {
				t.Fatal(err)
			}
			if speaks {
				time.AfterFunc(900*time.Millisecond, func() {
					_, _ = far.Write(mustEncode(t, shiva.ErrorMessage(&shiva.RemoteError{Type: shiva.Draining})))
				})
			}
			start := time.Now()
			_, err = c.Do(t.Context(), numbered(1))
			if e, ok := errors.AsType[*shiva.RemoteError](err); speaks && (!ok || e.Type != shiva.Draining) {
				t.Errorf("error %v, want what the server said", err)
			}
			if !speaks {
				if wantCallError(t, err, true, syscall.EPIPE); time.Since(start) != time.Second {
					t.Errorf("given up after %v", time.Since(start))
				}
			}
			c.Close()
			far.Close()
		})
	}
}

// TestClientLimits: an answer beyond the limits is refused with the reason.
func TestClientLimits(t *testing.T) {
	withRig(t, shivatest.Echo, func(r *rig) {
		m := &shiva.Message{Tensors: []tensor.Tensor{mustTensor(r.T, tensor.Shape{2000}, make([]uint8, 2000))}}
		_, err := r.client.Do(r.Context(), m)
		if e, ok := errors.AsType[*shiva.DecodeError](err); !ok || e.Kind != shiva.KindTooLarge || e.Limit != 1000 {
			r.Error(err)
		}
		if err := r.do(r.Context(), 1); err != nil {
			r.Error(err)
		}
	}, shiva.WithLimits(shiva.Limits{MessageBytes: 1000}))
}

// TestClientBudget: a pool without room refuses the request, or the answer, and nothing else fails.
func TestClientBudget(t *testing.T) {
	answers := func(c *shivatest.Conn, m *shiva.Message) {
		if n := number(m); n > 0 {
			x, _ := tensor.FromSlice(tensor.Shape{n}, make([]uint8, n))
			m = &shiva.Message{Tensors: []tensor.Tensor{x}}
		}
		shivatest.Echo(c, m)
	}
	withRig(t, answers, func(r *rig) {
		pool := tensor.NewPool(10_000)
		c, err := shiva.Dial(r.Context(), rigAddr, shiva.WithDialer(r.net.Dial), shiva.WithPool(pool))
		if err != nil {
			r.Fatal(err)
		}
		defer c.Close()
		_, err = c.Do(r.Context(),
			&shiva.Message{Namespace: "n", Metadata: []byte(`{"x":"` + strings.Repeat("x", 10_000) + `"}`)})
		if !errors.Is(err, tensor.ErrBudget) {
			r.Errorf("a request of 10 KB: %v", err)
		}
		_, err = c.Do(r.Context(), numbered(20_000))
		if e, ok := errors.AsType[*shiva.DecodeError](err); !ok || e.Kind != shiva.KindOverBudget {
			r.Errorf("an answer of 20 KB: %v", err)
		}
		m, err := c.Do(r.Context(), numbered(0))
		if err != nil {
			r.Fatal(err)
		}
		m.Release()
		checkLeaks(r.T, pool)
		if n := len(r.server.Conns()); n != 2 {
			r.Errorf("%d connections, want one of each client", n)
		}
	})
}

// TestClientReconnectBackoff: while the server is down, each request fails with one attempt to
// connect, the attempts come in growing intervals, and the first after its return succeeds.
func TestClientReconnectBackoff(t *testing.T) {
	const shortest, longest = 100 * time.Millisecond, time.Second
	withRig(t, shivatest.Echo, func(r *rig) {
		if err := r.do(r.Context(), 1); err != nil {
			r.Fatal(err)
		}
		r.server.Close()
		synctest.Wait()
		start := time.Now()
		wantCallError(r.T, r.do(r.Context(), 1), false, syscall.ECONNREFUSED)
		if d := time.Since(start); d != 0 {
			r.Errorf("the first attempt came after %v", d)
		}
		early := 0
		for pause := shortest; pause <= 32*longest; pause *= 2 {
			start := time.Now()
			wantCallError(r.T, r.do(r.Context(), 1), false, syscall.ECONNREFUSED)
			d, most := time.Since(start), min(pause, longest)
			if d < most/2 || d > most {
				r.Errorf("the attempt came after %v, want %v to %v", d, most/2, most)
			}
			if d < most {
				early++
			}
		}
		if early == 0 {
			r.Error("the pauses are not spread: many clients would come back at once")
		}
		// The next attempt does not send a call that was given up before it.
		ctx, cancel := context.WithTimeout(r.Context(), longest/4)
		defer cancel()
		wantCallError(r.T, r.do(ctx, 1), false, context.DeadlineExceeded)
		r.listen(func(c *shivatest.Conn, m *shiva.Message) {
			if number(m) == 1 {
				r.Error("the request of a call that had given up was sent")
			}
			shivatest.Echo(c, m)
		})
		if err := r.do(r.Context(), 2); err != nil {
			r.Error(err)
		}
	}, shiva.WithBackoff(shortest, longest))
}

// TestClientHangUpBackoff: the client does not reconnect in a tight loop to a server that accepts
// and hangs up.
func TestClientHangUpBackoff(t *testing.T) {
	hangUp := func(c *shivatest.Conn, _ *shiva.Message) { c.Close() }
	withRig(t, hangUp, func(r *rig) {
		start := time.Now()
		for range 5 {
			wantCallError(r.T, r.do(r.Context(), 1), true, io.EOF)
		}
		if d := time.Since(start); d < (100+200+400+800)*time.Millisecond/2 {
			r.Errorf("five connections in %v", d)
		}
	}, shiva.WithBackoff(100*time.Millisecond, time.Minute))
}

// An invalid socket path is refused by name, before anything is dialed.
func TestClientDialsNoSocket(t *testing.T) {
	dir := t.TempDir()
	for addr, want := range map[string]string{
		"unix:":  "expected unix:PATH, or unix:@NAME: a Unix socket without a path",
		"unix:@": "without a name",
		"unix:" + dir + strings.Repeat("x", unixsocket.Longest): "at most 107 bytes",
		"unix:" + dir + "/missing":                              "connecting to unix:" + dir + "/missing: dial unix",
	} {
		c, err := shiva.Dial(t.Context(), addr)
		if err == nil {
			c.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; expected %q", addr, err, want)
		}
	}
}
