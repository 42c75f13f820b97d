package shiva_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A rig is a client and a steerable server on a network in memory, inside a synctest bubble,
// whose end fails the test if a goroutine is left.
type rig struct {
	*testing.T
	net    shivatest.Net
	server *shivatest.Server
	client *shiva.Client
	pool   *tensor.Pool
}

const rigAddr = "server:1"

func withRig(t *testing.T, h shivatest.Handler, f func(r *rig), opts ...shiva.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, pool: tensor.NewPool(0)}
		r.listen(h)
		var err error
		opts = append([]shiva.Option{shiva.WithDialer(r.net.Dial), shiva.WithPool(r.pool)}, opts...)
		if r.client, err = shiva.Dial(t.Context(), rigAddr, opts...); err != nil {
			t.Fatal(err)
		}
		f(r)
		if err := r.client.Close(); err != nil {
			t.Error(err)
		}
		r.server.Close()
		checkLeaks(t, r.pool)
	})
}

func (r *rig) listen(h shivatest.Handler) {
	r.Helper()
	l, err := r.net.Listen(rigAddr)
	if err != nil {
		r.Fatal(err)
	}
	r.server = shivatest.Serve(l, h)
}

// do sends a message that contains n, and checks the answer.
func (r *rig) do(ctx context.Context, n int) error {
	m, err := r.client.Do(ctx, numbered(n))
	if err != nil {
		return err
	}
	defer m.Release()
	if got := number(m); got != n {
		r.Errorf("the answer to %d is %d", n, got)
	}
	return nil
}

func numbered(n int) *shiva.Message {
	return &shiva.Message{Namespace: "n", Metadata: fmt.Appendf(nil, `{"n":%d}`, n)}
}

func number(m *shiva.Message) int {
	n, _ := strconv.Atoi(string(jsonscan.Field(m.Metadata, "n")))
	return n
}

// wantCallError checks that err is a CallError with this fate of the request that wraps reason.
func wantCallError(t *testing.T, err error, mayHaveRun bool, reason error) {
	t.Helper()
	e, ok := errors.AsType[*shiva.CallError](err)
	if !ok || e.MayHaveRun != mayHaveRun || !errors.Is(err, reason) {
		t.Errorf("error %v; want a CallError with MayHaveRun %t that is %v", err, mayHaveRun, reason)
	}
}

func TestClientEcho(t *testing.T) {
	withRig(t, shivatest.Echo, func(r *rig) {
		image := make([]byte, 3_000_000)
		for i := range image {
			image[i] = byte(i * 7)
		}
		floats := make([]float32, 100_000)
		for i := range floats {
			floats[i] = float32(i) / 3
		}
		a, _ := tensor.FromSlice(tensor.Shape{1000, 1000, 3}, image)
		b, _ := tensor.FromSlice(tensor.Shape{len(floats)}, floats)
		want := &shiva.Message{Namespace: "echo/1", Metadata: []byte(`{"id":"a"}`), Tensors: []tensor.Tensor{a, b}}
		got, err := r.client.Do(r.Context(), want)
		if err != nil {
			r.Fatal(err)
		}
		defer got.Release()
		sameMessage(r.T, "echo", got, want)
	})
}

// TestClientPipelines: of many concurrent callers each gets its own answer, and no more requests
// are in flight than the option allows.
func TestClientPipelines(t *testing.T) {
	const inFlight = 8
	var mu sync.Mutex
	var waiting []func()
	most := 0
	hold := func(c *shivatest.Conn, m *shiva.Message) {
		answer := shivatest.Clone(m)
		mu.Lock()
		defer mu.Unlock()
		waiting = append(waiting, func() { _ = c.Send(answer) })
		most = max(most, len(waiting))
	}
	withRig(t, hold, func(r *rig) {
		var wg sync.WaitGroup
		for n := range 50 {
			wg.Go(func() {
				if err := r.do(r.Context(), n); err != nil {
					r.Error(err)
				}
			})
		}
		for answered := 0; answered < 50; {
			synctest.Wait()
			mu.Lock()
			held := waiting
			waiting = nil
			mu.Unlock()
			for _, answer := range held {
				answer()
				answered++
			}
		}
		wg.Wait()
		if most != inFlight {
			r.Errorf("at most %d requests were on their way, want %d", most, inFlight)
		}
	}, shiva.WithInFlight(inFlight))
}

func TestClientRemoteError(t *testing.T) {
	want := shiva.RemoteError{Type: shiva.Overloaded, Message: "queue of \"m\" is full", Code: 429, Retryable: true,
		ID: `"x"`}
	withRig(t, shivatest.Fail(&want), func(r *rig) {
		_, err := r.client.Do(r.Context(), numbered(1))
		e, ok := errors.AsType[*shiva.RemoteError](err)
		if !ok || *e != want {
			r.Errorf("error %#v, want %#v", err, want)
		}
	})
}

// TestClientRefusesToSend: a message that cannot be encoded costs no connection and no slot.
func TestClientRefusesToSend(t *testing.T) {
	withRig(t, shivatest.Echo, func(r *rig) {
		for range 3 {
			if _, err := r.client.Do(r.Context(), &shiva.Message{Namespace: strings.Repeat("x", 256)}); err == nil ||
				!strings.Contains(err.Error(), "256") {
				r.Errorf("a namespace of 256 bytes: %v", err)
			}
		}
		if err := r.do(r.Context(), 1); err != nil {
			r.Error(err)
		}
	}, shiva.WithInFlight(1))
}

// TestClientDeadlineAfterAWait: the server is told what is left of a deadline when there is room
// for the request, and never that nothing is left.
func TestClientDeadlineAfterAWait(t *testing.T) {
	var told []string
	slow := func(c *shivatest.Conn, m *shiva.Message) {
		told = append(told, string(jsonscan.Field(m.Metadata, "timeout_ms")))
		time.Sleep(time.Second)
		shivatest.Echo(c, m)
	}
	withRig(t, slow, func(r *rig) {
		var all sync.WaitGroup
		for i := range 2 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
				defer cancel()
				if err := r.do(ctx, i); err != nil {
					r.Error(err)
				}
			})
		}
		all.Wait()
		ctx, cancel := context.WithTimeout(r.Context(), time.Nanosecond)
		defer cancel()
		wantCallError(r.T, r.do(ctx, 2), true, context.DeadlineExceeded)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if want := []string{"10000.000", "9000.000", "0.001"}; !slices.Equal(told, want) {
			r.Errorf("the server was told %q, expected %q", told, want)
		}
	}, shiva.WithInFlight(1), shiva.WithDeadlineMetadata())
}

// TestClientDeadlineKeepsOrder: a call returns at its deadline, and its late answer is not taken
// for the next call's, as the reference client does.
func TestClientDeadlineKeepsOrder(t *testing.T) {
	slow := func(c *shivatest.Conn, m *shiva.Message) {
		if number(m) == 0 {
			time.Sleep(time.Second)
		}
		shivatest.Echo(c, m)
	}
	withRig(t, slow, func(r *rig) {
		ctx, cancel := context.WithTimeout(r.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		wantCallError(r.T, r.do(ctx, 0), true, context.DeadlineExceeded)
		if d := time.Since(start); d != 100*time.Millisecond {
			r.Errorf("gave up after %v", d)
		}
		if err := r.do(r.Context(), 1); err != nil {
			r.Error(err)
		}
		if d := time.Since(start); d != time.Second {
			r.Errorf("the next answer came after %v, want it right after the late one", d)
		}
	})
}

// TestClientCancelUnsent: cancelling an unsent request leaves no trace.
func TestClientCancelUnsent(t *testing.T) {
	var mu sync.Mutex
	var seen []int
	release := make(chan struct{})
	h := func(c *shivatest.Conn, m *shiva.Message) {
		mu.Lock()
		seen = append(seen, number(m))
		mu.Unlock()
		<-release
		_ = c.Send(numbered(number(m)))
	}
	big, _ := tensor.New(tensor.Uint8, tensor.Shape{1 << 20}, make([]byte, 1<<20))
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, pool: tensor.NewPool(0)}
		release = make(chan struct{})
		r.listen(h)
		var err error
		if r.client, err = shiva.Dial(t.Context(), rigAddr, shiva.WithDialer(r.net.Dial), shiva.WithPool(r.pool),
			shiva.WithInFlight(5)); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		// The first request is being handled. The second fills the connection, which the server
		// does not read meanwhile, so the writer waits; the third to fifth are not sent.
		wg.Go(func() {
			if err := r.do(t.Context(), 1); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			m := numbered(2)
			m.Tensors = []tensor.Tensor{big}
			answer, err := r.client.Do(t.Context(), m)
			if err != nil {
				t.Error(err)
				return
			}
			answer.Release()
		})
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		for n := 3; n <= 5; n++ {
			wg.Go(func() {
				if n != 4 {
					if err := r.do(t.Context(), n); err != nil {
						t.Error(err)
					}
					return
				}
				wantCallError(t, r.do(ctx, n), false, context.Canceled)
			})
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		for range 10 { // each gives its slot back
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			wantCallError(t, r.do(ctx, 6), false, context.DeadlineExceeded)
			cancel()
		}
		start := time.Now()
		close(release)
		if err := r.do(t.Context(), 7); err != nil || time.Since(start) > 0 {
			t.Errorf("a request after many that gave up: %v, after %v", err, time.Since(start))
		}
		wg.Wait()
		if want := []int{1, 2, 3, 5, 7}; !slices.Equal(seen, want) {
			t.Errorf("the server saw %v, want %v", seen, want)
		}
		r.client.Close()
		r.server.Close()
		checkLeaks(t, r.pool)
	})
}

func TestClientClose(t *testing.T) {
	silent := func(*shivatest.Conn, *shiva.Message) {}
	withRig(t, silent, func(r *rig) {
		var wg sync.WaitGroup
		wg.Go(func() { wantCallError(r.T, r.do(r.Context(), 1), true, shiva.ErrClosed) })
		synctest.Wait()
		// This request waits for a slot.
		wg.Go(func() { wantCallError(r.T, r.do(r.Context(), 2), false, shiva.ErrClosed) })
		synctest.Wait()
		r.client.Close()
		wg.Wait()
		wantCallError(r.T, r.do(r.Context(), 3), false, shiva.ErrClosed)
	}, shiva.WithInFlight(1))
}

// TestClientCloseWhileAway: Close waits neither for a pause between attempts nor for an attempt.
func TestClientCloseWhileAway(t *testing.T) {
	var slow atomic.Bool
	var rigged *rig
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		if slow.Load() {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return rigged.net.Dial(ctx, network, addr)
	}
	for _, during := range []string{"pause", "attempt"} {
		synctest.Test(t, func(t *testing.T) {
			slow.Store(false)
			r := &rig{T: t, pool: tensor.NewPool(0)}
			rigged = r
			r.listen(shivatest.Echo)
			c, err := shiva.Dial(t.Context(), rigAddr, shiva.WithDialer(dial), shiva.WithPool(r.pool),
				shiva.WithBackoff(time.Hour, time.Hour), shiva.WithDialTimeout(24*time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			r.client = c
			r.server.Close()
			synctest.Wait()
			if during == "pause" {
				for range 2 { // first a connection lost without an answer, then a refused one
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
					_ = r.do(ctx, 1)
					cancel()
				}
			} else {
				slow.Store(true)
			}
			var wg sync.WaitGroup
			wg.Go(func() { wantCallError(t, r.do(t.Context(), 1), false, shiva.ErrClosed) })
			if during == "attempt" {
				time.Sleep(time.Hour + time.Second)
			}
			synctest.Wait()
			start := time.Now()
			c.Close()
			if d := time.Since(start); d != 0 {
				t.Errorf("closing during a %s took %v", during, d)
			}
			wg.Wait()
			checkLeaks(t, r.pool)
		})
	}
}

func TestClientDialFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n shivatest.Net
		if _, err := shiva.Dial(t.Context(), rigAddr, shiva.WithDialer(n.Dial)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("nobody listens: %v", err)
		}
		hang := func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		start := time.Now()
		_, err := shiva.Dial(t.Context(), rigAddr, shiva.WithDialer(hang), shiva.WithDialTimeout(3*time.Second))
		if d := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || d != 3*time.Second {
			t.Errorf("after %v: %v", d, err)
		}
	})
}

func TestClientDefaultPort(t *testing.T) {
	for addr, want := range map[string]string{"host": "host:6174", "host:1": "host:1", "::1": "[::1]:6174", "[::1]:2": "[::1]:2"} {
		got := ""
		dial := func(_ context.Context, _, addr string) (net.Conn, error) { got = addr; return nil, io.EOF }
		if _, err := shiva.Dial(t.Context(), addr, shiva.WithDialer(dial)); !errors.Is(err, io.EOF) || got != want {
			t.Errorf("%s: dialled %q (%v), want %q", addr, got, err, want)
		}
	}
}

func TestClientDeadlineMetadata(t *testing.T) {
	for _, tt := range []struct{ metadata, want string }{
		{``, `{"timeout_ms":1500.000}`},
		{`{}`, `{"timeout_ms":1500.000}`},
		{` { } `, `{"timeout_ms":1500.000 } `},
		{`{"a":1}`, `{"timeout_ms":1500.000,"a":1}`},
		{`{ "a": {"timeout_ms": 3} }`, `{"timeout_ms":1500.000, "a": {"timeout_ms": 3} }`},
		{`{"timeout_ms":20}`, `{"timeout_ms":20}`},
		{`{"timeout_ms":1e3 , "a":1}`, `{"timeout_ms":1e3 , "a":1}`},
	} {
		withRig(t, shivatest.Echo, func(r *rig) {
			ctx, cancel := context.WithTimeout(r.Context(), 1500*time.Millisecond)
			defer cancel()
			question := &shiva.Message{Metadata: []byte(tt.metadata)}
			answer, err := r.client.Do(ctx, question)
			if err != nil {
				r.Fatal(err)
			}
			defer answer.Release()
			if string(answer.Metadata) != tt.want || string(question.Metadata) != tt.metadata {
				r.Errorf("%q was sent as %q, want %q; it is now %q", tt.metadata, answer.Metadata, tt.want,
					question.Metadata)
			}
		}, shiva.WithDeadlineMetadata())
	}
	withRig(t, shivatest.Echo, func(r *rig) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		_, err := r.client.Do(ctx, &shiva.Message{Metadata: []byte(`[1]`)})
		if e, ok := errors.AsType[*shiva.RemoteError](err); !ok || !strings.Contains(e.Message, "metadata not object") {
			r.Errorf("metadata that is no object: %v", err)
		}
	}, shiva.WithDeadlineMetadata())
}

// TestClientStorm: with many callers, many sizes, cancellations and broken connections at once,
// every call ends, no call gets the answer of another, and all memory is returned. The message of a
// failure has its seed.
func TestClientStorm(t *testing.T) {
	seed := rand.Uint64()
	echo := func(c *shivatest.Conn, m *shiva.Message) {
		if number(m)%97 == 0 {
			c.Close()
			return
		}
		shivatest.Echo(c, m)
	}
	withRig(t, echo, func(r *rig) {
		var wg sync.WaitGroup
		var answered, failed atomic.Int32
		for g := range 20 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, uint64(g)))
				for i := range max(20, budgettest.Rounds(100)) {
					n := g*1000 + i
					m := numbered(n)
					data := bytes.Repeat([]byte{byte(n)}, rnd.IntN(1<<uint(4+rnd.IntN(14))))
					x, _ := tensor.New(tensor.Uint8, tensor.Shape{len(data)}, data)
					m.Tensors = []tensor.Tensor{x}
					ctx, cancel := context.WithTimeout(r.Context(), time.Duration(rnd.IntN(50))*time.Millisecond)
					answer, err := r.client.Do(ctx, m)
					cancel()
					if err != nil {
						if _, ok := errors.AsType[*shiva.CallError](err); !ok {
							r.Errorf("seed %d: error of type %T: %v", seed, err, err)
						}
						failed.Add(1)
						time.Sleep(time.Duration(rnd.IntN(10)) * time.Millisecond)
						continue
					}
					if number(answer) != n || !bytes.Equal(answer.Tensors[0].Data, data) {
						r.Errorf("seed %d: the answer to %d is %d", seed, n, number(answer))
					}
					answer.Release()
					answered.Add(1)
				}
			})
		}
		wg.Wait()
		if answered.Load() == 0 || failed.Load() == 0 {
			r.Errorf("seed %d: %d answered, %d failed: not much of a storm", seed, answered.Load(), failed.Load())
		}
	}, shiva.WithInFlight(8), shiva.WithBackoff(time.Millisecond, 4*time.Millisecond))
}

// TestClientSocket uses a real socket.
func TestClientSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := shivatest.Serve(l, shivatest.Echo)
	defer server.Close()
	pool := tensor.NewPool(0)
	c, err := shiva.Dial(t.Context(), server.Addr(), shiva.WithPool(pool))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, client: c}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				if err := r.do(t.Context(), g*1000+i); err != nil {
					t.Error(err)
				}
			}
			x, _ := tensor.New(tensor.Float32, tensor.Shape{1 << 18}, bytes.Repeat([]byte{1, 2, 3, byte(g)}, 1<<18))
			want := &shiva.Message{Namespace: "big", Tensors: []tensor.Tensor{x}}
			got, err := c.Do(t.Context(), want)
			if err != nil {
				t.Error(err)
				return
			}
			defer got.Release()
			sameMessage(t, "big", got, want)
		})
	}
	wg.Wait()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	checkLeaks(t, pool)
}
