package main

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/shivad/shivad/bench/internal/process"
)

// attacks are the parts that measure other clients beside one.
var attacks = []attack{
	gzipBombs,
	trick("resets", "grpc", "rapid resets over gRPC"),
	trick("windows", "grpc", "5,000 calls over gRPC without a window"),
	trick("continuations", "grpc", "headers over gRPC that do not end"),
	trick("pings", "grpc", "a flood of PINGs over gRPC"),
	trick("keepalive", "rest", "2,400 kept connections of HTTP"),
	trick("pipelined", "rest", "10,000 pipelined requests over HTTP"),
}

// trick is an attack of bench/hostile, from a process of its own.
func trick(name, door, what string) attack {
	return attack{
		name: name, door: door, what: what,
		begin: func(_ context.Context, s *system, bin string) (*system, func(), error) {
			at := map[string]string{"rest": s.rest, "grpc": s.grpc}[door]
			p, err := process.Start(bin, filepath.Join(bin, "hostile"), "-trick", name, "-at", at)
			if err != nil {
				return nil, nil, err
			}
			under := *s
			under.Group = append(slices.Clone(s.Group), p)
			return &under, p.Stop, nil
		},
	}
}
