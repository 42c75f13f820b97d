package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
)

// attacks are all attacks. Each is made from one address, and once more from many, so that nothing
// that counts by address sees all of it.
var attacks = func() (list []attack) {
	for _, many := range []int{0, 250} {
		list = append(list, bombsFrom(many),
			trick("resets", "grpc", "rapid resets over gRPC", many),
			trick("madeyoureset", "grpc", "calls over gRPC that the server is made to reset", many),
			trick("afterend", "grpc", "the same by data after their end", many),
			trick("deadlines", "grpc", "calls over gRPC with deadlines of 100 µs", many),
			trick("hedges", "grpc", "four of five calls over gRPC cancelled at once", many),
			trick("settings", "grpc", "a flood of SETTINGS", many),
			trick("priorities", "grpc", "a flood of PRIORITY", many),
			trick("updates", "grpc", "a flood of WINDOW_UPDATE", many),
			trick("empties", "grpc", "a flood of empty DATA", many),
			trick("windows", "grpc", "5,000 calls over gRPC without a window", many),
			trick("continuations", "grpc", "headers over gRPC that do not end", many),
			trick("pings", "grpc", "a flood of PINGs over gRPC", many),
			trick("keepalive", "rest", "2,400 kept connections of HTTP", many),
			trick("pipelined", "rest", "10,000 pipelined requests over HTTP", many),
		)
	}
	return list
}()

// spread names an attack from many addresses; 0: from one.
func (a attack) spread(many int) attack {
	if many > 0 {
		a.name += "-many"
		a.what += ", from " + strconv.Itoa(many) + " addresses"
	}
	return a
}

// trick is an attack of bench/hostile, from a process of its own.
func trick(name, door, what string, many int) attack {
	return attack{
		name: name, door: door, what: what,
		begin: func(ctx context.Context, s *system, bin string) (*system, func(), error) {
			at := map[string]string{"rest": s.rest, "grpc": s.grpc}[door]
			p, err := attackers(ctx, bin, "-trick", name, "-at", at, "-from", strconv.Itoa(many))
			if err != nil {
				return nil, nil, err
			}
			under := *s
			under.Group = append(slices.Clone(s.Group), p)
			return &under, p.Stop, nil
		},
	}.spread(many)
}

// attackers starts bench/hostile, and returns when all of its clients are ready.
func attackers(ctx context.Context, bin string, args ...string) (*process.Process, error) {
	p, err := process.Start(bin, filepath.Join(bin, "hostile"), args...)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(time.Minute); !strings.Contains(p.Output(), "ready"); time.Sleep(20 * time.Millisecond) {
		err := p.Alive()
		if err == nil && time.Now().After(end) {
			err = fmt.Errorf("run: the clients of %q are not there after a minute", args)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			p.Kill()
			return nil, err
		}
	}
	return p, nil
}
