//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	pixels "image"
	"image/png"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// Everything that clients can have the server take is inside its budget: tensors over two doors,
// frames of streams, files of pictures, bodies that unpack to thirty times the budget, and outputs
// in files of shared memory that have no memory, of which clients keep some open, mapped or named.
// In a cgroup of the budget and 30 % the kernel ends nothing, and it charges at most the budget and
// an eighth: memory that the files took from the heap is no longer the heap's.
func TestE2ENothingOutsideTheBudget(t *testing.T) {
	g, err := newCgroup(t, budget*13/10)
	if err != nil {
		t.Skipf("not measured: this needs a cgroup: %v", err)
	}
	dir, err := os.MkdirTemp("/dev/shm", "shivad-e2e")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := start(t, memoryConfig+"[shared_memory]\ndirectory = \""+dir+"\"\n", g.inside()...)
	s.big(t)
	s.serve(t, container.Model{
		Name: "pictures", // files of them
		Inputs: []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1, -1, 3},
			Format: tensor.FormatNHWC, Image: &tensor.Image{Channels: tensor.ChannelsRGB}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Uint8, Shape: tensor.Shape{-1, 1}}},
	}, 20*time.Millisecond)
	s.serve(t, container.Model{
		Name:    "wide", // a byte becomes a MiB
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 1}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Uint8, Shape: tensor.Shape{-1, 1 << 20}}},
	}, 0)

	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds(t, 6))*time.Second)
	defer cancel()
	answers := tally{of: map[string]int{}}
	var clients sync.WaitGroup
	s.throw(ctx, unfinished(t), &clients)
	x := tensor.Tensor{DType: tensor.Uint8, Shape: tensor.Shape{1, row}, Data: bytes.Repeat([]byte("0123456789abcdef"), row/16)}
	file := tensor.Tensor{DType: tensor.Uint8, Data: noise(t)}
	file.Shape = tensor.Shape{len(file.Data)}
	for i := range 36 {
		ask := shiva.Message{Namespace: "big", Tensors: []tensor.Tensor{x}}
		switch i % 3 {
		case 1:
			ask.Metadata = fmt.Appendf(nil, `{"stream":"camera %d","keep":"latest"}`, i)
		case 2:
			ask.Namespace, ask.Tensors = "pictures", []tensor.Tensor{file}
		}
		c := s.client()
		clients.Go(func() {
			for ctx.Err() == nil {
				answers.add(kindOf(c.Do(context.Background(), &ask)))
				time.Sleep(time.Millisecond) // the server may have gone
			}
		})
	}
	head := fmt.Appendf(nil, `{"inputs":[{"name":"x","datatype":"UINT8","shape":[1,%d],"parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`, row, row)
	for range 16 {
		clients.Go(func() {
			for ctx.Err() == nil {
				answers.add(s.post("big", head, io.MultiReader(bytes.NewReader(head), bytes.NewReader(x.Data)),
					len(head)+row))
				time.Sleep(time.Millisecond)
			}
		})
	}
	places := tally{of: map[string]int{}}
	for i := range 3 {
		clients.Go(func() { s.sparse(ctx, dir, i, &places) })
	}
	clients.Wait()
	most, killed := g.figures(t)
	t.Logf("the cgroup had %d MiB at the most, with a budget of %d MiB; answers: %v, in regions: %v", most>>20,
		budget>>20, answers.of, places.of)
	if killed != 0 {
		t.Errorf("the kernel ended %d processes for want of memory", killed)
	}
	if most > budget*9/8 {
		t.Errorf("%d MiB were charged to the cgroup at the most, with a budget of %d MiB", most>>20, budget>>20)
	}
	for what := range answers.of {
		if what != "ok" && what != shiva.Overloaded && what != shiva.Superseded {
			t.Errorf("answers %q", what)
		}
	}
	if answers.of["ok"] == 0 || places.of["ok"] == 0 || places.of[shiva.Overloaded] == 0 {
		t.Errorf("of each kind some fits and some does not: %v, in regions %v", answers.of, places.of)
	}
	// Once the files have gone there is room again.
	os.RemoveAll(dir)
	budgettest.Until(t, "the memory of the files to be free", func() bool {
		var status struct{ Regions struct{ Made int64 } }
		s.get("/v1/status", &status)
		return status.Regions.Made == 0
	})
}

// sparse asks for outputs of a MiB at growing offsets of files that have no memory there. Every 40
// it takes another file, and keeps the last one in a way that depends on i.
func (s *shivad) sparse(ctx context.Context, dir string, i int, answers *tally) {
	defer s.call("POST", "/v2/systemsharedmemory/unregister", "{}")
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("sparse-%d-%d", i, n)
		path := filepath.Join(dir, name)
		f, err := os.Create(path)
		if err == nil {
			err = f.Truncate(1 << 30)
		}
		if err != nil {
			answers.add(err.Error())
			return
		}
		defer f.Close()
		s.call("POST", "/v2/systemsharedmemory/region/"+name+"/register",
			fmt.Sprintf(`{"key":"/%s","byte_size":%d}`, name, 1<<30))
		switch i {
		case 1: // a mapping
			if mem, err := unix.Mmap(int(f.Fd()), 0, 1<<30, unix.PROT_READ, unix.MAP_SHARED); err == nil {
				defer func() { _ = unix.Munmap(mem) }()
				f.Close()
				os.Remove(path)
			}
		case 2: // a descriptor
			os.Remove(path)
		}
		for k := 0; k < 40 && ctx.Err() == nil; k++ {
			ask := fmt.Appendf(nil, `{"inputs":[{"name":"x","datatype":"UINT8","shape":[1,1],"data":[7]}],"outputs":[{"name":"y","parameters":{"shared_memory_region":%q,"shared_memory_offset":%d,"shared_memory_byte_size":%d}}]}`,
				name, k<<20, 1<<20)
			answers.add(s.post("wide", ask, bytes.NewReader(ask), len(ask)))
			time.Sleep(time.Millisecond)
		}
		s.call("POST", "/v2/systemsharedmemory/region/"+name+"/unregister", "{}")
	}
}

// call sends a request over HTTP whose answer does not matter.
func (s *shivad) call(method, path, body string) {
	q, err := http.NewRequest(method, "http://"+s.rest+path, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	if resp, err := http.DefaultClient.Do(q); err == nil {
		resp.Body.Close()
	}
}

// noise returns a PNG of some megabytes.
func noise(t *testing.T) []byte {
	t.Helper()
	m := pixels.NewRGBA(pixels.Rect(0, 0, 1200, 1000))
	_, _ = rand.Read(m.Pix)
	for i := 3; i < len(m.Pix); i += 4 {
		m.Pix[i] = 255
	}
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// kindOf releases an answer, and returns the type of the error, or "ok".
func kindOf(m *shiva.Message, err error) string {
	if remote, ok := errors.AsType[*shiva.RemoteError](err); ok {
		return remote.Type
	}
	if err != nil {
		return err.Error()
	}
	m.Release()
	return "ok"
}

// figures returns the most bytes that were charged to the cgroup at one time, and how many
// processes the kernel has ended for want of memory.
func (g *cgroup) figures(t *testing.T) (most int64, killed int) {
	t.Helper()
	read := func(names ...string) string { // of either generation of cgroups
		for _, name := range names {
			if text, err := os.ReadFile(filepath.Join(g.dir, name)); err == nil {
				return string(text)
			}
		}
		t.Fatalf("%s has none of %q", g.dir, names)
		return ""
	}
	most, err := strconv.ParseInt(strings.TrimSpace(read("memory.max_usage_in_bytes", "memory.peak")), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(read("memory.oom_control", "memory.events")) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			killed, _ = strconv.Atoi(strings.TrimSpace(n))
		}
	}
	return most, killed
}
