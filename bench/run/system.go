package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva/tensor"
)

// A workload is a load that is offered to all systems in turn. Its model echoes its input.
type workload struct {
	name            string // for the tables
	model           string
	dtype           tensor.DType
	shape           tensor.Shape
	conns, inFlight int
	gather          bool      // the client writes all due requests at once
	poll            bool      // the client does not sleep
	form            load.Form // of load.Forms; zero: Shiva
	requests        [][]byte  // once frames has made them
}

func (w *workload) key() string {
	return fmt.Sprintf("model=%s/dtype=%s/shape=%s/conns=%d/inflight=%d/gather=%t", w.model, w.dtype,
		dims(w.shape, "x"), w.conns, w.inFlight, w.gather)
}

// declaration is the model on the command lines of containers: name:datatype:shape.
func (w *workload) declaration() string {
	return fmt.Sprintf("%s:%s:%s", w.model, w.dtype.V2(), dims(w.shape, ","))
}

func dims(s tensor.Shape, between string) (text string) {
	for i, d := range s {
		if i > 0 {
			text += between
		}
		text += strconv.Itoa(d)
	}
	return text
}

// frames are the requests, one for each that is in flight. Numbers are from 0 to 1, as JSON has no
// NaN.
func (w *workload) frames() [][]byte {
	if w.requests != nil {
		return w.requests
	}
	n := w.conns * w.inFlight
	xs, err := load.Tensors(n, w.dtype, w.shape)
	if w.dtype == tensor.Float32 {
		xs, err = load.Floats(n, w.shape)
	}
	encode := load.Forms[0].Frame
	if w.form.Frame != nil {
		encode = w.form.Frame
	}
	for _, x := range xs {
		frame, failed := encode(w.model, x)
		w.requests, err = append(w.requests, frame), errors.Join(err, failed)
	}
	if err != nil {
		panic(err) // a workload of this program cannot be encoded
	}
	return w.requests
}

// config is a closed loop. Over HTTP a connection has one request in flight.
func (w *workload) config() load.Config {
	c := load.Config{Wire: w.form.Wire, Frames: w.frames(), Conns: w.conns, InFlight: w.inFlight, Gather: w.gather,
		Poll: w.poll}
	if c.Wire == load.HTTP {
		c.Conns, c.InFlight = w.conns*w.inFlight, 1
	}
	if w.form.Same != nil {
		elements, _ := w.shape.Elements()
		c.Check = func(request, answer []byte) error { return w.form.Same(elements*w.dtype.Size(), request, answer) }
	}
	return c
}

// open is an open loop of so many requests per second, of clients that may have any number in
// flight. All turns of a seed have the same arrivals.
func (w *workload) open(rate float64, seed uint64) load.Config {
	return load.Config{Frames: w.frames(), Conns: w.conns, Rate: rate, Seed: seed, Warmup: besideWarmup,
		Piece: p99Piece}
}

// maxBatch is the largest batch of the no-op containers: all requests in flight of the deepest
// workload.
const maxBatch = 256

var (
	deep = &workload{name: "64 B, 16 connections x 16 in flight", model: "small", dtype: tensor.Float32,
		shape: tensor.Shape{16}, conns: 16, inFlight: 16}
	gathered = &workload{name: "64 B, 16 x 16, gathered by the client", model: "small", dtype: tensor.Float32,
		shape: tensor.Shape{16}, conns: 16, inFlight: 16, gather: true}
	single = &workload{name: "64 B, one at a time", model: "small", dtype: tensor.Float32, shape: tensor.Shape{16},
		conns: 1, inFlight: 1, poll: true}
	image = &workload{name: "1920x1080x3 uint8, 4 connections x 2 in flight", model: "image", dtype: tensor.Uint8,
		shape: tensor.Shape{1080, 1920, 3}, conns: 4, inFlight: 2}
)

// A setup is how a system is started.
type setup struct {
	name   string
	config string // of shivad
	v2     bool   // the doors for HTTP and gRPC are open
	tls    bool   // of the TCP door
	under  []string
	start  func(s *system, b *bench, models []string) error // nil: shivad, with a container in Go
}

// A system is one server under load, with its container if it has one.
type system struct {
	*process.Server
	setup
	flags   []string    // of its certificate
	trusted *tls.Config // by which clients trust it; nil: without TLS
}

// The systems that are compared with each other.
var (
	bareEcho = setup{name: "echo", start: startEcho}
	inDoor   = setup{name: "door", v2: true, start: startDoor}
	inGo     = setup{name: "go"}
	inPython = setup{name: "python", start: startPython}
)

// start starts a system, and waits until it answers each of the loads.
func (b *bench) start(ctx context.Context, how setup, loads ...*workload) (_ *system, err error) {
	s := &system{setup: how}
	if s.Server, err = process.NewServer(b.bin); err != nil {
		return nil, err
	}
	if s.tls {
		if s.flags, s.trusted, err = certify(b.bin); err != nil {
			return nil, err
		}
	}
	var models []string
	for _, w := range loads {
		if d := w.declaration(); !slices.Contains(models, d) {
			models = append(models, d)
		}
	}
	begin := startGo
	if s.setup.start != nil {
		begin = s.setup.start
	}
	err = begin(s, b, models)
	for _, w := range loads {
		if err == nil {
			err = s.answers(ctx, w.config())
		}
	}
	if err != nil {
		s.Stop()
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	return s, nil
}

func startEcho(s *system, b *bench, _ []string) error {
	return s.Run(s.under, "echo", append(s.flags, "-listen", s.TCP, "-loops", strconv.Itoa(b.echoLoops))...)
}

func startDoor(s *system, _ *bench, models []string) error {
	listen := s.TCP
	if s.tls {
		listen = "tls://" + listen
	}
	args := []string{"-listen", listen, "-rest", s.REST, "-grpc", s.GRPC, "-admin", s.Admin, "-max-batch",
		strconv.Itoa(maxBatch)}
	return s.Run(s.under, "door", slices.Concat(args, s.flags, models)...)
}

func startGo(s *system, b *bench, models []string) error {
	if err := s.serve(); err != nil {
		return err
	}
	return s.Run(nil, "noop", s.contains(models)...)
}

func startPython(s *system, b *bench, models []string) error {
	if err := s.serve(); err != nil {
		return err
	}
	return s.Start(b.bin, b.python,
		append([]string{filepath.Join("bench", "noop", "noop.py")}, s.contains(models)...)...)
}

// contains are the arguments of the no-op containers.
func (s *system) contains(models []string) []string {
	return append([]string{"-servers", s.Containers, "-max-batch", strconv.Itoa(maxBatch)}, models...)
}

// serve starts a shivad.
func (s *system) serve() (err error) {
	s.Server, err = process.Shivad(s.Dir,
		process.Options{Config: s.config, V2: s.v2, TLS: s.tls, Flags: s.flags, Under: s.under})
	return err
}

// at completes a load with the address of the door that it is for.
func (s *system) at(c load.Config) load.Config {
	switch c.Wire {
	case load.HTTP:
		c.Addr = s.REST
	case load.GRPC:
		c.Addr = s.GRPC
	default:
		c.Addr, c.TLS = s.TCP, s.trusted
	}
	return c
}

// offer offers a load to a system. All requests must be answered, and correctly. The result is
// printed for benchstat by its name.
func (s *system) offer(ctx context.Context, name string, c load.Config) (*load.Result, error) {
	if c.Check == nil {
		c.Check = load.SameTensors
	}
	got, err := load.Run(ctx, s.at(c))
	if err := errors.Join(err, s.Alive()); err != nil {
		return nil, err
	}
	fmt.Print(got.Line(name))
	if got.Failed > 0 || got.Lost > 0 || got.Answered == 0 {
		return nil, fmt.Errorf("%s: %d answered, %d failed, %d lost: %s", name, got.Answered, got.Failed, got.Lost,
			got.Failure)
	}
	return got, nil
}

// answers returns when a request of c is answered, whatever the answer is.
func (s *system) answers(ctx context.Context, c load.Config) error {
	c = s.at(c)
	c.Frames, c.Conns, c.InFlight, c.Warmup, c.Duration, c.Check = c.Frames[:1], 1, 1, 0, 5*time.Millisecond, nil
	return s.Await(ctx, 20*time.Second, func() error {
		got, err := load.Run(ctx, c)
		if err == nil && got.Latency.Count() == 0 {
			err = fmt.Errorf("no answer: %s", got.Failure)
		}
		return err
	})
}

// metric reads one of the server's metrics, named with its labels.
func (s *system) metric(ctx context.Context, name string) (float64, error) {
	all, err := s.Metrics(ctx)
	if _, ok := all[name]; err == nil && !ok {
		err = fmt.Errorf("the server's metrics lack %s", name)
	}
	return all[name], err
}

// profiled takes a CPU profile of the server while a turn runs, if profiles are requested. wait
// returns once it is complete.
func (b *bench) profiled(ctx context.Context, s *system, name string) (wait func() error) {
	if b.profile == "" || s.name == bareEcho.name {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() { // joined by wait
		file, err := os.Create(filepath.Join(b.profile, name+".pprof"))
		if err == nil {
			err = s.Get(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(max(b.duration.Seconds(), 1))), file)
			err = errors.Join(err, file.Close())
		}
		done <- err
	}()
	return func() error { return <-done }
}
