package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
)

const (
	greedy      = "greedy" // an identity
	greedyToken = "shiva_greedy"
	greedyQuota = 200 // requests per second
	greedyTimes = 10  // times its quota that it sends

	greedyTurn = 4 // length of a turn relative to other parts, for the reason of effectRounds
)

// greedyConfig gives one identity a quota, and anonymous none.
var greedyConfig = fmt.Sprintf(`[[identity]]
name = %q
token_sha256 = "%x"
may = ["infer:small"]
quota = { requests_per_second = %d }
[[identity]]
name = "anonymous"
may = ["infer:small", "serve:*", "admin:read"]
`, greedy, sha256.Sum256([]byte(greedyToken)), greedyQuota)

// besideGreedy measures the effect of a client that sends ten times its quota on other clients of
// the same door. In the usual turn that client sends its quota, and all requests are answered. In
// the attack one request in ten is answered, and nine are refused. The report also has the server's
// processor time for that.
//
// The client takes more processor time than the server, and in practice has a machine of its own.
// Here it runs on idle cores only, and still takes caches and wakes up cores: the others' p99 grew
// by up to 7 % even when the excess went to another server. So the client always sends both loads,
// one to this server and one to another server, which also runs on idle cores only. Both turns have
// the same total work, and differ only in the part that this server does.
func besideGreedy(ctx context.Context, o options, bin string) (rs []ratio.Ratio, err error) {
	if err := process.Build(ctx, bin, "cmd/shivad", "cmd/shivactl", "bench/noop", "bench/hostile"); err != nil {
		return nil, err
	}
	w := workloads[deep]
	s, err := startSystem(ctx, o, greedy, bin, []*workload{w})
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	o.under = idle
	elsewhere, err := startSystem(ctx, o, greedy, bin, []*workload{w})
	if err != nil {
		return nil, err
	}
	defer elsewhere.Stop()
	doors, err := greedyDoors(s, elsewhere, w)
	if err != nil {
		return nil, err
	}
	refused := 0.0
	o.duration *= greedyTurn
	for range o.rounds {
		for _, d := range doors {
			if err := d.round(ctx, o, s, bin, &refused); err != nil {
				return nil, err
			}
		}
	}
	for _, d := range doors {
		what := fmt.Sprintf("%d times a quota, %s", greedyTimes, doorNames[d.form.Name])
		cost := ratio.Ratio{What: "processors of the server beside " + what + ", more than without it"}
		for round, beside := range d.attacked {
			cost.Rounds = append(cost.Rounds, beside.server-d.usual[round].server)
		}
		rs = append(append(rs, d.ratios(what, 1.1, 0)...), cost)
	}
	return rs, nil
}

// A greedyDoor is a door at which the client is greedy.
type greedyDoor struct {
	effect
	form load.Form
	flag string // of shivactl
	load load.Config

	elsewhere string // the door of the other server
}

func greedyDoors(s, elsewhere *system, w *workload) (doors []*greedyDoor, err error) {
	xs, err := load.Floats(w.conns, w.shape)
	if err != nil {
		return nil, err
	}
	at := map[string]struct{ flag, addr, elsewhere string }{
		"shiva": {"tcp", s.addr, elsewhere.addr}, "rest": {"rest", s.rest, elsewhere.rest}, "grpc": {"grpc", s.grpc, elsewhere.grpc},
	}
	for _, f := range load.Forms {
		where, ok := at[f.Name]
		if !ok {
			continue
		}
		d := &greedyDoor{effect: effect{name: greedy + "/door=" + where.flag}, form: f, flag: where.flag, elsewhere: where.elsewhere}
		d.load = load.Config{Wire: f.Wire, Addr: where.addr, Conns: w.conns, Check: func(request, answer []byte) error {
			return f.Same(4*elements(w.shape), request, answer)
		}}
		for _, x := range xs {
			frame, err := f.Frame(w.model, x)
			if err != nil {
				return nil, err
			}
			d.load.Frames = append(d.load.Frames, frame)
		}
		doors = append(doors, d)
	}
	return doors, nil
}

// round takes the turns of one round, and fails unless the server refused enough of the greedy
// client's requests; refused is the number refused so far, at all doors.
func (d *greedyDoor) round(ctx context.Context, o options, s *system, bin string, refused *float64) error {
	asks := func(addr string, rate int) guest {
		return func() (*process.Process, error) {
			// A turn at ten times the quota has used it up; wait until it has refilled.
			time.Sleep(500 * time.Millisecond)
			command := slices.Concat(idle[1:], []string{"env", "SHIVA_TOKEN=" + greedyToken, filepath.Join(bin, "shivactl"),
				"bench", "small", "--door", d.flag, "--addr", addr, "--rate", strconv.Itoa(rate), "--for", "1h"})
			return process.Start(bin, idle[0], command...)
		}
	}
	here, there, much := d.load.Addr, d.elsewhere, greedyQuota*greedyTimes
	usual, attack := []guest{asks(here, greedyQuota), asks(there, much)}, []guest{asks(here, much), asks(there, greedyQuota)}
	_, err := d.effect.round(ctx, o, s, bin, d.load, usual, attack, func() error {
		now, err := s.metrics(ctx, greedyRefused)
		if err != nil {
			return err
		}
		// Half as many as are answered: the server then reads the client's connection seldom, and
		// over HTTP the client sends no faster than it gets answers.
		least := greedyQuota * o.duration.Seconds() / 2
		if now[0]-*refused < least {
			err = fmt.Errorf("run: %s: %v requests were refused in a turn, expected %v at least", d.name, now[0]-*refused, least)
		}
		*refused = now[0]
		return err
	})
	return err
}

// idle runs a command only on idle cores.
var idle = []string{"chrt", "--idle", "0"}

const greedyRefused = `shivad_identity_refused_total{identity="greedy",quota="requests_per_second"}`
