package shiva_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/shivatest"
)

// A hearth is three servers in a bubble, any of which may fall silent or be slow.
type hearth struct {
	net    shivatest.Net
	silent [3]atomic.Bool
	takes  atomic.Int64 // duration of a request, in ns
	asked  [3]atomic.Int64
	lived  atomic.Int64 // liveness checks
}

func newHearth(t *testing.T, opts ...shiva.Option) (*hearth, *shiva.Client) {
	h := &hearth{}
	var list []string
	for i := range h.silent {
		l, err := h.net.Listen(fmt.Sprintf("10.0.0.%d:6174", i))
		if err != nil {
			t.Fatal(err)
		}
		s := shivatest.Serve(l, func(c *shivatest.Conn, m *shiva.Message) {
			live := m.Namespace == shiva.LiveNamespace
			if live {
				h.lived.Add(1)
			} else {
				h.asked[i].Add(1)
			}
			if h.silent[i].Load() {
				return
			}
			if !live {
				time.Sleep(time.Duration(h.takes.Load()))
			}
			shivatest.Echo(c, m)
		})
		t.Cleanup(s.Close)
		list = append(list, l.Addr().String())
	}
	c, err := shiva.Dial(t.Context(), strings.Join(list, ","),
		append([]shiva.Option{shiva.WithDialer(h.net.Dial)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	synctest.Wait()
	return h, c
}

// ask sends n requests at once, and returns their errors, and how long the last one took.
func (h *hearth) ask(t *testing.T, c *shiva.Client, n int) (failed []error, took time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	start := time.Now()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			m, err := c.Do(ctx, &shiva.Message{Namespace: "n"})
			if err == nil {
				m.Release()
			}
			errs[i] = err
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			failed = append(failed, err)
		}
	}
	return failed, time.Since(start)
}

// TestSilentServer: requests that wait for a server that has fallen silent go to others after a few
// seconds, and none is lost; later ones do not wait, and the server is used again when it answers.
func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := newHearth(t, shiva.WithRepeatable())
		h.silent[1].Store(true)
		for round := range 3 {
			failed, took := h.ask(t, c, 30)
			if len(failed) > 0 {
				t.Fatalf("%d of 30 requests failed: %v", len(failed), failed[0])
			}
			if round == 0 && (h.asked[1].Load() == 0 || took < 2*time.Second || took > 5*time.Second) {
				t.Errorf("%d requests reached the silent server, and the last one took %v", h.asked[1].Load(), took)
			}
			if round > 0 && took > time.Second {
				t.Errorf("while it is known to be silent a request took %v", took)
			}
		}
		h.silent[1].Store(false)
		time.Sleep(time.Minute)
		h.asked[1].Store(0)
		if failed, _ := h.ask(t, c, 30); len(failed) > 0 || h.asked[1].Load() == 0 {
			t.Errorf("after its silence %d requests reached it: %v", h.asked[1].Load(), failed)
		}
	})
}

// TestStreamLeavesTheSilent: a stream whose server has fallen silent moves to another one after a
// few seconds. Frames that were sent are lost, and later ones are answered.
func TestStreamLeavesTheSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := newHearth(t)
		s, err := c.Stream(t.Context(), shiva.StreamConfig{Model: "m", Name: "cam", Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var good, lost atomic.Int64
		go func() { // until the stream is closed
			for a, err := range s.Answers(t.Context()) {
				if err != nil {
					lost.Add(1)
					continue
				}
				good.Add(1)
				a.Release()
			}
		}()
		send := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				if _, err := s.Push(t.Context(), shiva.Frame{}); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
		}
		send(5 * time.Second)
		if good.Load() != 50 || lost.Load() > 0 {
			t.Fatalf("%d of 50 frames were answered", good.Load())
		}
		for i := range h.silent {
			h.silent[i].Store(h.asked[i].Load() > 0)
		}
		send(5 * time.Second)
		good.Store(0)
		send(5 * time.Second)
		if good.Load() < 50 {
			t.Errorf("five seconds after its server fell silent %d of 50 frames are answered", good.Load())
		}
	})
}

// TestAllAreSilent: the error of a request has the fault of each server.
func TestAllAreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := newHearth(t, shiva.WithRepeatable())
		for i := range h.silent {
			h.silent[i].Store(true)
		}
		failed, took := h.ask(t, c, 1)
		if len(failed) != 1 || !errors.Is(failed[0], context.DeadlineExceeded) && took < 59*time.Second {
			t.Fatalf("%v after %v", failed, took)
		}
		for _, want := range []string{"10.0.0.0:6174", "10.0.0.1:6174", "10.0.0.2:6174", "the server accepts connections but does not answer !live"} {
			if !strings.Contains(failed[0].Error(), want) {
				t.Errorf("no %q in: %v", want, failed[0])
			}
		}
	})
}

// TestSlowModel: a slow request is not sent again, since its server passes the liveness check.
func TestSlowModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := newHearth(t, shiva.WithRepeatable())
		h.takes.Store(int64(20 * time.Second))
		before := h.lived.Load()
		failed, took := h.ask(t, c, 1)
		if n := h.asked[0].Load() + h.asked[1].Load() + h.asked[2].Load(); len(failed) > 0 || n != 1 ||
			took != 20*time.Second {
			t.Errorf("asked %d times, took %v: %v", n, took, failed)
		}
		if n := h.lived.Load() - before; n < 5 || n > 10 {
			t.Errorf("in 20 s it was asked %d times whether it lives", n)
		}
		time.Sleep(time.Hour)
		if n := h.lived.Load() - before; n > 10 {
			t.Errorf("nothing waits, and it was asked %d times whether it lives", n)
		}
	})
}

// TestSilentServerWithoutPermission: a request that may not run twice ends at its deadline.
func TestSilentServerWithoutPermission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, c := newHearth(t)
		before := h.lived.Load()
		for i := range h.silent {
			h.silent[i].Store(true)
		}
		failed, took := h.ask(t, c, 1)
		e, ok := errors.AsType[*shiva.CallError](errors.Join(failed...))
		if n := h.asked[0].Load() + h.asked[1].Load() + h.asked[2].Load(); !ok || !e.MayHaveRun || n != 1 ||
			took != time.Minute || h.lived.Load() != before {
			t.Errorf("asked %d times, took %v: %v", n, took, failed)
		}
	})
}
