package shiva_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
)

// sharing answers like a server that accepts shared memory: with the bytes of the only tensor,
// wherever that is, preceded by a second output of 8 bytes in answers of the model "two". It opens
// registered regions.
type sharing struct {
	refuse bool
	lie    func(*sharedPlace) // changes the place of an output in the area

	mu           sync.Mutex
	files        map[string]*os.File
	placed, left int // inputs and outputs in shared memory
}

type sharedPlace struct {
	Name     string `json:"name"`
	Datatype string `json:"datatype"`
	Shape    []int  `json:"shape"`
	Region   string `json:"region"`
	Offset   int64  `json:"offset"`
	Size     int64  `json:"byte_size"`
	Index    int    `json:"index"`
}

func (s *sharing) handle(c *shivatest.Conn, m *shiva.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Namespace == "hang" {
		_ = c.Close()
		return
	}
	answer := &shiva.Message{Namespace: m.Namespace, Metadata: []byte("{}")}
	if name, ok := strings.CutPrefix(m.Namespace, "v2/systemsharedmemory/region/"); ok {
		name, _, _ = strings.Cut(name, "/")
		if !strings.Contains(string(m.Metadata), `"connection":true`) {
			panic("it would stay behind")
		}
		file, err := os.OpenFile(filepath.Join("/dev/shm", name), os.O_RDWR, 0)
		if s.refuse || err != nil {
			shivatest.Fail(&shiva.RemoteError{Type: shiva.NotFound,
				Message: fmt.Sprint("shared memory is not offered ", err), Code: 404})(c, m)
			return
		}
		s.files[name] = file
		_ = c.Send(answer)
		return
	}
	var metadata struct {
		Shared struct {
			Inputs []sharedPlace
			Area   *sharedPlace
		} `json:"shared_memory"`
	}
	if err := json.Unmarshal(m.Metadata, &metadata); err != nil && len(m.Metadata) > 0 {
		panic(err)
	}
	for _, t := range m.Tensors {
		answer.Tensors = append(answer.Tensors,
			tensor.Tensor{DType: t.DType, Shape: slices.Clone(t.Shape), Data: slices.Clone(t.Data)})
	}
	for _, in := range metadata.Shared.Inputs {
		s.placed++
		data := make([]byte, in.Size)
		if _, err := s.files[in.Region].ReadAt(data, in.Offset); err != nil {
			panic(err)
		}
		answer.Tensors = append(answer.Tensors,
			tensor.Tensor{DType: tensor.Uint8, Shape: tensor.Shape{int(in.Size)}, Data: data})
	}
	names := []string{"x"}
	if m.Namespace == "two" {
		answer.Tensors = append([]tensor.Tensor{{DType: tensor.Uint8, Shape: tensor.Shape{8}, Data: make([]byte, 8)}},
			answer.Tensors...)
		names = []string{"small", "x"}
	}
	var outputs []sharedPlace
	i := len(answer.Tensors) - 1
	if area := metadata.Shared.Area; area != nil && area.Size >= int64(len(answer.Tensors[i].Data)) {
		t := answer.Tensors[i]
		if _, err := s.files[area.Region].WriteAt(t.Data, area.Offset); err != nil {
			panic(err)
		}
		o := sharedPlace{"x", "UINT8", t.Shape, area.Region, area.Offset, int64(len(t.Data)), i}
		if s.lie != nil {
			s.lie(&o)
		}
		outputs = append(outputs, o)
		answer.Tensors, names = answer.Tensors[:i], names[:i]
		s.left++
	}
	member := map[string]any{"id": 7, "__tensors__": names}
	if outputs != nil {
		member["shared_memory"] = map[string]any{"outputs": outputs}
	}
	answer.Metadata, _ = json.Marshal(member)
	_ = c.Send(answer)
}

func dialSharing(t *testing.T, s *sharing, bytes int64, opts ...shiva.Option) *shiva.Client {
	t.Helper()
	s.files = map[string]*os.File{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := shivatest.Serve(l, s.handle)
	t.Cleanup(server.Close)
	c, err := shiva.Dial(t.Context(), server.Addr(), append(opts, shiva.WithSharedMemory(bytes))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		if left, _ := filepath.Glob(fmt.Sprintf("/dev/shm/shiva-%d-*", os.Getpid())); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	return c
}

// Large tensors with names are placed in shared memory, as far as there is room, and returned
// intact; each request gives its part back.
func TestSharedMemory(t *testing.T) {
	const size = 128 << 10
	s := &sharing{}
	c := dialSharing(t, s, 3*size)
	if err := c.Shared(); err != nil {
		t.Fatal(err)
	}
	askOne := func(i int, name, metadata string, size int) {
		t.Helper()
		data := slices.Repeat([]byte{byte(i)}, size)
		a, err := c.Do(t.Context(),
			&shiva.Message{Namespace: "m", Metadata: []byte(metadata),
				Tensors: []tensor.Tensor{{Name: name, DType: tensor.Uint8, Shape: tensor.Shape{size}, Data: data}}})
		if err != nil {
			t.Error(err)
			return
		}
		defer a.Release()
		if len(a.Tensors) != 1 || string(a.Tensors[0].Data) != string(data) {
			t.Errorf("request %d: wrong bytes", i)
		}
	}
	for i := range 20 {
		askOne(i, "x", "", size)
		askOne(i, "", `{"id":1,"__tensors__":["x"]}`, size)
	}
	if s.inputs() != 40 {
		t.Errorf("%d of 40 tensors were in shared memory", s.inputs())
	}
	askOne(1, "", "", size)
	askOne(2, "x", "", 100)
	askOne(3, "x", "", 4*size)
	if s.inputs() != 40 {
		t.Errorf("%d tensors without a name, small or too large were there", s.inputs()-40)
	}
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() { askOne(i, "x", "", size) })
	}
	all.Wait()
	before := s.inputs()
	askOne(5, "x", "", 3*size)
	if s.inputs() != before+1 {
		t.Error("not all parts came back")
	}
}

// A server that refuses shared memory is sent all tensors.
func TestSharedMemoryRefused(t *testing.T) {
	s := &sharing{refuse: true}
	c := dialSharing(t, s, 1<<20)
	if err := c.Shared(); err == nil || !strings.Contains(err.Error(), "not offered") {
		t.Error(err)
	}
	a, err := c.Do(t.Context(),
		&shiva.Message{Namespace: "m",
			Tensors: []tensor.Tensor{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{1 << 18},
				Data: make([]byte, 1<<18)}}})
	if err != nil || len(a.Tensors) != 1 || s.inputs() != 0 {
		t.Fatal(a, err, s.inputs())
	}
	a.Release()
}

func ask(t *testing.T, c *shiva.Client, route string, data []byte) (*shiva.Message, error) {
	return c.Infer(t.Context(), route,
		tensor.Tensor{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{len(data)}, Data: data})
}

func (s *sharing) inputs() int  { return s.count(&s.placed) }
func (s *sharing) outputs() int { return s.count(&s.left) }

func (s *sharing) count(n *int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *n
}

func (s *sharing) set(lie func(*sharedPlace)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lie = lie
}

// From the second answer on, outputs are in shared memory, and answers are as if they had been
// sent. Answers stay valid until they are released, even if the client is closed, and then give
// their parts back.
func TestSharedOutputs(t *testing.T) {
	const size = 100 << 10
	s := &sharing{}
	c := dialSharing(t, s, 8*size)
	var held []*shiva.Message
	for i := range 8 {
		data := bytes.Repeat([]byte{byte(1 + i)}, size)
		a, err := ask(t, c, "two", data)
		if err != nil {
			t.Fatal(err)
		}
		x, err := a.Output("x")
		if err != nil || !bytes.Equal(x.Data, data) || len(x.Shape) != 1 || x.Shape[0] != size {
			t.Fatalf("answer %d: %v, wrong output", i, err)
		}
		if small, err := a.Output("small"); err != nil || len(small.Data) != 8 || len(a.Tensors) != 2 ||
			&a.Tensors[1].Data[0] != &x.Data[0] {
			t.Errorf("answer %d: %v, wrong order", i, err)
		}
		if got := string(a.Metadata); strings.Contains(got, "shared_memory") || !strings.Contains(got, `"id":7`) ||
			!strings.Contains(got, `["small","x"]`) {
			t.Errorf("answer %d: %s", i, got)
		}
		held = append(held, a)
	}
	// The input takes one of 8 parts, and 5 or 6 outputs are there; outputs without room were sent.
	if s.outputs() < 5 || s.outputs() > 7 {
		t.Errorf("%d outputs of 8 were left in memory for 8", s.outputs())
	}
	before := s.outputs()
	for _, a := range held[:7] {
		a.Tensors[1].Buf.Retain()
		b := a.Tensors[1].Buf
		a.Release()
		b.Release()
	}
	for range 20 {
		a, err := ask(t, c, "two", make([]byte, size))
		if err != nil {
			t.Fatal(err)
		}
		a.Release()
	}
	if s.outputs() != before+20 {
		t.Errorf("%d outputs of 20 were left in memory that was given back", s.outputs()-before)
	}
	a, err := ask(t, c, "two", bytes.Repeat([]byte{9}, size))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if x, _ := a.Output("x"); !bytes.Equal(x.Data, bytes.Repeat([]byte{9}, size)) {
		t.Error("an answer changed when the client was closed")
	}
	a.Release()
	held[7].Release()
	if mapped(t) {
		t.Error("the memory is mapped still")
	}
}

// mapped reports whether this process maps a client's shared memory.
func mapped(t *testing.T) bool {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(maps), fmt.Sprintf("/dev/shm/shiva-%d-", os.Getpid()))
}

// If a server reports an invalid place of an output, that answer fails, and no memory is lost.
func TestSharedOutputsLie(t *testing.T) {
	const size = 100 << 10
	s := &sharing{}
	c := dialSharing(t, s, 4*size)
	for i, lie := range []func(*sharedPlace){
		nil,
		func(o *sharedPlace) { o.Region = "other" },
		func(o *sharedPlace) { o.Offset += size },
		func(o *sharedPlace) { o.Offset -= 64 },
		func(o *sharedPlace) { o.Offset++ },
		func(o *sharedPlace) { o.Offset = 1 << 62 },
		func(o *sharedPlace) { o.Size = 1 << 62 },
		func(o *sharedPlace) { o.Size = -1 },
		func(o *sharedPlace) { o.Size = 0 },
		func(o *sharedPlace) { o.Shape = []int{size, 2} },
		func(o *sharedPlace) { o.Shape = []int{1 << 62, 8} },
		func(o *sharedPlace) { o.Shape = []int{-1} },
		func(o *sharedPlace) { o.Datatype = "BYTES" },
		func(o *sharedPlace) { o.Datatype = "X" },
		func(o *sharedPlace) { o.Index = 1 },
		func(o *sharedPlace) { o.Index = -1 },
	} {
		s.set(lie)
		a, err := ask(t, c, "m", make([]byte, size))
		if i == 0 {
			if err != nil {
				t.Fatal(err)
			}
			a.Release()
		} else if err == nil || !strings.Contains(err.Error(), "shared_memory of an answer") {
			t.Errorf("lie %d: %v", i, err)
		}
	}
	s.set(nil)
	before := s.outputs()
	a, err := ask(t, c, "m", make([]byte, size))
	if err != nil || s.outputs() != before+1 {
		t.Fatalf("after the lies: %v; %d outputs were left in memory", err, s.outputs()-before)
	}
	a.Release()
}

// A tensor larger than all of the memory is sent, and the error of Shared has both sizes.
func TestSharedMemoryTooSmall(t *testing.T) {
	s := &sharing{}
	c := dialSharing(t, s, 128<<10)
	for range 2 {
		a, err := ask(t, c, "m", make([]byte, 200<<10))
		if err != nil {
			t.Fatal(err)
		}
		a.Release()
	}
	if err := c.Shared(); err == nil || !strings.Contains(err.Error(), "204800 bytes") ||
		!strings.Contains(err.Error(), "131072") {
		t.Error(err)
	}
}

// Requests that wait to be sent when the connection is lost are sent on the next one, with its own
// memory; the memory of the lost one is unmapped when the last answer in it is released.
func TestSharedMemoryReconnects(t *testing.T) {
	const size = 100 << 10
	s := &sharing{}
	c := dialSharing(t, s, 8*size, shiva.WithInFlight(1), shiva.WithBackoff(time.Millisecond, time.Millisecond))
	var old *shiva.Message
	for range 2 {
		a, err := ask(t, c, "m", bytes.Repeat([]byte{1}, size))
		if err != nil {
			t.Fatal(err)
		}
		if old != nil {
			old.Release()
		}
		old = a
	}
	var lost *shiva.CallError
	if _, err := ask(t, c, "hang", make([]byte, size)); !errors.As(err, &lost) {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 20 {
		route := "m"
		if i%5 == 0 {
			route = "hang"
		}
		all.Go(func() {
			data := bytes.Repeat([]byte{byte(2 + i)}, size)
			a, err := ask(t, c, route, data)
			if route == "hang" {
				if _, ok := errors.AsType[*shiva.CallError](err); !ok {
					t.Errorf("request %d: %v", i, err)
				}
				return
			}
			if err != nil || len(a.Tensors) != 1 || !bytes.Equal(a.Tensors[0].Data, data) {
				t.Errorf("request %d: %v, or wrong bytes", i, err)
				return
			}
			a.Release()
		})
	}
	all.Wait()
	before := s.outputs()
	for range 2 { // the first one may make a connection
		a, err := ask(t, c, "m", make([]byte, size))
		if err != nil {
			t.Fatal(err)
		}
		a.Release()
	}
	if s.outputs() == before {
		t.Error("after all outputs are sent")
	}
	if !bytes.Equal(old.Tensors[0].Data, bytes.Repeat([]byte{1}, size)) {
		t.Error("an answer of the first connection changed")
	}
	old.Release()
}

// Frames of a stream and their answers use the memory of the stream's own connection.
func TestSharedStream(t *testing.T) {
	const size = 100 << 10
	s := &sharing{}
	c := dialSharing(t, s, 8*size, shiva.WithInFlight(2))
	stream, err := c.Stream(t.Context(), shiva.StreamConfig{Model: "m", Name: "cam", Keep: shiva.KeepAll})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer stream.Finish()
		for i := range 50 {
			data := bytes.Repeat([]byte{byte(i)}, size)
			if _, err := stream.Push(t.Context(),
				shiva.Frame{
					Tensors: []tensor.Tensor{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{size},
						Data: data}}}); err != nil {
				t.Error(err)
			}
		}
	}()
	n := byte(0)
	for a, err := range stream.Answers(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if x, err := a.Output("x"); err != nil || !bytes.Equal(x.Data, bytes.Repeat([]byte{n}, size)) {
			t.Fatalf("frame %d: %v, or wrong bytes", n, err)
		}
		a.Release()
		n++
	}
	if n != 50 || s.inputs() < 10 || s.outputs() < 1 {
		t.Errorf("%d answers; %d frames and %d answers were in memory", n, s.inputs(), s.outputs())
	}
	if err := stream.Close(); err != nil {
		t.Error(err)
	}
}
