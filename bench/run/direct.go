package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/shivad/shivad/bench/internal/direct"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/shiva/tensor"
)

// directTurns is the length of a turn here relative to other parts: answers come in batches, and
// with few batches one more or less is a percent.
const directTurns = 2

// A driven load keeps a container at its limit: its model takes a plus b for each row, and the
// requests in flight fill three of its largest batches.
type driven struct {
	workload
	a, b  time.Duration
	batch int
	limit float64 // 0: none
}

// drivenLoads are models that are bound by their own time, as on a graphics card, and leave the
// processors to the server and its clients. The last model takes no time: only processors bound it,
// and the direct program has them all to itself.
var drivenLoads = []*driven{
	{workload{name: "64 floats, 2 ms + 20 µs a row", model: "numbers", dtype: tensor.Float32, shape: tensor.Shape{64},
		conns: 16, inFlight: 48},
		2 * time.Millisecond, 20 * time.Microsecond, 256, 0.9},
	{workload{name: "3x224x224 float32, 8 ms + 2 ms a row", model: "picture", dtype: tensor.Float32,
		shape: tensor.Shape{3, 224, 224}, conns: 8, inFlight: 3},
		8 * time.Millisecond, 2 * time.Millisecond, 8, 0.9},
	{workload{name: "64 floats, a model without work", model: "nothing", dtype: tensor.Float32, shape: tensor.Shape{64},
		conns: 16, inFlight: 48},
		0, 0, 256, 0},
}

// driving compares the rate in rows per second of a container at its limit through the server with
// its rate when a program drives it directly, in batches of the best size.
func driving(ctx context.Context, b *bench) (f findings, err error) {
	for _, d := range drivenLoads {
		r, err := d.measure(ctx, b)
		if err != nil {
			return f, fmt.Errorf("%s: %w", d.name, err)
		}
		f.ratios = append(f.ratios, r)
	}
	return f, nil
}

// measure alternates between the two, every other round in reverse order.
func (d *driven) measure(ctx context.Context, b *bench) (r ratio.Ratio, err error) {
	r = ratio.Ratio{What: "through shivad / directly: rate, " + d.name}
	if d.limit > 0 {
		r.Bound, r.Limit = ratio.AtLeast, d.limit
	}
	s, err := b.start(ctx, setup{name: "driven", start: d.serve}, &d.workload)
	if err != nil {
		return r, err
	}
	defer s.Stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return r, err
	}
	defer l.Close()
	if err := s.Run(nil, "sleeper", d.sleeps(l.Addr().String())...); err != nil {
		return r, err
	}
	c, err := direct.Take(ctx, l)
	if err != nil {
		return r, err
	}
	defer c.Close()
	best, err := d.best(ctx, b, c)
	if err != nil {
		return r, err
	}
	length := directTurns * b.duration
	return contrast(r, b.rounds,
		func(uint64) (float64, error) { return d.through(ctx, s, b.duration/5, length) },
		func(uint64) (float64, error) { return c.Drive(ctx, d.rows(best), b.duration/5, length) })
}

// serve starts a server with the container.
func (d *driven) serve(s *system, _ *bench, _ []string) error {
	if err := s.serve(); err != nil {
		return err
	}
	return s.Run(nil, "sleeper", d.sleeps(s.Containers)...)
}

// sleeps are the arguments of the container, which connects to an address.
func (d *driven) sleeps(servers string) []string {
	return []string{"-servers", servers, "-a", d.a.String(), "-b", d.b.String(), "-max-batch", strconv.Itoa(d.batch),
		d.declaration()}
}

// best returns the size of batch that has the highest rate directly: the largest, a half or a
// quarter of it.
func (d *driven) best(ctx context.Context, b *bench, c *direct.Container) (size int, err error) {
	most := 0.0
	for _, n := range []int{d.batch, d.batch / 2, d.batch / 4} {
		rate, err := c.Drive(ctx, d.rows(n), b.duration/5, b.duration)
		if err != nil {
			return 0, err
		}
		if rate > most {
			size, most = n, rate
		}
	}
	return size, nil
}

// rows returns a batch of n rows.
func (d *driven) rows(n int) tensor.Tensor {
	x := tensor.Tensor{Name: "x", DType: d.dtype, Shape: slices.Concat(tensor.Shape{n}, d.shape)}
	elements, _ := x.Shape.Elements()
	x.Data = make([]byte, elements*d.dtype.Size())
	for i := range x.Data {
		x.Data[i] = byte(i)
	}
	return x
}

// through offers the load to the server, and returns the answers per second.
func (d *driven) through(ctx context.Context, s *system, warmup, length time.Duration) (float64, error) {
	c := d.config()
	c.Warmup, c.Duration = warmup, length
	got, err := s.offer(ctx, "Direct/"+d.key(), c)
	if err != nil {
		return 0, err
	}
	return got.Rate(), nil
}
