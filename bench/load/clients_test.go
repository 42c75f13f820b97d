package load

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"
)

// clientTrials simulates a server that serves so many clients in time.
func clientTrials(capacity int, disturbed float64, r *rand.Rand) func(context.Context, int, time.Duration,
	bool) (Trial, error) {
	return func(_ context.Context, clients int, length time.Duration, _ bool) (Trial, error) {
		t := Trial{Rate: 20 * float64(clients), Clients: clients, Length: length}
		t.Requests = int64(t.Rate * length.Seconds())
		t.Kept = t.Requests
		if clients > capacity || r.Float64() < disturbed {
			t.Kept -= t.Requests / 10
		}
		return t, nil
	}
}

func TestSearchClients(t *testing.T) {
	p := Promise{0.99, 50 * time.Millisecond}
	r := rand.New(rand.NewPCG(1, 2))
	for _, capacity := range []int{1, 2, 3, 8, 31, 32, 33, 700} {
		best, all, err := SearchClients(t.Context(), p, 30*time.Second, clientTrials(capacity, 0, r))
		if err != nil || best > capacity || float64(best) < float64(capacity)/precision {
			t.Errorf("%d clients of %d, %v", best, capacity, err)
		}
		if last := all[len(all)-1]; !last.Last || last.Clients != best || last.Length != 30*time.Second {
			t.Errorf("%d clients of %d were confirmed by %+v", best, capacity, last)
		}
		near := 0
		for range 40 {
			best, _, err := SearchClients(t.Context(), p, 30*time.Second, clientTrials(capacity, 0.1, r))
			if err == nil && 20*best >= 19*capacity {
				near++
			}
		}
		if near < 36 {
			t.Errorf("%d clients: %d of 40 searches among disturbances came within 5 %%", capacity, near)
		}
	}
}

func TestSearchClientsFindsNone(t *testing.T) {
	p := Promise{0.99, time.Millisecond}
	r := rand.New(rand.NewPCG(1, 2))
	if best, all, err := SearchClients(t.Context(), p, time.Second, clientTrials(0, 0, r)); !errors.Is(err,
		ErrNoClients) || best != 0 || len(all) == 0 {
		t.Errorf("%d, %d trials, %v", best, len(all), err)
	}
	if best, _, err := SearchClients(t.Context(), p, time.Second, clientTrials(math.MaxInt32, 0, r)); err != nil ||
		best != MaxClients {
		t.Errorf("a server without limits: %d, %v", best, err)
	}
	broken := errors.New("broken")
	_, all, err := SearchClients(t.Context(), p, time.Second,
		func(context.Context, int, time.Duration, bool) (Trial, error) { return Trial{}, broken })
	if !errors.Is(err, broken) || len(all) != 0 {
		t.Errorf("%d trials, %v", len(all), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := SearchClients(ctx, p, time.Second, clientTrials(1, 0, r)); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context's end: %v", err)
	}
}

func TestParseThink(t *testing.T) {
	for text, want := range map[string]Think{"5ms": {Mean: 5 * time.Millisecond}, "exp:1s": {time.Second, true}, "0s": {}} {
		got, err := ParseThink(text)
		if again, errAgain := ParseThink(got.String()); err != nil || errAgain != nil || got != want || again != got {
			t.Errorf("%s: %+v, %v; again %+v, %v", text, got, err, again, errAgain)
		}
	}
	for _, bad := range []string{"", "5", "-1ms", "exp", "exp:", "exp:5", "normal:5ms"} {
		if _, err := ParseThink(bad); err == nil {
			t.Errorf("%q is no think time, and no error", bad)
		}
	}
}

// Clients wake in the order of their times, whatever the order in which they began to think.
func TestThinkingIsOrdered(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var h thinking
	var want, got []time.Duration
	for range 300 {
		d := time.Duration(r.IntN(100))
		want = append(want, d)
		h.push(thinker{until: d})
		if r.IntN(3) == 0 {
			slices.Sort(want)
			if first := h.pop().until; first != want[0] {
				t.Fatalf("%v, expected %v", first, want[0])
			}
			want = want[1:]
		}
	}
	for len(h) > 0 {
		got = append(got, h.pop().until)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%v, expected %v", got, want)
	}
}

// Exponential think times have their mean.
func TestThinkTimes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	sum := time.Duration(0)
	for range 10_000 {
		sum += Think{time.Second, true}.draw(r)
	}
	if mean := sum / 10_000; mean < 950*time.Millisecond || mean > 1050*time.Millisecond {
		t.Errorf("a mean of %v, expected 1s", mean)
	}
	if d := (Think{Mean: time.Second}).draw(r); d != time.Second {
		t.Errorf("a constant time of %v, expected 1s", d)
	}
}

// A client asks no earlier than a think time after its answer, and one request at a time.
func TestClientsThink(t *testing.T) {
	const think = 20 * time.Millisecond
	early := make(chan time.Duration, 1000)
	addr := serve(t, func(c net.Conn) {
		p := make([]byte, len(small))
		for last := (time.Time{}); ; last = time.Now() {
			for n := 0; n < len(p); {
				k, err := c.Read(p[n:])
				if err != nil {
					return
				}
				n += k
			}
			// Most of a millisecond may pass between the answer's arrival and this clock.
			if d := time.Since(last); d < think-2*time.Millisecond {
				early <- d
			}
			if _, err := c.Write(p); err != nil {
				return
			}
		}
	})
	r, err := Run(t.Context(),
		Config{Addr: addr, Frames: [][]byte{small}, Conns: 3, Think: Think{Mean: think},
			Duration: 300 * time.Millisecond, Grace: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case d := <-early:
		t.Errorf("asked %v after its answer, expected %v", d, think)
	default:
	}
	if n := r.Latency.Count(); n < 3 || n > 3*(300/20+1) || r.Lost+r.Failed != 0 || r.Lag.Count() != n {
		t.Errorf("%d answers of 3 clients in 300 ms, %d lost, %d failed, %d lags", n, r.Lost, r.Failed, r.Lag.Count())
	}
	for _, bad := range []Config{{Think: Think{Mean: -1}}, {Think: Think{Mean: 1}, Rate: 5}} {
		bad.Addr, bad.Frames = addr, [][]byte{small}
		if _, err := Run(t.Context(), bad); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
}
