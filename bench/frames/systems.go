package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
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
	echo      = &kind{name: "echo", label: "bare echo", ways: []*way{shivaTCP}, sizes: sizes, start: startEcho}
	door      = &kind{name: "door", label: "shivad, model inside", ways: []*way{shivaTCP}, sizes: []*size{video, picture}, start: startDoor}
	inGo      = &kind{name: "go", label: "shivad, Go", ways: ways, sizes: sizes, start: startGo}
	inPython  = &kind{name: "python", label: "shivad, Python", ways: ways, sizes: sizes, start: startPython}
	reference = &kind{name: "reference", label: "eyecan-shiva", peer: "reference", ways: []*way{shivaTCP}, sizes: []*size{video, picture, floats}, start: startReference}
	pytriton  = &kind{name: "pytriton", label: "pytriton", peer: "pytriton", ways: []*way{rest, grpcRaw, grpcShared}, sizes: []*size{video, picture}, start: startV2}
	mlserver  = &kind{name: "mlserver", label: "MLServer", peer: "mlserver", ways: []*way{grpcRaw}, sizes: []*size{video, picture}, start: startV2}

	kinds = []*kind{echo, door, inGo, inPython, reference, pytriton, mlserver}
)

// A system is one server with its containers, as processes on free ports.
type system struct {
	*kind
	process.Group
	addrs  map[string]string                // of its doors
	takes  map[*way]map[*size]time.Duration // time of one request on an idle machine
	shares map[*size]bool                   // whose regions it knows
}

// doors are the names of the addresses that a server may listen on.
var doors = []string{"tcp", "rest", "grpc", "admin", "containers"}

// maxBatch is the largest batch of the containers: all small requests in flight.
const maxBatch = 256

// startTime bounds the time until all models answer. Triton takes half a minute alongside other
// programs.
const startTime = 2 * time.Minute

// startSystem starts a server and waits until it answers each of its sizes on each of its ways.
func startSystem(ctx context.Context, k *kind, o *options) (_ *system, err error) {
	s := &system{kind: k, addrs: make(map[string]string), takes: make(map[*way]map[*size]time.Duration), shares: make(map[*size]bool)}
	for _, door := range doors {
		if s.addrs[door], err = process.FreeAddr(); err != nil {
			return nil, err
		}
	}
	s.addrs["unix"] = filepath.Join(o.bin, k.name+".sock")
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()
	if err := k.start(s, o); err != nil {
		return nil, err
	}
	end := time.Now().Add(startTime)
	for _, w := range k.ways {
		s.takes[w] = make(map[*size]time.Duration)
		for _, size := range k.sizes {
			if o.measures(k, w, size) {
				if s.takes[w][size], err = s.await(ctx, o, w, size, end); err != nil {
					return nil, err
				}
			}
		}
	}
	return s, nil
}

// await waits until the system answers a size on a way, and returns the latency of its second
// answer.
func (s *system) await(ctx context.Context, o *options, w *way, size *size, end time.Time) (time.Duration, error) {
	c := w.config(size, true, o.frames[w][size])
	c.Addr, c.Poll, c.Duration, c.Grace = s.addrs[w.door], false, 5*time.Millisecond, time.Minute
	for answers := 0; ; time.Sleep(100 * time.Millisecond) {
		var r *load.Result
		var err error
		if w.shared && !s.shares[size] {
			err = size.region.register(s.addrs["rest"], size.model)
			s.shares[size] = err == nil
		}
		if err == nil {
			r, err = load.Run(ctx, c)
		}
		if err == nil && r.Latency.Count() > 0 {
			if answers++; answers == 2 { // the first one may have waited for a model to load
				return r.Latency.Quantile(0.5), nil
			}
			continue
		}
		if r != nil {
			err = errors.Join(err, errors.New(r.Failure))
		}
		if ended := errors.Join(s.Alive(), ctx.Err()); ended != nil {
			return 0, ended
		}
		if time.Now().After(end) {
			return 0, fmt.Errorf("frames: %s does not answer to %s, %s: %w\n%s", s.name, w.name, size.name, err, s.Output())
		}
	}
}

// run starts a process of the system.
func (s *system) run(o *options, program string, args ...string) error {
	if o.env != nil {
		program, args = "env", append(append(slices.Clone(o.env), program), args...)
	}
	if err := s.Start(o.bin, program, args...); err != nil {
		return fmt.Errorf("frames: %s: %w", s.name, err)
	}
	return nil
}

// declarations are the models of the system on a command line.
func (s *system) declarations() (args []string) {
	for _, size := range s.sizes {
		args = append(args, size.declaration())
	}
	return args
}

func startEcho(s *system, o *options) error {
	return s.run(o, filepath.Join(o.bin, "echo"), "-listen", s.addrs["tcp"])
}

func startDoor(s *system, o *options) error {
	args := []string{"-listen", s.addrs["tcp"], "-admin", s.addrs["admin"], "-max-batch", strconv.Itoa(maxBatch)}
	return s.run(o, filepath.Join(o.bin, "door"), append(args, s.declarations()...)...)
}

func startGo(s *system, o *options) error {
	return s.serve(o, filepath.Join(o.bin, "noop"))
}

func startPython(s *system, o *options) error {
	return s.serve(o, o.python, filepath.Join("bench", "noop", "noop.py"))
}

// serve starts shivad and a container, by its command line.
func (s *system) serve(o *options, container ...string) error {
	config := filepath.Join(o.bin, "shivad.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "[shared_memory]\ndirectory = %q\n", sharedDirectory), 0o600); err != nil {
		return err
	}
	args := append(container[1:], "-servers", s.addrs["containers"], "-max-batch", strconv.Itoa(maxBatch))
	return errors.Join(
		s.run(o, filepath.Join(o.bin, "shivad"), "--config", config, "--tcp", s.addrs["tcp"]+",unix:"+s.addrs["unix"], "--rest", s.addrs["rest"], "--grpc", s.addrs["grpc"],
			"--admin", s.addrs["admin"], "--containers", s.addrs["containers"]),
		s.run(o, container[0], append(args, s.declarations()...)...))
}

// startPeer starts the program that serves a peer, with the Python that has its packages.
func (s *system) startPeer(o *options, args ...string) error {
	return s.run(o, filepath.Join(o.peers, s.peer, "bin", "python"), append([]string{filepath.Join("bench", "peers", "serve_"+s.peer+".py")}, args...)...)
}

func startReference(s *system, o *options) error { return s.startPeer(o, s.addrs["tcp"]) }

// startV2 starts a peer that speaks the Predict Protocol V2.
func startV2(s *system, o *options) error {
	var ports []string
	for _, door := range []string{"rest", "grpc"} {
		_, port, err := net.SplitHostPort(s.addrs[door])
		if err != nil {
			return err
		}
		ports = append(ports, port)
	}
	return s.startPeer(o, append(ports, s.declarations()...)...)
}
