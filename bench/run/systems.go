package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

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
	gather          bool // the client writes all due requests at once
	poll            bool // the client does not sleep
	frames          [][]byte
}

func (w *workload) key() string {
	return fmt.Sprintf("model=%s/dtype=%s/shape=%s/conns=%d/inflight=%d/gather=%t", w.model, w.dtype, dims(w.shape, "x"), w.conns, w.inFlight, w.gather)
}

// declaration is the model on the command lines of the no-op containers: name:datatype:shape.
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

// maxBatch is the largest batch of the no-op containers: all requests in flight of the deepest
// workload.
const maxBatch = 256

var workloads = []*workload{
	{name: "64 B, 16 connections x 16 in flight", model: "small", dtype: tensor.Float32, shape: tensor.Shape{16}, conns: 16, inFlight: 16},
	{name: "64 B, 16 x 16, gathered by the client", model: "small", dtype: tensor.Float32, shape: tensor.Shape{16}, conns: 16, inFlight: 16, gather: true},
	{name: "64 B, one at a time", model: "small", dtype: tensor.Float32, shape: tensor.Shape{16}, conns: 1, inFlight: 1, poll: true},
	{name: "1920x1080x3 uint8, 4 connections x 2 in flight", model: "image", dtype: tensor.Uint8, shape: tensor.Shape{1080, 1920, 3}, conns: 4, inFlight: 2},
}

const (
	deep = iota
	gathered
	single
	image
)

// A system is one server under load, with its container if it has one.
type system struct {
	process.Group
	name       string
	addr       string
	tls        *tls.Config // by which clients trust it; nil: without TLS
	rest, grpc string      // "": the door is closed
	profile    string      // of its pprof handlers and metrics; "": it has none
	containers string      // where containers connect
}

// startSystem starts the named system and waits until it answers each of the loads. Programs are in
// bin.
func startSystem(ctx context.Context, o options, name, bin string, loads []*workload) (_ *system, err error) {
	s := &system{name: name}
	var rest, grpc string
	if err := process.FreeAddrs(&s.addr, &s.profile, &s.containers, &rest, &grpc); err != nil {
		return nil, err
	}
	for _, a := range attacks {
		switch {
		case a.name != name:
		case a.door == "rest":
			s.rest = rest
		default:
			s.grpc = grpc
		}
	}
	switch name {
	case "slow":
		s.rest = rest
	case greedy:
		s.rest, s.grpc = rest, grpc
	}
	listen := s.addr
	var certificate []string
	if name == crawled || name == echoOfTLS || name == doorOfTLS {
		listen = "tls://" + s.addr
		if certificate, s.tls, err = certify(bin); err != nil {
			return nil, err
		}
	}
	shivad := []string{filepath.Join(bin, "shivad"), "--tcp", listen, "--rest", s.rest, "--grpc", s.grpc, "--admin", s.profile, "--profiling", "--containers", s.containers}
	config, err := configure(name, bin)
	if err != nil {
		return nil, err
	}
	shivad = slices.Concat(shivad, certificate, config)
	if name == stoppedLog {
		shivad = append([]string{"sh", "-c", `exec "$@" 2>"$0"`, filepath.Join(bin, stoppedLog)}, shivad...)
	}
	models := []string{"-servers", s.containers, "-max-batch", strconv.Itoa(maxBatch)}
	for _, w := range loads {
		if d := w.declaration(); !slices.Contains(models, d) {
			models = append(models, d)
		}
	}
	var commands [][]string
	switch name {
	case "echo", echoOfTLS:
		s.profile = ""
		commands = [][]string{append([]string{filepath.Join(bin, "echo"), "-listen", s.addr, "-loops", strconv.Itoa(o.echoLoops)}, certificate...)}
	case "door", doorOfTLS:
		commands = [][]string{slices.Concat([]string{filepath.Join(bin, "door"), "-listen", listen, "-admin", s.profile}, certificate, models[2:])}
	case "python":
		commands = [][]string{shivad, append([]string{o.python, filepath.Join("bench", "noop", "noop.py")}, models...)}
	default:
		commands = [][]string{shivad, append([]string{filepath.Join(bin, "noop")}, models...)}
	}
	for i := range commands {
		commands[i] = slices.Concat(o.under, commands[i])
	}
	if err := s.launch(ctx, bin, load.Config{Frames: loads[0].frames}, commands...); err != nil {
		return nil, err
	}
	for _, w := range loads[1:] {
		if err := s.answers(ctx, load.Config{Frames: w.frames}); err != nil {
			s.Stop()
			return nil, err
		}
	}
	return s, nil
}

// bare returns a system of a server with its Shiva door alone, and the command that starts it.
func bare(name, bin string) (*system, []string, error) {
	s := &system{name: name}
	if err := process.FreeAddrs(&s.addr, &s.containers); err != nil {
		return nil, nil, err
	}
	return s, []string{filepath.Join(bin, "shivad"), "--tcp", s.addr, "--rest", "", "--grpc", "", "--admin", "", "--containers", s.containers}, nil
}
