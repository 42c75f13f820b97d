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
	greedyTimes = 10  // as many as it sends

	greedyTurn = 4 // times as long as a turn of other parts, for the reason of effectRounds
)

// greedyConfig gives one identity a quota, and others, who show nothing, none.
var greedyConfig = fmt.Sprintf(`[[identity]]
name = %q
token_sha256 = "%x"
may = ["infer:small"]
quota = { requests_per_second = %d }
[[identity]]
name = "anonymous"
may = ["infer:small", "serve:*", "admin:read"]
`, greedy, sha256.Sum256([]byte(greedyToken)), greedyQuota)

// besideGreedy measures what clients of a door notice of one of the same door that sends ten times
// what its quota is. Usually there it sends what its quota is: all of that is answered. Of the ten
// times one is answered, and nine are refused. What the server spends on that is shown beside it.
//
// The client spends more than the server, and has a machine of its own in practice. Here it runs on
// what the others and the server leave of the cores, and still takes caches and wakes cores up: the
// others' p99 grew by up to 7 % when all that is too much went elsewhere. So it always sends both,
// one to this server and the other to one elsewhere, which runs as the client does. Both turns have
// the same work, and differ in what of it this server does before its clients'.
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

// A greedyDoor is where the client is greedy.
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

// round takes the turns of one, and fails if the greedy client was not refused what it should be;
// refused is what it was so far, at all doors.
func (d *greedyDoor) round(ctx context.Context, o options, s *system, bin string, refused *float64) error {
	asks := func(addr string, rate int) guest {
		return func() (*process.Process, error) {
			// A turn of ten times the quota has left nothing of it.
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
		// As many as are answered, by half: it is read seldom then, and over HTTP sends no faster
		// than it gets answers.
		least := greedyQuota * o.duration.Seconds() / 2
		if now[0]-*refused < least {
			err = fmt.Errorf("run: %s: %v requests were refused in a turn, expected %v at least", d.name, now[0]-*refused, least)
		}
		*refused = now[0]
		return err
	})
	return err
}

// idle runs a command on what others leave of the cores.
var idle = []string{"chrt", "--idle", "0"}

const greedyRefused = `shivad_identity_refused_total{identity="greedy",quota="requests_per_second"}`
