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

// followed is the system that traces one of a hundred requests, or none.
const followed = "traced"

const (
	// tracedRounds is the number of rounds for each round of other parts. A stretch is a fifth of a
	// turn of other parts.
	tracedRounds = 6
	// tracedLag is the pause before each stretch. It is longer than spans wait before they are
	// sent, so that a stretch sends as many spans as it makes.
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
	on       // one of a hundred requests is traced
	offAgain // like off: their difference is the error of the measurement
	kinds
)

// tracedRound is the order of a round. All kinds have the same mean place in it, so that any steady
// drift affects all equally.
var tracedRound = [...]int{off, on, offAgain, offAgain, on, off}

// traced measures the cost of tracing one of a hundred requests at the Shiva door, including the
// way to a collector that discards all spans: the rate of small requests with traces against that
// without. The collector's time is part of the cost, since it is in this process. The report also
// has the processor time of a request in all processes, which other work on the machine disturbs
// less, and the error of both.
//
// One server does both, under one load; a reload switches traces on and off. Two servers in turns
// would differ by the state in which each happened to start. Without the pause, half of the cost of
// a short turn's spans would fall to the other kind, since spans are sent in bulk: the ratio of
// processor time was 1.008 in turns of 150 ms, and 1.02 in turns of 250 ms. Longer stretches vary
// as much as short ones (by 5 % on two cores), so there are many short ones.
func traced(ctx context.Context, o options, bin string) ([]ratio.Ratio, error) {
	if err := process.Build(ctx, bin, programs([]string{followed})...); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	page := make([]byte, 1<<20)
	var spans atomic.Int64 // bytes of spans
	collector := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		// The one client sends page after page. Through io.Discard's 8 KiB buffer, reading a page
		// would take fifty pieces, on the processors that are measured.
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

	ctx, stop := context.WithCancel(ctx) // of the load and its measurement
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

// alternate measures all stretches of all rounds, each with its configuration.
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

// stretch makes the server load a configuration, and measures a stretch of the load with it.
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

// allCPU returns the processor time so far of the system's processes, which have no children, and
// of this process.
func (s *system) allCPU() time.Duration {
	sum := ownCPU()
	for _, p := range s.Group {
		d, _ := p.CPU() // Alive reports a process that has ended
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
