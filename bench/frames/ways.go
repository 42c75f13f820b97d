package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva/tensor"
)

// A size is one kind of tensor, and the name of the model that echoes it.
type size struct {
	model, name string
	dtype       tensor.DType
	shape       tensor.Shape // of a row
	// In a turn of many: connections and requests in flight on each.
	conns, inFlight int
	inTable         bool

	region *region // nil: it is sent only through sockets
}

var (
	video = &size{model: "video", name: "1920x1080x3 uint8", dtype: tensor.Uint8, shape: tensor.Shape{1080, 1920, 3},
		conns: 4, inFlight: 2, inTable: true}
	picture = &size{model: "picture", name: "3x224x224 float32", dtype: tensor.Float32,
		shape: tensor.Shape{3, 224, 224}, conns: 4, inFlight: 2, inTable: true}
	// For bars alone: four times video; as many bytes as video; a small request.
	wide = &size{model: "wide", name: "3840x2160x3 uint8", dtype: tensor.Uint8, shape: tensor.Shape{2160, 3840, 3},
		conns: 4, inFlight: 2}
	floats = &size{model: "floats", name: "3x720x720 float32", dtype: tensor.Float32, shape: tensor.Shape{3, 720, 720},
		conns: 4, inFlight: 2}
	small = &size{model: "small", name: "64 B", dtype: tensor.Float32, shape: tensor.Shape{16}, conns: 16, inFlight: 16}

	sizes = []*size{video, picture, wide, floats, small}
)

func (s *size) bytes() int {
	n, _ := s.shape.Elements()
	return n * s.dtype.Size()
}

// dims are the sizes of a row, with commas between.
func (s *size) dims() string {
	var parts []string
	for _, d := range s.shape {
		parts = append(parts, strconv.Itoa(d))
	}
	return strings.Join(parts, ",")
}

// declaration is the model on command lines: name:datatype:shape.
func (s *size) declaration() string {
	return fmt.Sprintf("%s:%s:%s", s.model, s.dtype.V2(), s.dims())
}

// tensors returns n different tensors as Shiva sends them: without a dimension for rows. Floats are
// not random bits, since MLServer passes numbers through JSON, which has no NaN.
func (s *size) tensors(n int) ([]tensor.Tensor, error) {
	if s.dtype == tensor.Float32 {
		return load.Floats(n, s.shape)
	}
	return load.Tensors(n, s.dtype, s.shape)
}

// A way is how a tensor gets from a client to a server and back.
type way struct {
	name string
	form string // of load.Forms
	door string // of the server, among its addresses
	// Tensors are in shared memory, and only their places travel.
	shared bool
}

var (
	shivaTCP    = &way{name: "Shiva, TCP", form: "shiva", door: "tcp"}
	shivaUnix   = &way{name: "Shiva, Unix socket", form: "shiva", door: "unix"}
	shivaShared = &way{name: "Shiva, shared memory", form: "shiva", door: "tcp", shared: true}
	rest        = &way{name: "REST, bytes", form: "rest", door: "rest"}
	grpcRaw     = &way{name: "gRPC, raw", form: "grpc", door: "grpc"}
	grpcShared  = &way{name: "gRPC, shared memory", form: "grpc", door: "grpc", shared: true}

	ways = []*way{shivaTCP, shivaUnix, shivaShared, rest, grpcRaw, grpcShared}
)

// encoding is the form of a way's requests.
func (w *way) encoding() load.Form {
	i := slices.IndexFunc(load.Forms, func(f load.Form) bool { return f.Name == w.form })
	return load.Forms[i]
}

// frames are the requests of a size on this way, one for each connection.
func (w *way) frames(s *size, xs []tensor.Tensor) (frames [][]byte, err error) {
	for i, x := range xs {
		if w.form != "shiva" || w.shared {
			x.Shape = append(tensor.Shape{1}, x.Shape...)
		}
		var frame []byte
		if w.shared {
			x.Name = "x"
			frame, _, err = (&load.Request{Model: s.model, Inputs: []tensor.Tensor{x},
				InputsAt: []load.Place{s.input(i)}, OutputsAt: []load.Output{{Name: "x", Place: s.output(i)}}}).
				Encode(w.encoding().Wire)
		} else {
			frame, err = w.encoding().Frame(s.model, x)
		}
		if err != nil {
			return nil, err
		}
		frames = append(frames, frame)
	}
	return frames, nil
}

// config is the load of a turn on this way: one request at a time, or as many in flight as the size
// says. Over HTTP, and with shared memory, which each connection has of its own, a connection has
// one request in flight.
func (w *way) config(s *size, alone bool, frames [][]byte) load.Config {
	f := w.encoding()
	c := load.Config{Wire: f.Wire, Conns: s.conns, InFlight: s.inFlight, Frames: frames}
	if w.door == "unix" {
		c.Network = "unix"
	}
	if f.Wire == load.HTTP || w.shared {
		c.Conns, c.InFlight = s.conns*s.inFlight, 1
	}
	if alone {
		c.Conns, c.InFlight, c.Poll = 1, 1, true
	}
	c.Check = func(request, answer []byte) error { return f.Same(s.bytes(), request, answer) }
	if w.shared {
		c.Check = func(request, _ []byte) error {
			return s.same(slices.IndexFunc(frames, func(frame []byte) bool { return &frame[0] == &request[0] }))
		}
	}
	return c
}
