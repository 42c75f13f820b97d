package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/scheduler/sim"
)

const (
	overload = 2 // times the capacity
	shortest = time.Millisecond
	longest  = time.Second
	// Limit of p99.9 of all answers, beyond the lateness of a bare timer.
	lateBy = time.Millisecond
	// Requests per second to the bare alarm: cheap, and enough for its p99.9.
	alarmRate = 200
	// Least ratio of the share in time of the run's last fifth to the first's.
	steady = 0.9
	// Connections per request in flight, so that requests hardly ever wait.
	spareConns = 1.3
)

// deadlines offers requests with random deadlines, 1 ms to 1 s, at twice the capacity, and prints
// how late their answers were written, alongside those of a program that only waits (bench/alarm),
// at the same time on the same machine. It returns the broken promises: answers later than those of
// the bare alarm by more than a millisecond; rows that reached the container although the server
// had answered that they never would; and a goodput that falls as deadlines keep passing. A missing
// or duplicate answer is an error of the generator.
func deadlines(ctx context.Context, p sim.Profile, requests int, seed uint64) (broken []string, err error) {
	err = withRig(ctx, p, func(r *rig) (err error) {
		broken, err = r.deadlines(ctx, requests, seed)
		return err
	}, "bench/alarm")
	return broken, err
}

func (r *rig) deadlines(ctx context.Context, requests int, seed uint64) (broken []string, err error) {
	p, listen := r.profile, ""
	if listen, err = process.FreeAddr(); err != nil {
		return nil, err
	}
	if err := r.Run(nil, "alarm", "-listen", listen); err != nil {
		return nil, err
	}
	capacity, err := r.capacity(ctx, 3*time.Second)
	if err != nil {
		return nil, err
	}
	if err := r.set(ctx, map[string]string{"strategy": "deadline", "objective": p.SLO.String()}); err != nil {
		return nil, err
	}
	rate := overload * capacity
	length := time.Duration(float64(requests) / rate * 1e9)
	fmt.Printf("%s; %d requests in %v, at %.0f times the capacity of %.0f rows/s, deadlines of %v to %v\n",
		p.Name, requests, length.Round(time.Second), float64(overload), capacity, shortest, longest)

	var server, alarm *load.Result
	var alarmErr error
	var wg sync.WaitGroup
	wg.Go(func() { alarm, alarmErr = offerDeadlines(ctx, listen, alarmRate, length, seed+1) })
	server, err = offerDeadlines(ctx, r.TCP, rate, length, seed)
	wg.Wait()
	if err != nil {
		return nil, err
	}
	if alarmErr != nil {
		return nil, fmt.Errorf("the bare alarm: %w", alarmErr)
	}
	counts, err := r.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	drops, ended := counts.By("shivad_drops_total", "reason"), counts.By("shivad_requests_total", "outcome")
	r.Stop()
	text := r.Output()
	got := regexp.MustCompile(`sleeper: (\d+) rows in`).FindStringSubmatch(text)
	if got == nil {
		return nil, fmt.Errorf("the container did not say how many rows it got:\n%s", text)
	}
	rows, err := strconv.Atoi(got[1])
	if err != nil {
		return nil, err
	}

	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "answers\t\tof them late\tby p50\tp99\tp99.9\tmax\tp99.9 as read\tp99.9 of all\t")
	for _, of := range []struct {
		name string
		*load.Result
	}{{"shivad", server}, {"bare alarm", alarm}} {
		l := &of.Late
		fmt.Fprintf(w, "%d\t%s\t%d\t%.2f ms\t%.2f ms\t%.2f ms\t%.2f ms\t%.2f ms\t%.2f ms\t\n",
			of.Latency.Count()+of.Refusal.Count(), of.name,
			l.Count(), milliseconds(l.Quantile(0.5)), milliseconds(l.Quantile(0.99)), milliseconds(l.Quantile(0.999)),
			milliseconds(l.Max()),
			milliseconds(of.LateRead.Quantile(0.999)), milliseconds(ofAll(of.Result)))
	}
	w.Flush()
	sent := ended["ok"] + drops["deadline_sent_late"] + drops["deadline_container"]
	fmt.Printf("%d answered in time, %d not: %.0f refused by prediction, %.0f expired in the queue, %.0f while executing; %d rows reached the container, %.0f were sent\n",
		server.Latency.Count(), server.Refusal.Count(), drops["predicted"], drops["deadline_never_sent"],
		drops["deadline_sent_late"]+drops["deadline_container"], rows, sent)

	fifth := len(server.Slots) / 5
	first, last := share(server.Slots[:fifth]), share(server.Slots[len(server.Slots)-fifth:])
	fmt.Printf("in time: %.1f %% in the first fifth of the run, %.1f %% in the last\n", 100*first, 100*last)
	if last < steady*first {
		broken = append(broken,
			fmt.Sprintf("%.3f are answered in time in the last fifth of the run, want at least %v of the %.3f in the first",
				last, steady, first))
	}
	if late, bare := ofAll(server), ofAll(alarm); late > bare+lateBy {
		broken = append(broken,
			fmt.Sprintf("answers are late by %v at p99.9, want at most %v more than a bare timer's %v", late, lateBy,
				bare))
	}
	if float64(rows) != sent {
		broken = append(broken,
			fmt.Sprintf("%d rows reached the container, want %.0f: those answered, and those that expired while executing",
				rows, sent))
	}
	return broken, nil
}

// offerDeadlines offers requests with random deadlines, one in flight per connection.
func offerDeadlines(ctx context.Context, addr string, rate float64, length time.Duration,
	seed uint64) (*load.Result, error) {
	c := load.Config{Addr: addr, Rate: rate, Seed: seed, Duration: length, Warmup: warmup, Within: longest + grace,
		Conns: int(spareConns*rate*longest.Seconds()) + 1}
	rng := rand.New(rand.NewPCG(seed, 1))
	for range c.Conns {
		d := shortest + time.Duration(rng.Int64N(int64(longest-shortest)))
		frame, err := request(d)
		if err != nil {
			return nil, err
		}
		c.Frames, c.Deadlines = append(c.Frames, frame), append(c.Deadlines, d)
	}
	return offered(load.Run(ctx, c))
}

// ofAll is the lateness at the 99.9th percentile of all answers.
func ofAll(r *load.Result) time.Duration {
	later := float64(r.Latency.Count()+r.Refusal.Count()) / 1000
	late := float64(r.Late.Count())
	if late <= later {
		return 0
	}
	return r.Late.Quantile(1 - later/late)
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }
