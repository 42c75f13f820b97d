package container_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

const firstAddr, secondAddr = "10.0.0.1:7000", "10.0.0.2:7000"

// pair runs f with two servers that share a container.
func pair(t *testing.T, m func(n *network) container.Model, f func(t *testing.T, n *network, a, b *server)) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newServer(t), newServer(t)
		n := &network{servers: map[string]*server{firstAddr: a, secondAddr: b}}
		stop := serving(m(n), nil, firstAddr, secondAddr)
		synctest.Wait()
		f(t, n, a, b)
		if err := stop(); err != nil {
			t.Error(err)
		}
		a.stop(t)
		b.stop(t)
		synctest.Wait()
	})
}

func shared(s *server) bool {
	all := s.Sessions()
	return len(all) == 1 && all[0].Shared
}

// asks sends requests of one row to a server, all at once, and returns once all are answered. Each
// row has its own numbers, counted from a base.
func asks(t *testing.T, s *server, base float32, count int, failed func(i int) bool) {
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			in := row(base+float32(i), float32(i))
			out, err := s.ask(&scheduler.Request{Inputs: []tensor.Tensor{in}, Parameters: fmt.Appendf(nil, `{"of":%g}`, base)})
			if failed != nil && failed(i) {
				if err == nil {
					t.Errorf("row %d of %g is answered, expected an error", i, base)
				}
			} else if err != nil || !bytes.Equal(out[0].Data, in.Data) {
				t.Errorf("row %d of %g: %v %v", i, base, out, err)
			}
			for _, o := range out {
				o.Release()
			}
		})
	}
	wg.Wait()
}

// TestRowsOfTwoServers: rows that wait in two servers are executed in one call, each with the data
// of its own request, and answered to the server from which it came. Once one server has closed,
// the other sends batches without grants.
func TestRowsOfTwoServers(t *testing.T) {
	both := 0
	slow := func(n *network) container.Model {
		return model(n, func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			time.Sleep(5*time.Millisecond + time.Duration(b.Rows)*time.Millisecond/2)
			values, err := tensor.Values[float32](b.Inputs[0])
			if err != nil || b.Len() != b.Rows || b.Deadline.IsZero() {
				t.Errorf("%v, %d requests, %d rows, deadline %v", err, b.Len(), b.Rows, b.Deadline)
			}
			of := make(map[string]bool)
			for i := range b.Len() {
				var p struct{ Of float32 }
				if err := json.Unmarshal(b.Parameters(i), &p); err != nil || values[2*i] < p.Of ||
					values[2*i] >= p.Of+1000 {
					t.Errorf("request %d has parameters %s and the row %v", i, b.Parameters(i), values[2*i:2*i+2])
				}
				of[string(b.Parameters(i))] = true
			}
			if len(of) == 2 {
				both++
			}
			return b.Inputs, nil
		})
	}
	pair(t, slow, func(t *testing.T, n *network, a, b *server) {
		if !shared(a) || !shared(b) {
			t.Fatal("the servers do not know that they share it")
		}
		var wg sync.WaitGroup
		for i, s := range []*server{a, b} {
			for range 3 { // so that some rows wait while others are executed
				wg.Go(func() {
					for range 12 {
						time.Sleep(100 * time.Microsecond) // as real clients, which the habit of a server is about
						asks(t, s, float32(5000*i), 7, nil)
					}
				})
			}
		}
		wg.Wait()
		if both == 0 {
			t.Error("no call had rows of both servers")
		}
		n.set(secondAddr, nil)
		b.Close()
		time.Sleep(time.Second)
		if shared(a) {
			t.Error("a server that is alone does not know it")
		}
		asks(t, a, 0, 40, nil)
	})
}

// TestServersComeAndGo: two servers share a container and get requests all the time. One gets other
// settings again and again, the other is replaced. No request of the first fails, and of the other
// only those that it had when it ended.
func TestServersComeAndGo(t *testing.T) {
	slow := func(n *network) container.Model {
		return model(n, func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			time.Sleep(5*time.Millisecond + time.Duration(b.Rows)*time.Millisecond/2)
			return b.Inputs, nil
		})
	}
	pair(t, slow, func(t *testing.T, n *network, a, b *server) {
		over := make(chan struct{})
		asked := func(s *server, f func(err error)) (wait func()) {
			var wg sync.WaitGroup
			for i := range 12 {
				wg.Go(func() {
					for {
						select {
						case <-over:
							return
						default:
						}
						out, err := s.ask(&scheduler.Request{Inputs: []tensor.Tensor{row(float32(i), 0)}})
						f(err)
						if err != nil {
							return
						}
						out[0].Release()
					}
				})
			}
			return wg.Wait
		}
		var first, second, third atomic.Int64
		wait := asked(a, func(err error) {
			if first.Add(1); err != nil {
				t.Errorf("a server that goes on: %v", err)
			}
		})
		lost := asked(b, func(err error) {
			if second.Add(1); err != nil && !errors.Is(err, scheduler.ErrUnavailable) &&
				!errors.Is(err, scheduler.ErrContainerLost) && !errors.Is(err, scheduler.ErrDraining) {
				t.Errorf("a server that ended: %v", err)
			}
		})
		for i := range 10 {
			time.Sleep(20 * time.Millisecond)
			c := scheduler.ModelConfig{Strategy: scheduler.Strategies()[i%4], MaxBatch: []int{0, 3, 64}[i%3],
				Slots: i % 3, ExecTimeout: time.Duration(1+i) * time.Second}
			if err := a.sched.Configure(id.Name, c); err != nil {
				t.Error(err)
			}
		}
		n.set(secondAddr, nil)
		b.Close()
		lost()
		before := first.Load()
		time.Sleep(50 * time.Millisecond)
		if n := first.Load() - before; n == 0 || shared(a) {
			t.Errorf("%d answers in 50 ms without the other server; shared: %v", n, shared(a))
		}
		c := newServer(t)
		n.set(secondAddr, c)
		for c.live() == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		again := asked(c, func(err error) {
			if third.Add(1); err != nil {
				t.Errorf("the server that came: %v", err)
			}
		})
		time.Sleep(200 * time.Millisecond)
		if !shared(a) || !shared(c) {
			t.Error("the servers do not know that they share it")
		}
		close(over)
		wait()
		again()
		if x, y, z := first.Load(), second.Load(), third.Load(); min(x, y, z) < 100 {
			t.Errorf("answers: %d of the first server, %d and %d of the other two", x, y, z)
		}
		n.set(secondAddr, nil)
		c.stop(t)
	})
}

// TestPartsFail: of rows of two servers in one call only those fail that the model fails, and a
// call that fails as a whole is repeated for each server.
func TestPartsFail(t *testing.T) {
	poison := func(n *network) container.Model {
		return model(n, func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			time.Sleep(5 * time.Millisecond)
			values, err := tensor.Values[float32](b.Inputs[0])
			for i := range b.Rows {
				switch values[2*i] {
				case 5003:
					b.Fail(i, errors.New("too dark"))
				case 7:
					return nil, errors.New("poisoned")
				}
			}
			return b.Inputs, err
		})
	}
	pair(t, poison, func(t *testing.T, _ *network, a, b *server) {
		var wg sync.WaitGroup
		wg.Go(func() { asks(t, a, 0, 30, func(i int) bool { return i == 7 }) })
		wg.Go(func() { asks(t, b, 5000, 30, func(i int) bool { return i == 3 }) })
		wg.Wait()
	})
}

// TestRaggedParts: values of rows that differ in size go to the server of their row.
func TestRaggedParts(t *testing.T) {
	ragged := func(n *network) container.Model {
		m := model(n, func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			time.Sleep(5 * time.Millisecond)
			values, err := tensor.Values[float32](b.Inputs[0])
			if err != nil {
				return nil, err
			}
			var boxes []float32
			counts := make([]int64, b.Rows)
			for i := range b.Rows {
				counts[i] = int64(values[2*i]) % 3
				boxes = append(boxes, slices.Repeat(values[2*i:2*i+1], int(counts[i]))...)
			}
			x, err := tensor.FromSlice(tensor.Shape{len(boxes), 1}, boxes)
			c, err2 := tensor.FromSlice(tensor.Shape{b.Rows}, counts)
			return []tensor.Tensor{x, c}, errors.Join(err, err2)
		})
		m.Outputs = []tensor.Spec{{Name: "boxes", DType: tensor.Float32, Shape: tensor.Shape{-1, 1}, Ragged: "count"},
			{Name: "count", DType: tensor.Int64, Shape: tensor.Shape{-1}}}
		return m
	}
	pair(t, ragged, func(t *testing.T, _ *network, a, b *server) {
		var wg sync.WaitGroup
		for i := range 60 {
			s, value := []*server{a, b}[i%2], float32(i)
			wg.Go(func() {
				out, err := s.ask(&scheduler.Request{Inputs: []tensor.Tensor{row(value, 0)}})
				if err != nil {
					t.Error(err)
					return
				}
				boxes, err := tensor.Values[float32](out[0])
				if want := slices.Repeat([]float32{value}, i%3); err != nil || !slices.Equal(boxes, want) {
					t.Errorf("%v, %v, expected %v", boxes, err, want)
				}
				for _, o := range out {
					o.Release()
				}
			})
		}
		wg.Wait()
	})
}

// TestGrantsBeforeAnswers: the next execution is granted before this one is answered, for rows of
// one server or of several. A server that has read an answer hands it to its clients before it
// reads on.
func TestGrantsBeforeAnswers(t *testing.T) {
	const batch = `{"rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1,2]}],"grant":%d,"left":5}`
	for servers := 1; servers <= 2; servers++ { // servers with rows
		synctest.Test(t, func(t *testing.T) {
			n := &network{}
			m := model(n, func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
				time.Sleep(5 * time.Millisecond)
				return b.Inputs, nil
			})
			var mu sync.Mutex
			over := false
			grants, answers := make(map[string]int), make(map[string]int)
			m.Dial = func(_ context.Context, _, addr string) (net.Conn, error) {
				mine, theirs := containertest.Pipe()
				go strange(theirs, `{"protocol":4,"server":"strange","heartbeat_ms":1000,"dead_after_ms":3000,"batched":true,"grants":true}`,
					func(say func(...string), kind, text string) {
						mu.Lock()
						defer mu.Unlock()
						var g struct{ Grant int }
						if kind == "result" && !over {
							if answers[addr]++; grants[addr] != answers[addr]+1 {
								t.Errorf("answer %d of %s comes after %d grants", answers[addr], addr, grants[addr])
							}
						} else if kind == "grant" && json.Unmarshal([]byte(text), &g) == nil && g.Grant > 0 {
							grants[addr]++
							say("batch", fmt.Sprintf("%08d", g.Grant), fmt.Sprintf(batch, g.Grant), "abcdefgh")
						}
					}, func(say func(...string), round int) bool {
						if round == 1 && (servers == 2 || addr == firstAddr) {
							say("offer", `{"rows":6}`)
						}
						return false
					})
				return mine, nil
			}
			stop := serving(m, nil, firstAddr, secondAddr)
			time.Sleep(100 * time.Millisecond)
			mu.Lock()
			if len(answers) != servers || answers[firstAddr] < 10 {
				t.Errorf("answers %v of %d servers", answers, servers)
			}
			over = true
			mu.Unlock()
			if err := stop(); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		})
	}
}

// TestStrangeServers: alongside an honest server another one does not know grants and sends at any
// time, or offers rows and never sends any, or dies with a grant. The honest one is served, and so
// are batches without a grant.
func TestStrangeServers(t *testing.T) {
	const batch = `{"rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1,2]}]}`
	for _, c := range []struct {
		name, welcome string
		play          func(say func(...string), round int) (ended bool)
		answered      bool // each batch
	}{
		{"knows no grants", "", func(say func(...string), round int) bool {
			say("batch", fmt.Sprintf("%08d", round), batch, "abcdefgh")
			return false
		}, true},
		{"sends without grants", `,"grants":true`, func(say func(...string), round int) bool {
			say("batch", fmt.Sprintf("%08d", round), batch, "abcdefgh")
			return false
		}, true},
		{"offers and never sends", `,"grants":true`, func(say func(...string), _ int) bool {
			say("offer", `{"rows":1000000,"due_ms":0.001}`)
			return false
		}, false},
		{"gives back what it does not have", `,"grants":true`, func(say func(...string), round int) bool {
			say("offer", fmt.Sprintf(`{"pass":%d}`, round))
			return false
		}, false},
		{"says numbers of any size", `,"grants":true`, func(say func(...string), round int) bool {
			say("offer", `{"rows":9223372036854775807,"due_ms":9223372036854}`)
			say("batch", fmt.Sprintf("%08d", round), `{"rows":3,"best":4611686018427387904,`+
				`"left":9223372036854775807,"inputs":[{"name":"x","datatype":"FP32","shape":[3,2]}]}`,
				strings.Repeat("abcdefgh", 3))
			return false
		}, true},
		{"dies with a grant", `,"grants":true`, func(say func(...string), round int) bool {
			say("offer", `{"rows":1}`)
			return round == 1
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				n := &network{servers: map[string]*server{firstAddr: s}}
				m := model(n, func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
					time.Sleep(5 * time.Millisecond)
					return b.Inputs, nil
				})
				var mu sync.Mutex
				sent, results := 0, 0
				m.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if addr == firstAddr {
						return n.dial(ctx, network, addr)
					}
					mine, theirs := containertest.Pipe()
					go strange(theirs,
						`{"protocol":4,"server":"strange","heartbeat_ms":1000,"dead_after_ms":3000,"batched":true`+
							c.welcome+`}`, func(_ func(...string), kind, _ string) {
							mu.Lock()
							defer mu.Unlock()
							if kind == "result" {
								results++
							}
						}, func(say func(...string), round int) bool {
							mu.Lock()
							sent++
							mu.Unlock()
							return c.play(say, round)
						})
					return mine, nil
				}
				stop := serving(m, nil, firstAddr, secondAddr)
				synctest.Wait()
				began := time.Now()
				for range 20 {
					asks(t, s, 0, 10, nil)
					time.Sleep(7 * time.Millisecond)
				}
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("the honest server waited %v for 20 rounds", took)
				}
				time.Sleep(100 * time.Millisecond)
				if all := s.Sessions(); len(all) != 1 || all[0].Since.After(began) {
					t.Errorf("the honest server's sessions are %+v, want the one that it had", all)
				}
				mu.Lock()
				if c.answered && results < sent-2 || sent == 0 {
					t.Errorf("%d batches of the strange server, %d answers", sent, results)
				}
				mu.Unlock()
				if err := stop(); err != nil {
					t.Error(err)
				}
				s.stop(t)
				synctest.Wait()
			})
		})
	}
}

// TestMoreRowsThanThereAre: where nothing but its head says how many rows a batch has, one of as
// many as a number has room for is executed alone.
func TestMoreRowsThanThereAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		n := &network{servers: map[string]*server{firstAddr: s}}
		m := model(n, func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			time.Sleep(5 * time.Millisecond)
			if b.Rows > 100 {
				return nil, errors.New("too many")
			}
			y, err := b.Output(0)
			return []tensor.Tensor{y}, err
		})
		m.Inputs, m.Batched = nil, new(true)
		var answers atomic.Int32
		m.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == firstAddr {
				return n.dial(ctx, network, addr)
			}
			mine, theirs := containertest.Pipe()
			go strange(theirs, `{"protocol":4,"server":"strange","heartbeat_ms":1000,"dead_after_ms":3000,"batched":true}`,
				func(_ func(...string), kind, _ string) {
					if kind == "result" {
						answers.Add(1)
					}
				}, func(say func(...string), round int) bool {
					say("batch", fmt.Sprintf("%08d", round), `{"rows":9223372036854775807,"inputs":[]}`)
					return false
				})
			return mine, nil
		}
		stop := serving(m, nil, firstAddr, secondAddr)
		synctest.Wait()
		for range 20 {
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					out, err := s.ask(&scheduler.Request{Parameters: []byte(`{"of":1}`)})
					if err != nil || len(out) != 1 {
						t.Errorf("%d outputs, %v", len(out), err)
					}
					for _, o := range out {
						o.Release()
					}
				})
			}
			wg.Wait()
			time.Sleep(time.Millisecond)
		}
		if answers.Load() == 0 {
			t.Error("no batch of the strange server is answered")
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		s.stop(t)
		synctest.Wait()
	})
}

// strange is a server that sends welcome and then plays a round every 9 ms. heard is called with
// the first two frames of each message.
func strange(raw net.Conn, welcome string, heard func(say func(...string), kind, text string),
	play func(say func(...string), round int) (ended bool)) {
	conn, err := zmtp.Server(raw, zmtp.Config{})
	if err != nil {
		return
	}
	defer conn.Close()
	say := func(frames ...string) {
		var o zmtp.Outgoing
		for _, f := range frames {
			o.FrameString(strings.Clone(f))
		}
		_ = conn.Send(&o) // a closed peer reads nothing
	}
	var m zmtp.Message
	if conn.Receive(&m) != nil {
		return
	}
	m.Release()
	say("welcome", welcome)
	done := make(chan struct{})
	go func() { // ends with the connection
		defer close(done)
		for conn.Receive(&m) == nil {
			text := ""
			if len(m.Frames) > 1 {
				text = string(m.Frames[1].Data)
			}
			heard(say, string(m.Frames[0].Data), text)
			if string(m.Frames[0].Data) == "draining" {
				say("goodbye", `{"reason":"drained","reconnect":false}`)
			}
			m.Release()
		}
	}()
	for round := 1; ; round++ {
		select {
		case <-done:
			return
		case <-time.After(9 * time.Millisecond):
		}
		if play(say, round) {
			conn.Close()
			<-done
			return
		}
	}
}
