package grpc

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// Requests of kilobytes that unpack to megabytes share a part of the memory as long as their
// tensors are there, and nobody else has less for it.
func TestUnpackedSharesAPart(t *testing.T) {
	const part = 16 << 20
	within := func(part int64) change {
		pool := tensor.NewPool(128 << 20)
		return func(c *Config, _ *int64) { c.Memory = gate.Memory{Pool: pool, Part: pool.Part(part), Ratio: 32} }
	}
	r := newRig(t, within(part))
	w := r.held("held")
	r.echo("m", tensor.Float32)
	nothing := make([]float32, 1<<18)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waiting sync.WaitGroup
	var full atomic.Bool
	for _, name := range []string{gzip.Name, "deflate"} {
		for range 10 {
			waiting.Go(func() { // together they keep each other from growing, so who is refused comes again
				for ctx.Err() == nil && !full.Load() {
					_, _ = r.client.ModelInfer(ctx, floats("held", nothing...), grpc.UseCompressor(name))
				}
			})
		}
	}
	// A megabyte each; the last needs its half beside.
	r.wait("the part to be used up", func() bool { return r.inside() >= part>>20-1 })
	full.Store(true)
	// Another connection: on that one, answers that are yet to come have taken what it may
	// leave unread.
	other := pb.NewGRPCInferenceServiceClient(r.dial())
	for range 20 { // those above the part have been let in by now, if anything lets them
		_, err := other.ModelInfer(t.Context(), floats("m", nothing...), grpc.UseCompressor(gzip.Name))
		failed(t, err, codes.ResourceExhausted, "Overloaded", "limits.unpack_bytes", "limits.unpack_ratio, 32")
	}
	if n := r.pool.InUse(); n > part+64*(256<<10) {
		t.Errorf("%d bytes for requests that share %d", n, part)
	}
	if _, err := other.ModelInfer(t.Context(), floats("m", nothing...)); err != nil {
		t.Errorf("a plain request: %v", err)
	}
	noise := make([]float32, 1<<18)
	for i := range noise {
		noise[i] = rand.Float32()
	}
	if _, err := other.ModelInfer(t.Context(), floats("m", noise...), grpc.UseCompressor(gzip.Name)); err != nil {
		t.Errorf("a compressed request that unpacks to little more: %v", err)
	}
	cancel()
	waiting.Wait()
	r.wait("the memory to come back", func() bool {
		_ = w.Answer() // batch by batch
		return r.pool.InUse() == 0
	})
	if _, err := r.client.ModelInfer(t.Context(), floats("m", nothing...), grpc.UseCompressor(gzip.Name)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	// What is larger than the part never fits, and nobody is told to come again with it.
	r = newRig(t, within(512<<10))
	r.echo("m", tensor.Float32)
	_, err := r.client.ModelInfer(t.Context(), floats("m", nothing...), grpc.UseCompressor(gzip.Name))
	failed(t, err, codes.ResourceExhausted, "TooLarge", "limits.unpack_bytes, 524288")
}

// Who stands still in the middle of a compressed message keeps nobody else from unpacking theirs.
func TestSlowUnpacking(t *testing.T) {
	r := newRig(t)
	r.echo("m", tensor.Float32)
	noise := make([]float32, 1<<18)
	for i := range noise {
		noise[i] = rand.Float32()
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var slow sync.WaitGroup
	for range 2 * runtime.NumCPU() {
		tap, option := tapped(300 << 10)
		client := pb.NewGRPCInferenceServiceClient(r.dial(option))
		slow.Go(func() {
			_, _ = client.ModelInfer(ctx, floats("m", noise...), grpc.UseCompressor(gzip.Name))
			tap.Close()
		})
	}
	r.wait("all to have begun", func() bool { return r.pool.InUse() > int64(2*runtime.NumCPU())*(160<<10) })
	in, end := context.WithTimeout(t.Context(), patience)
	defer end()
	if _, err := r.client.ModelInfer(in, floats("m", noise...), grpc.UseCompressor(gzip.Name)); err != nil {
		t.Error(err)
	}
	cancel()
	slow.Wait()
}
