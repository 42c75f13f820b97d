package grpc

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/protobuf/proto"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/doortest"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// Requests of kilobytes that unpack to megabytes share a part of the memory as long as their
// tensors exist, and other requests lose none of theirs.
func TestUnpackedSharesAPart(t *testing.T) {
	const part = 16 << 20
	var partial *tensor.Pool
	within := func(part int64) change {
		pool := tensor.NewPool(128 << 20)
		partial = pool.Part(part)
		return func(c *Config, _ *int64) { c.Memory = gate.Memory{Pool: pool, Part: partial, Ratio: 32} }
	}
	r := newRig(t, within(part))
	w := r.held("held")
	r.echo("m", tensor.Float32)
	nothing := make([]float32, 1<<18)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waiting sync.WaitGroup
	// A megabyte each; one more would need half as much again besides.
	for i := range part>>20 - 1 {
		name := []string{gzip.Name, "deflate"}[i%2]
		waiting.Go(func() {
			_, _ = r.client.ModelInfer(ctx, floats("held", nothing...), grpc.UseCompressor(name))
		})
		// One after the other: together they would keep each other from growing.
		budgettest.Until(r.T, "a request to be let in", func() bool { return r.inside() > i })
	}
	if used := partial.InUse(); used != part-1<<20 {
		t.Errorf("%d bytes of the part are taken", used)
	}
	// On another connection, since the answers still to come on that one have taken its room for
	// unread answers.
	other := pb.NewGRPCInferenceServiceClient(r.dial())
	for range 20 {
		_, err := other.ModelInfer(t.Context(), floats("m", nothing...), grpc.UseCompressor(gzip.Name))
		failed(t, err, codes.ResourceExhausted, "Overloaded", "limits.unpack_bytes", "limits.unpack_ratio, 32")
	}
	if n := r.Pool.InUse(); n > part+64*(256<<10) {
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
	budgettest.Until(r.T, "the memory to come back", func() bool {
		_ = w.Answer() // batch by batch
		return r.Pool.InUse() == 0
	})
	if _, err := r.client.ModelInfer(t.Context(), floats("m", nothing...), grpc.UseCompressor(gzip.Name)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	// A request larger than the part never fits, so its client is not told to retry.
	r = newRig(t, within(512<<10))
	r.echo("m", tensor.Float32)
	_, err := r.client.ModelInfer(t.Context(), floats("m", nothing...), grpc.UseCompressor(gzip.Name))
	failed(t, err, codes.ResourceExhausted, "TooLarge", "limits.unpack_bytes, 524288")
}

// Requests that grow at the same time, and do not all fit the part, are answered or refused as
// overload, and leave the part free.
func TestUnpackedContend(t *testing.T) {
	const part = 4 << 20 // room for two and a half requests that grow to a megabyte
	pool := tensor.NewPool(128 << 20)
	partial := pool.Part(part)
	r := newRig(t, func(c *Config, _ *int64) { c.Memory = gate.Memory{Pool: pool, Part: partial, Ratio: 32} })
	r.echo("m", tensor.Float32)
	nothing := make([]float32, 1<<18)
	var clients sync.WaitGroup
	var refused, answered atomic.Int64
	for range 12 {
		client := pb.NewGRPCInferenceServiceClient(r.dial())
		clients.Go(func() {
			for i := 0; i < max(2, budgettest.Rounds(8)) ||
				i < 200 && (answered.Load() == 0 || refused.Load() == 0); i++ {
				switch _, err := client.ModelInfer(t.Context(), floats("m", nothing...),
					grpc.UseCompressor(gzip.Name)); {
				case err == nil:
					answered.Add(1)
				default:
					refused.Add(1)
					failed(t, err, codes.ResourceExhausted, "Overloaded", "limits.unpack_bytes")
				}
			}
		})
	}
	clients.Wait()
	if answered.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d were answered and %d refused, expected some of both", answered.Load(), refused.Load())
	}
	budgettest.Until(r.T, "the memory to come back", func() bool { return pool.InUse() == 0 && partial.InUse() == 0 })
	if _, err := r.client.ModelInfer(t.Context(), floats("m", nothing...), grpc.UseCompressor(gzip.Name)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// A client that stops in the middle of a compressed message does not delay unpacking for others.
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
	budgettest.Until(r.T, "all to have begun", func() bool {
		return r.Pool.InUse() > int64(2*runtime.NumCPU())*(160<<10)
	})
	in, end := context.WithTimeout(t.Context(), doortest.Patience)
	defer end()
	if _, err := r.client.ModelInfer(in, floats("m", noise...), grpc.UseCompressor(gzip.Name)); err != nil {
		t.Error(err)
	}
	cancel()
	slow.Wait()
}

// A frame of a stream ends where its length says: what follows the compressed data in it is an
// error of that request, not further requests, and the next frame is read as if nothing had been.
func TestBytesAfterCompressedData(t *testing.T) {
	r := newRig(t)
	r.echo("m", tensor.Float32)
	body, err := proto.Marshal(floats("m", 1, 2, 3))
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w := zlib.NewWriter(&packed)
	_, _ = w.Write(body)
	w.Close()
	frame := func(more int) []byte {
		data := append(bytes.Clone(packed.Bytes()), make([]byte, more)...)
		return append(binary.BigEndian.AppendUint32([]byte{1}, uint32(len(data))), data...)
	}
	for _, more := range []int{1, 100, 8000, 20_000} {
		c := r.caller()
		for _, h := range append(callHeaders("ModelStreamInfer"), hpack.HeaderField{Name: "grpc-encoding", Value: "deflate"}) {
			c.must(c.enc.WriteField(h))
		}
		c.must(
			c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.header.Bytes(),
				EndHeaders: true}))
		all := slices.Concat(frame(0), frame(more), frame(0))
		for len(all) > 0 {
			n := min(len(all), 16<<10)
			c.must(c.framer.WriteData(1, n == len(all), all[:n]))
			all = all[n:]
		}
		var answers []byte
		for ended := false; !ended; {
			f, err := c.framer.ReadFrame()
			c.must(err)
			switch f := f.(type) {
			case *http2.DataFrame:
				answers = append(answers, f.Data()...)
			case *http2.MetaHeadersFrame:
				ended = f.StreamEnded()
			}
		}
		count := 0
		for len(answers) >= 5 {
			answers = answers[5+binary.BigEndian.Uint32(answers[1:]):]
			count++
		}
		if count != 3 {
			t.Errorf("%d bytes after the data: %d answers to 3 requests", more, count)
		}
	}
}
