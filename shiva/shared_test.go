package shiva_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
)

// sharing answers as a server that takes shared memory: with the bytes of the only tensor, wherever
// it is. What is registered it opens.
type sharing struct {
	refuse bool

	mu     sync.Mutex
	files  map[string]*os.File
	placed int
}

func (s *sharing) handle(c *shivatest.Conn, m *shiva.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := &shiva.Message{Namespace: m.Namespace, Metadata: []byte("{}")}
	if name, ok := strings.CutPrefix(m.Namespace, "v2/systemsharedmemory/region/"); ok {
		name, _, _ = strings.Cut(name, "/")
		file, err := os.Open(filepath.Join("/dev/shm", name))
		if s.refuse || err != nil {
			shivatest.Fail(&shiva.RemoteError{Type: shiva.NotFound, Message: fmt.Sprint("shared memory is not offered ", err), Code: 404})(c, m)
			return
		}
		s.files[name] = file
		_ = c.Send(answer)
		return
	}
	var metadata struct {
		Shared struct {
			Inputs []struct {
				Name, Region string
				Offset       int64
				Size         int `json:"byte_size"`
			}
		} `json:"shared_memory"`
	}
	if err := json.Unmarshal(m.Metadata, &metadata); err != nil && len(m.Metadata) > 0 {
		panic(err)
	}
	for _, t := range m.Tensors {
		answer.Tensors = append(answer.Tensors, tensor.Tensor{DType: t.DType, Shape: slices.Clone(t.Shape), Data: slices.Clone(t.Data)})
	}
	for _, in := range metadata.Shared.Inputs {
		s.placed++
		data := make([]byte, in.Size)
		if _, err := s.files[in.Region].ReadAt(data, in.Offset); err != nil {
			panic(err)
		}
		answer.Tensors = append(answer.Tensors, tensor.Tensor{DType: tensor.Uint8, Shape: tensor.Shape{in.Size}, Data: data})
	}
	_ = c.Send(answer)
}

func dialSharing(t *testing.T, s *sharing, bytes int64) *shiva.Client {
	t.Helper()
	s.files = map[string]*os.File{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := shivatest.Serve(l, s.handle)
	t.Cleanup(server.Close)
	c, err := shiva.Dial(t.Context(), server.Addr(), shiva.WithSharedMemory(bytes))
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

// Large tensors with names are left in shared memory, as far as there is room, and come back right;
// each request gives its part back.
func TestSharedMemory(t *testing.T) {
	const size = 128 << 10
	s := &sharing{}
	c := dialSharing(t, s, 3*size)
	if err := c.Shared(); err != nil {
		t.Fatal(err)
	}
	ask := func(i int, name, metadata string, size int) {
		t.Helper()
		data := slices.Repeat([]byte{byte(i)}, size)
		a, err := c.Do(t.Context(), &shiva.Message{Namespace: "m", Metadata: []byte(metadata), Tensors: []tensor.Tensor{{Name: name, DType: tensor.Uint8, Shape: tensor.Shape{size}, Data: data}}})
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
		ask(i, "x", "", size)
		ask(i, "", `{"id":1,"__tensors__":["x"]}`, size)
	}
	if s.placed != 40 {
		t.Errorf("%d of 40 tensors were in shared memory", s.placed)
	}
	ask(1, "", "", size)
	ask(2, "x", "", 100)
	ask(3, "x", "", 4*size)
	if s.placed != 40 {
		t.Errorf("%d tensors without a name, small or too large were there", s.placed-40)
	}
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() { ask(i, "x", "", size) })
	}
	all.Wait()
	before := s.placed
	ask(5, "x", "", 3*size)
	if s.placed != before+1 {
		t.Error("not all parts came back")
	}
}

// A server that refuses is sent everything.
func TestSharedMemoryRefused(t *testing.T) {
	s := &sharing{refuse: true}
	c := dialSharing(t, s, 1<<20)
	if err := c.Shared(); err == nil || !strings.Contains(err.Error(), "not offered") {
		t.Error(err)
	}
	a, err := c.Do(t.Context(), &shiva.Message{Namespace: "m", Tensors: []tensor.Tensor{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{1 << 18}, Data: make([]byte, 1<<18)}}})
	if err != nil || len(a.Tensors) != 1 || s.placed != 0 {
		t.Fatal(a, err, s.placed)
	}
	a.Release()
}
