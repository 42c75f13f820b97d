package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
)

const (
	quietLoad = 200 // requests per second of the other clients, one at a time

	// attackedConfig has a budget that an attack can fill.
	attackedBudget = 256 << 20
	attackedConfig = "[limits]\npayload_bytes = \"256MiB\"\nmessage_bytes = \"64MiB\"\n"
)

// attacks are parts for the tricks of bench/hostile: each from one address, and once more from
// many, so that nothing that counts by address sees all of it.
func attacks() (list []part) {
	for _, many := range []int{0, 250} {
		for _, trick := range []struct{ name, door, what string }{
			{"bombs", "rest", "unfinished gzip bodies"},
			{"resets", "grpc", "rapid resets over gRPC"},
			{"madeyoureset", "grpc", "calls over gRPC that the server is made to reset"},
			{"afterend", "grpc", "the same by data after their end"},
			{"deadlines", "grpc", "calls over gRPC with deadlines of 100 µs"},
			{"hedges", "grpc", "four of five calls over gRPC cancelled at once"},
			{"settings", "grpc", "a flood of SETTINGS"},
			{"priorities", "grpc", "a flood of PRIORITY"},
			{"updates", "grpc", "a flood of WINDOW_UPDATE"},
			{"empties", "grpc", "a flood of empty DATA"},
			{"windows", "grpc", "5,000 calls over gRPC without a window"},
			{"continuations", "grpc", "headers over gRPC that do not end"},
			{"pings", "grpc", "a flood of PINGs over gRPC"},
			{"keepalive", "rest", "2,400 kept connections of HTTP"},
			{"pipelined", "rest", "10,000 pipelined requests over HTTP"},
		} {
			a := attack{name: trick.name, trick: trick.name, door: trick.door, what: trick.what, many: many}
			if many > 0 {
				a.name += "-many"
				a.what += ", from " + strconv.Itoa(many) + " addresses"
			}
			list = append(list, part{a.name, a.measure})
		}
	}
	return list
}

// An attack is a trick that is played on a door alongside well-behaved clients of the Shiva door.
type attack struct {
	name, trick, door string
	what              string // in the report
	many              int    // addresses that it comes from; 0: one
}

// measure compares the p50 of the other clients with that beside a process that burns as much
// processor time as the server and the attack took, and reports the server's peak memory.
func (a attack) measure(ctx context.Context, b *bench) (f findings, err error) {
	s, err := b.start(ctx, setup{name: a.name, config: attackedConfig, v2: true}, single)
	if err != nil {
		return f, err
	}
	defer s.Stop()
	at := map[string]string{"rest": s.REST, "grpc": s.GRPC}[a.door]
	var attacker *process.Process
	share := 0.0 // of the processors, that the last attack took
	attacked := beside(func() (_ *process.Process, err error) {
		attacker, err = b.attackers(ctx, "-trick", a.trick, "-at", at, "-from", strconv.Itoa(a.many))
		return attacker, err
	}, func(round uint64) (p50 float64, err error) {
		under := append(process.Group{attacker}, s.Group...)
		before, err := under.CPU() // without the cost of starting the attack
		if err != nil {
			return 0, err
		}
		if p50, err = b.quiet(ctx, s, a.name+"/beside=attack")(round); err != nil {
			return 0, err
		}
		after, err := under.CPU()
		share = (after - before).Seconds() / (besideWarmup + b.duration).Seconds()
		return p50, err
	}, nil)
	burnt := func(round uint64) (float64, error) {
		return beside(func() (*process.Process, error) {
			return b.burner(share)
		}, b.quiet(ctx, s, fmt.Sprintf("%s/beside=burner-%.2f", a.name, share)), nil)(round)
	}
	r, err := contrast(ratio.Ratio{What: "p50 beside " + a.what + " / beside as much CPU burnt", Bound: ratio.AtMost,
		Limit: 2}, b.rounds, attacked, burnt)
	if err != nil {
		return f, err
	}
	_, most, err := s.Group[0].Memory()
	memory := ratio.Ratio{What: "resident beside " + a.what + " / the budget", Bound: ratio.AtMost, Limit: 1.25,
		Rounds: []float64{float64(most) / attackedBudget}}
	f.ratios = []ratio.Ratio{r, memory}
	return f, err
}

// quiet is the p50 of an open loop of few requests.
func (b *bench) quiet(ctx context.Context, s *system, name string) figure {
	return func(round uint64) (float64, error) {
		c := single.open(quietLoad, round)
		c.Duration = b.duration
		got, err := s.offer(ctx, "Beside/attack="+name, c)
		if err != nil {
			return 0, err
		}
		return float64(got.Latency.Quantile(0.5)), nil
	}
}
