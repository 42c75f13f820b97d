package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A span is part of a region.
type span struct {
	region       string
	offset, size int
}

// json is the member of a tensor of REST that says where it is.
func (s span) json() string {
	return fmt.Sprintf(`"parameters":{"shared_memory_region":%q,"shared_memory_offset":%d,"shared_memory_byte_size":%d}`,
		s.region, s.offset, s.size)
}

// parameters says the same to gRPC.
func (s span) parameters() map[string]*pb.InferParameter {
	return map[string]*pb.InferParameter{
		"shared_memory_region":    {ParameterChoice: &pb.InferParameter_StringParam{StringParam: s.region}},
		"shared_memory_offset":    {ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: int64(s.offset)}},
		"shared_memory_byte_size": {ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: int64(s.size)}},
	}
}

// A sharer sends bytes to the model "m" through one door, with its input and its output in regions.
type sharer func(ctx context.Context, in, out span) error

func sharers(t *testing.T, s *Server) map[string]sharer {
	t.Helper()
	rest, rpc, raw := newHTTP(t, s.Addrs().REST[0]), newGRPC(t, s.Addrs().GRPC[0]), newTCP(t, s.Addrs().TCP[0])
	return map[string]sharer{
		"rest": func(ctx context.Context, in, out span) error {
			_, _, err := rest.post(ctx, "m",
				fmt.Appendf(nil, `{"inputs":[{"name":"x","datatype":"UINT8","shape":[1,%d],%s}],"outputs":[{"name":"x",%s}]}`,
					in.size, in.json(), out.json()), nil)
			return err
		},
		"grpc": func(ctx context.Context, in, out span) error {
			_, err := rpc.client.ModelInfer(ctx, &pb.ModelInferRequest{ModelName: "m",
				Inputs: []*pb.ModelInferRequest_InferInputTensor{
					{Name: "x", Datatype: "UINT8", Shape: []int64{1, int64(in.size)}, Parameters: in.parameters()}},
				Outputs: []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: "x", Parameters: out.parameters()}}})
			if err != nil {
				return grpcFault(err)
			}
			return nil
		},
		"tcp": func(ctx context.Context, in, out span) error {
			at := func(s span) string {
				return fmt.Sprintf(`"name":"x","region":%q,"offset":%d,"byte_size":%d`, s.region, s.offset, s.size)
			}
			m, err := raw.client.Do(ctx, &shiva.Message{Namespace: "m", Metadata: fmt.Appendf(nil,
				`{"shared_memory":{"inputs":[{"datatype":"UINT8","shape":[1,%d],%s}],"outputs":[{%s}]}}`, in.size,
				at(in), at(out))})
			if err != nil {
				return shivaFault(err)
			}
			m.Release()
			return nil
		},
	}
}

// A hostile client owns a file, and changes it at will.
type hostile struct {
	path string
	rand *rand.Rand
}

const hostileBytes = 64 << 10

// spoil makes one random change to the file.
func (h *hostile) spoil() {
	other := h.path + ".new"
	switch h.rand.IntN(12) {
	case 0, 1:
		_ = os.Truncate(h.path, int64(h.rand.IntN(hostileBytes)))
	case 2:
		_ = os.Truncate(h.path, hostileBytes) // a hole in place of the end
	case 3:
		_ = os.RemoveAll(h.path)
	case 4:
		_ = os.WriteFile(other, make([]byte, h.rand.IntN(hostileBytes)), 0o600)
		_ = os.Rename(other, h.path)
	case 5:
		_ = os.RemoveAll(h.path)
		_ = os.Symlink("/proc/self/mem", h.path)
	case 6:
		_ = os.RemoveAll(h.path)
		_ = unix.Mkfifo(h.path, 0o600)
	case 7:
		_ = os.RemoveAll(h.path)
		_ = os.Mkdir(h.path, 0o700)
	case 8:
		_ = os.RemoveAll(h.path)
		// /dev/zero, where it may be made.
		_ = unix.Mknod(h.path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5)))
	case 9:
		_ = os.Chown(h.path, 12345, -1)
	case 10:
		_ = os.Chmod(h.path, 0)
	default:
		_ = os.RemoveAll(h.path)
		_ = os.WriteFile(h.path, make([]byte, hostileBytes), 0o600)
	}
}

// Clients that truncate, replace and remove the files of their regions, and change their type, even
// while they are copied, get an error or an answer for each of thousands of requests. Another
// client's answers are right throughout, and nothing is left behind.
func TestHostileRegions(t *testing.T) {
	t.Parallel()
	const clients = 4
	requests := int64(budgettest.Rounds(10_000))
	dir := t.TempDir()
	s := start(t, func(c *config.Config) { c.SharedMemory.Directory, c.SharedMemory.RegionBytes = dir, hostileBytes })
	join(t, s, "m", tensor.Uint8, tensor.Shape{-1, -1}, nil)
	ways, operator := sharers(t, s), newHTTP(t, s.Addrs().REST[0])
	register := func(name string, size int) error {
		return operator.call("POST", "/v2/systemsharedmemory/region/"+name+"/register",
			fmt.Sprintf(`{"key":"/%s","byte_size":%d}`, name, size), nil)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var crowd, around sync.WaitGroup
	var good, bad atomic.Int64
	over := make(chan struct{})
	for i := range clients {
		h := &hostile{filepath.Join(dir, fmt.Sprint("h", i)), rand.New(rand.NewPCG(uint64(i), 1))}
		name := filepath.Base(h.path)
		around.Go(func() { // the size may change between any check and any use
			for {
				select {
				case <-over:
					return
				case <-time.After(100 * time.Microsecond):
					_ = os.Truncate(h.path, 0)
					_ = os.Truncate(h.path, hostileBytes)
				}
			}
		})
		crowd.Go(func() {
			for n := range requests / clients {
				if h.spoil(); h.rand.IntN(3) == 0 {
					_ = operator.call("POST", "/v2/systemsharedmemory/region/"+name+"/unregister", "", nil)
					_ = register(name, 1+h.rand.IntN(hostileBytes)) // refused if not a regular file
				}
				in := span{name, h.rand.IntN(hostileBytes / 2), h.rand.IntN(hostileBytes / 2)}
				err := ways[[]string{"rest", "grpc", "tcp"}[n%3]](ctx, in,
					span{name, h.rand.IntN(hostileBytes / 2), in.size})
				if f := (*refusal)(nil); errors.As(err, &f) && f.code != 500 && f.code != 502 && f.code != 13 &&
					f.code != 2 {
					bad.Add(1)
				} else if err != nil {
					t.Errorf("request %d: %v", n, err)
					return
				} else {
					good.Add(1)
				}
			}
		})
	}
	file := filepath.Join(dir, "calm")
	calm := make([]byte, hostileBytes)
	if err := os.WriteFile(file, calm, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := register("calm", hostileBytes); err != nil {
		t.Fatal(err)
	}
	served := 0
	around.Go(func() {
		for ; ; served++ {
			for name, ask := range ways {
				half := bytes.Repeat([]byte{byte(served), byte(served >> 8), name[0]}, hostileBytes/6)
				f, err := os.OpenFile(file, os.O_WRONLY, 0)
				if err == nil {
					_, err = f.WriteAt(half, 0)
					f.Close()
				}
				if err == nil {
					err = ask(ctx, span{"calm", 0, len(half)}, span{"calm", hostileBytes / 2, len(half)})
				}
				got, wrong := os.ReadFile(file)
				if err = errors.Join(err, wrong); err != nil || !bytes.Equal(got[hostileBytes/2:][:len(half)], half) {
					t.Errorf("the bystander's %d. request over %s: %v", served, name, err)
					return
				}
			}
			select {
			case <-over:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	crowd.Wait()
	close(over)
	around.Wait()
	t.Logf("%d answers and %d refusals; the bystander had %d rounds", good.Load(), bad.Load(), served)
	if good.Load() < requests/100 || bad.Load() < requests/100 {
		t.Error("too few of a kind: nothing was tried")
	}
	if err := operator.call("POST", "/v2/systemsharedmemory/unregister", "", nil); err != nil {
		t.Error(err)
	}
	budgettest.Until(t, "the memory to come back", func() bool { return s.pool.InUse() < 1<<20 })
}

// While a model executes a request, its client's region is unregistered and another client
// registers its own file under the name, as each of Triton's examples does. The answer goes to the
// region that the request named when it was accepted, and to no other.
func TestNameOfAnothersRegion(t *testing.T) {
	dir := t.TempDir()
	s := start(t, func(c *config.Config) { c.SharedMemory.Directory, c.SharedMemory.Regions = dir, 1 })
	const size = 1 << 10
	write := func(key string, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, key), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	register := func(key string) error {
		return s.regions.Register(regions.Client{}, regions.Region{Name: "output0_data", Key: key, Size: size})
	}
	limit := func(files int) {
		set := s.regions.Settings()
		set.Regions = files
		s.regions.Configure(set)
	}
	var full, renamed error
	x := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1}}}
	swap := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		_ = s.regions.Unregister(regions.Client{}, "")
		full = register("theirs") // the file in use takes the only place
		limit(2)
		renamed = register("theirs")
		return echo(b)
	})
	if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "m", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x}, swap, scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	for door, ask := range sharers(t, s) {
		write("mine", append(bytes.Repeat([]byte{1}, size/2), make([]byte, size/2)...))
		write("theirs", bytes.Repeat([]byte{2}, size))
		if err := register("mine"); err != nil {
			t.Fatal(err)
		}
		if err := ask(t.Context(), span{"output0_data", 0, size / 2},
			span{"output0_data", size / 4, size / 2}); err != nil {
			t.Errorf("%s: %v", door, err)
		}
		if !errors.Is(full, scheduler.ErrOverloaded) || renamed != nil {
			t.Errorf("%s: beside a file in use: %v, and with room: %v", door, full, renamed)
		}
		mine, _ := os.ReadFile(filepath.Join(dir, "mine"))
		theirs, _ := os.ReadFile(filepath.Join(dir, "theirs"))
		if want := append(bytes.Repeat([]byte{1}, 3*size/4), make([]byte, size/4)...); !bytes.Equal(mine, want) ||
			!bytes.Equal(theirs, bytes.Repeat([]byte{2}, size)) {
			t.Errorf("%s: the answer is not in the client's own file, or is in the other client's", door)
		}
		_ = s.regions.Unregister(regions.Client{}, "")
		limit(1)
		budgettest.Until(t, "the files to be closed", func() bool { return register("mine") == nil })
		_ = s.regions.Unregister(regions.Client{}, "")
	}
}

// With one option, the client in Go puts inputs and outputs into shared memory. Its files have no
// name once it is connected, and the server unregisters the regions with the connection.
func TestClientSharesMemory(t *testing.T) {
	t.Parallel() // it waits
	s := start(t, func(c *config.Config) { c.SharedMemory.Directory = "/dev/shm" })
	join(t, s, "m", tensor.Uint8, tensor.Shape{-1, -1}, nil)
	c, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String(), shiva.WithSharedMemory(4<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Shared(); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(fmt.Sprintf("/dev/shm/shiva-%d-*", os.Getpid())); len(left) > 0 {
		t.Errorf("a client that is killed leaves %q", left)
	}
	if list, err := s.regions.Status(regions.Client{}, ""); err != nil || len(list) != 1 {
		t.Errorf("%v %v", list, err)
	}
	for i := range 20 {
		x := tensor.Tensor{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{1, 1 << 20},
			Data: bytes.Repeat([]byte{byte(i)}, 1<<20)}
		a, err := c.Do(t.Context(), &shiva.Message{Namespace: "m", Tensors: []tensor.Tensor{x}})
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Tensors) != 1 || !bytes.Equal(a.Tensors[0].Data, x.Data) {
			t.Errorf("request %d: wrong bytes", i)
		}
		if maps, _ := os.ReadFile("/proc/self/maps"); i > 0 && !liesIn(maps, a.Tensors[0].Data) {
			t.Errorf("request %d: its output was sent", i)
		}
		a.Release()
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	budgettest.Until(t, "the region to go", func() bool {
		list, err := s.regions.Status(regions.Client{}, "")
		return err == nil && len(list) == 0
	})
}

// Requests that wait in memory when the server loses it, or turns all of it off, are answered all
// the same, and executed once: the client sends their tensors.
func TestClientSendsWhatIsNotShared(t *testing.T) {
	for name, lose := range map[string]func(*regions.Registry){
		"off": func(g *regions.Registry) {
			set := g.Settings()
			set.Directory = ""
			g.Configure(set)
		},
		"unregistered": func(g *regions.Registry) { _ = g.Unregister(regions.Client{}, "") },
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, func(c *config.Config) { c.SharedMemory.Directory = "/dev/shm" })
			m := join(t, s, "m", tensor.Uint8, tensor.Shape{-1, -1}, nil)
			c, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String(), shiva.WithSharedMemory(64<<20))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			const callers, each = 8, 20
			var done atomic.Int64
			var all sync.WaitGroup
			for caller := range callers {
				all.Go(func() {
					for i := range each {
						x := tensor.Tensor{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{1, 128 << 10},
							Data: bytes.Repeat([]byte{byte(caller*each + i)}, 128<<10)}
						a, err := c.Infer(t.Context(), "m", x)
						if err != nil {
							t.Errorf("request %d of %d: %v", i, caller, err)
							return
						}
						if len(a.Tensors) != 1 || !bytes.Equal(a.Tensors[0].Data, x.Data) {
							t.Errorf("request %d of %d: wrong bytes", i, caller)
						}
						a.Release()
						if done.Add(1) == callers*each/2 {
							lose(s.regions)
						}
					}
				})
			}
			all.Wait()
			if e, ok := errors.AsType[*shiva.RemoteError](c.Shared()); !ok || !e.Unshared {
				t.Errorf("the client does not know: %v", c.Shared())
			}
			executed := 0
			for _, b := range m.Batches() {
				executed += b.Rows
			}
			if executed != callers*each {
				t.Errorf("%d requests were executed %d times", callers*each, executed)
			}
		})
	}
}

// liesIn reports whether b lies in a client's shared memory, according to /proc/PID/maps.
func liesIn(maps, b []byte) bool {
	at := uintptr(unsafe.Pointer(&b[0]))
	for line := range bytes.Lines(maps) {
		var from, to uintptr
		if _, err := fmt.Sscanf(string(line), "%x-%x", &from, &to); err == nil && from <= at && at < to {
			return bytes.Contains(line, fmt.Appendf(nil, "/dev/shm/shiva-%d-", os.Getpid()))
		}
	}
	return false
}
