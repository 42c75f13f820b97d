package main

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/shivad/shivad/bench/internal/process"
)

// rapidResets are clients of the gRPC door that cancel all their requests, as fast as they can.
var rapidResets = attack{
	name: "resets",
	what: "p50 beside rapid resets over gRPC / beside as much CPU burnt",
	begin: func(_ context.Context, s *system, bin string) (*system, func(), error) {
		p, err := process.Start(bin, filepath.Join(bin, "hostile"), "-resets", s.grpc)
		if err != nil {
			return nil, nil, err
		}
		under := *s
		under.Group = append(slices.Clone(s.Group), p)
		return &under, p.Stop, nil
	},
}
