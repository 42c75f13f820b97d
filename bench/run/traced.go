package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
)

// followed is the system that follows one of a hundred requests, or none.
const followed = "traced"

const (
	// tracedRounds is the number of rounds for each of other parts, with stretches of a fifth of
	// their turns.
	tracedRounds = 6
	// tracedLag is left out before each stretch. It is more than spans wait before they are sent,
	// so that a stretch sends as many as it makes.
	tracedLag = 300 * time.Millisecond
)

// A stretch is a part of a load: its time, and the processor time of all processes in it.
type stretch struct {
	from, to time.Time
	cpu      time.Duration
}

// The kinds of stretches.
const (
	off      = iota
	on       // one of a hundred requests is followed
	offAgain // as off: what these two differ by is the error of the measurement
	kinds
)

// tracedRound is a round. All kinds have the same mean place in it, so that what else changes
// steadily meanwhile is the same for all.
var tracedRound = [...]int{off, on, offAgain, offAgain, on, off}

// traced measures what it costs the Shiva door to follow one of a hundred requests, with the way
// to a collector that takes all spans and keeps none: the rate of small requests to that without.
// The collector's time is a part of it, since it is in this process. Beside it stand the processor
// time of a request in all processes, which other work on the machine disturbs less, and the error
// of both.
//
// One server does both, under one load, and is told by a reload which. Of two servers that take
// turns, each has what it happened to get when it began; and half of what the spans of a short turn
// cost falls to the other, since spans are sent when some have come together: processor time was
// 1.008 in turns of 150 ms, and 1.02 in those of 250 ms. Longer stretches do not differ by less
// than short ones (by 5 % on two cores), so there are many short ones.
func traced(ctx context.Context, o options, bin string) ([]ratio.Ratio, error) {
	if err := process.Build(ctx, bin, programs([]string{followed})...); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	page := make([]byte, 1<<20)
	var spans atomic.Int64 // bytes of them
	collector := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		// Its one client sends a page after the other. By the 8 KiB of io.Discard it would read a
		// page in fifty pieces, with the processors that are measured.
		for {
			n, err := q.Body.Read(page)
			spans.Add(int64(n))
			if err != nil {
				return
			}
		}
	})}
	go func() { _ = collector.Serve(l) }() // until Close
	defer collector.Close()
	config := func(oneIn int) string {
		return fmt.Sprintf("[traces]\nendpoint = \"http://%s\"\none_in = %d\n", l.Addr(), oneIn)
	}
	configurations[followed] = config(0)
	s, err := startSystem(ctx, o, followed, bin, workloads[deep:deep+1])
	if err != nil {
		return nil, err
	}
	defer s.Stop()

	ctx, stop := context.WithCancel(ctx) // of the load, and of what is measured of it
	defer stop()
	var result *load.Result
	ended := make(chan error, 1)
	go func() { // joined below
		w := workloads[deep]
		r, err := load.Run(ctx, load.Config{Addr: s.addr, Frames: w.frames, Conns: w.conns, InFlight: w.inFlight,
			Duration: 24 * time.Hour, Within: time.Hour, Check: load.SameTensors})
		result = r
		stop()
		ended <- err
	}()
	rounds, err := s.alternate(ctx, o, bin, config)
	stop()
	switch lost := <-ended; {
	case !errors.Is(lost, context.Canceled):
		return nil, fmt.Errorf("run: traced: the load: %w", lost)
	case err != nil:
		return nil, err
	case result.Failed > 0:
		return nil, fmt.Errorf("run: traced: %d requests failed: %s", result.Failed, result.Failure)
	case spans.Load() == 0:
		return nil, errors.New("run: traced: the collector got no span")
	}
	return tracedRatios(rounds, result), nil
}

// alternate measures all stretches, each with its configuration.
func (s *system) alternate(ctx context.Context, o options, bin string, config func(oneIn int) string) ([][kinds][]stretch, error) {
	rounds := make([][kinds][]stretch, o.rounds*tracedRounds)
	for i := range rounds {
		for _, kind := range tracedRound {
			oneIn := 0
			if kind == on {
				oneIn = 100
			}
			one, err := s.stretch(ctx, bin, config(oneIn), o.duration/5)
			if err != nil {
				return nil, err
			}
			rounds[i][kind] = append(rounds[i][kind], one)
		}
	}
	return rounds, nil
}

// stretch has the server read a configuration, and measures a stretch of its load with it.
func (s *system) stretch(ctx context.Context, bin, config string, d time.Duration) (one stretch, err error) {
	if err := os.WriteFile(filepath.Join(bin, followed+".toml"), []byte(config), 0o600); err != nil {
		return one, err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.profile+"/v1/config/reload", http.NoBody)
	if err != nil {
		return one, err
	}
	q.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		return one, err
	}
	text, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil || answer.StatusCode != http.StatusOK {
		return one, errors.Join(fmt.Errorf("run: reload: %s: %s", answer.Status, strings.TrimSpace(string(text))), err)
	}
	time.Sleep(tracedLag)
	one.from, one.cpu = time.Now(), -s.allCPU()
	time.Sleep(d)
	one.to, one.cpu = time.Now(), one.cpu+s.allCPU()
	return one, s.Alive()
}

// allCPU is the processor time so far of the system's processes, which have started no others, and
// of this one.
func (s *system) allCPU() time.Duration {
	sum := ownCPU()
	for _, p := range s.Group {
		d, _ := p.CPU() // one that has ended is not Alive
		sum += d
	}
	return sum
}

// tracedRatios compares the kinds of stretches of each round.
func tracedRatios(rounds [][kinds][]stretch, r *load.Result) []ratio.Ratio {
	all := []ratio.Ratio{
		{What: "traces of 1 % / off: rate, " + workloads[deep].name, Bound: ratio.AtLeast, Limit: 0.99},
		{What: "traces of 1 % / off: processor time, all processes"},
		{What: "off / off: rate"},
		{What: "off / off: processor time, all processes"},
	}
	for _, round := range rounds {
		var rate, cpu [kinds]float64
		for kind, name := range [kinds]string{"off", "on", "off-again"} {
			var asked, took, work float64
			for _, one := range round[kind] {
				asked += r.Due(one.from, one.to)
				took += one.to.Sub(one.from).Seconds()
				work += one.cpu.Seconds()
			}
			rate[kind], cpu[kind] = asked/took, work/asked
			fmt.Printf("BenchmarkTraced/traces=%s\t%8.0f\t%10.1f ns/op\t%10.1f cpu-ns/op\n", name, asked, 1e9/rate[kind], 1e9*cpu[kind])
		}
		for i, of := range [][kinds]float64{rate, cpu} {
			all[i].Rounds = append(all[i].Rounds, 2*of[on]/(of[off]+of[offAgain]))
			all[i+2].Rounds = append(all[i+2].Rounds, of[offAgain]/of[off])
		}
	}
	return all
}
