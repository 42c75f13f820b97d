package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/load"
)

// A kind is a server and the way to start it.
type kind struct {
	name  string // of its ratios
	label string // in tables
	// peer is the directory of its packages among those that bench/peers/install makes; "": it is
	// part of this tree.
	peer  string
	ways  []*way
	sizes []*size // whose models it has
	start func(s *system, o *options) error
}

var (
	echo = &kind{name: "echo", label: "bare echo", ways: []*way{shivaTCP}, sizes: sizes, start: startEcho}
	door = &kind{name: "door", label: "shivad, model inside", ways: []*way{shivaTCP},
		sizes: []*size{video, picture}, start: startDoor}
	inGo      = &kind{name: "go", label: "shivad, Go", ways: ways, sizes: sizes, start: startGo}
	inPython  = &kind{name: "python", label: "shivad, Python", ways: ways, sizes: sizes, start: startPython}
	reference = &kind{name: "reference", label: "eyecan-shiva", peer: "reference", ways: []*way{shivaTCP},
		sizes: []*size{video, picture, floats}, start: startReference}
	pytriton = &kind{name: "pytriton", label: "pytriton", peer: "pytriton", ways: []*way{rest, grpcRaw, grpcShared},
		sizes: []*size{video, picture}, start: startV2}
	mlserver = &kind{name: "mlserver", label: "MLServer", peer: "mlserver", ways: []*way{grpcRaw},
		sizes: []*size{video, picture}, start: startV2}

	kinds = []*kind{echo, door, inGo, inPython, reference, pytriton, mlserver}
)

// A system is one server with its containers, as processes on free ports.
type system struct {
	*kind
	*process.Server
	takes  map[*way]map[*size]time.Duration // time of one request on an idle machine
	shares map[*size]bool                   // whose regions it knows
}

// maxBatch is the largest batch of the containers: all small requests in flight.
const maxBatch = 256

// startTime bounds the time until all models answer. Triton takes half a minute alongside other
// programs.
const startTime = 2 * time.Minute

// startSystem starts a server and waits until it answers each of its sizes on each of its ways.
func startSystem(ctx context.Context, k *kind, o *options) (_ *system, err error) {
	s := &system{kind: k, takes: make(map[*way]map[*size]time.Duration), shares: make(map[*size]bool)}
	if s.Server, err = process.NewServer(o.bin); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()
	if err := k.start(s, o); err != nil {
		return nil, err
	}
	for _, w := range k.ways {
		s.takes[w] = make(map[*size]time.Duration)
		for _, size := range k.sizes {
			if o.measures(k, w, size) {
				if s.takes[w][size], err = s.await(ctx, o, w, size); err != nil {
					return nil, err
				}
			}
		}
	}
	return s, nil
}

// addr is where a way begins.
func (s *system) addr(w *way) string {
	return map[string]string{"tcp": s.TCP, "rest": s.REST, "grpc": s.GRPC, "unix": s.socket()}[w.door]
}

func (s *system) socket() string { return filepath.Join(s.Dir, s.name+".sock") }

// await waits until the system answers a size on a way, and returns the latency of its second
// answer: the first one may have waited for a model to load.
func (s *system) await(ctx context.Context, o *options, w *way, size *size) (took time.Duration, err error) {
	c := w.config(size, true, o.frames[w][size])
	c.Addr, c.Poll, c.Duration, c.Grace = s.addr(w), false, 5*time.Millisecond, time.Minute
	answers := 0
	return took, s.Await(ctx, startTime, func() error {
		if w.shared && !s.shares[size] {
			if err := size.region.register(s.REST, size.model); err != nil {
				return err
			}
			s.shares[size] = true
		}
		r, err := load.Run(ctx, c)
		if err != nil {
			return err
		}
		if r.Latency.Count() > 0 {
			answers++
		}
		if answers < 2 {
			return fmt.Errorf("frames: %s does not answer to %s, %s: %s", s.name, w.name, size.name, r.Failure)
		}
		took = r.Latency.Quantile(0.5)
		return nil
	})
}

// declarations are the models of the system on a command line.
func (s *system) declarations() (args []string) {
	for _, size := range s.sizes {
		args = append(args, size.declaration())
	}
	return args
}

func startEcho(s *system, _ *options) error { return s.Run(nil, "echo", "-listen", s.TCP) }

func startDoor(s *system, _ *options) error {
	args := []string{"-listen", s.TCP, "-admin", s.Admin, "-max-batch", strconv.Itoa(maxBatch)}
	return s.Run(nil, "door", append(args, s.declarations()...)...)
}

func startGo(s *system, o *options) error { return s.serve(o, filepath.Join(o.bin, "noop")) }

func startPython(s *system, o *options) error {
	return s.serve(o, o.python, filepath.Join("bench", "noop", "noop.py"))
}

// serve starts shivad and a container, by its command line.
func (s *system) serve(o *options, container ...string) (err error) {
	s.Server, err = process.Shivad(o.bin, process.Options{
		V2: true, Unix: s.socket(), Config: fmt.Sprintf("[shared_memory]\ndirectory = %q\n", sharedDirectory),
	})
	if err != nil {
		return err
	}
	args := append(container[1:], "-servers", s.Containers, "-max-batch", strconv.Itoa(maxBatch))
	return s.Start(o.bin, container[0], append(args, s.declarations()...)...)
}

// startPeer starts the program that serves a peer, with the Python that has its packages.
func (s *system) startPeer(o *options, args ...string) error {
	return s.Start(o.bin, filepath.Join(o.peers, s.peer, "bin", "python"),
		append([]string{filepath.Join("bench", "peers", "serve_"+s.peer+".py")}, args...)...)
}

func startReference(s *system, o *options) error { return s.startPeer(o, s.TCP) }

// startV2 starts a peer that speaks the Predict Protocol V2.
func startV2(s *system, o *options) error {
	var ports []string
	for _, addr := range []string{s.REST, s.GRPC} {
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return err
		}
		ports = append(ports, port)
	}
	return s.startPeer(o, append(ports, s.declarations()...)...)
}
