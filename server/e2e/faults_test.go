//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// asReplica makes this binary a container that answers 3x + 1, in 1 ms, as version 1 unless
// asVersion is set.
const (
	asReplica = "SHIVA_E2E_REPLICA"
	asVersion = "SHIVA_E2E_VERSION"
)

func TestMain(m *testing.M) {
	if os.Getenv(asGRPCurl) != "" {
		if err := grpcurl(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "grpcurl:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(asReplica) == "" {
		os.Exit(m.Run())
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	x := []tensor.Spec{{Name: "x", DType: tensor.Int64, Shape: tensor.Shape{-1, 1}}}
	err := container.Serve(ctx, container.Model{
		Name: "affine", Version: cmp.Or(os.Getenv(asVersion), "1"), Inputs: x, Outputs: x, MaxBatch: 32,
		Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			time.Sleep(time.Millisecond)
			v, err := tensor.Values[int64](b.Inputs[0])
			if err != nil {
				return nil, err
			}
			out := make([]int64, len(v))
			for i := range v {
				out[i] = 3*v[i] + 1
			}
			y, err := tensor.FromSlice(b.Inputs[0].Shape, out)
			return []tensor.Tensor{y}, err
		},
	}, os.Getenv(asReplica))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// replica starts a container that connects to addr.
func (s *shivad) replica(addr string) *exec.Cmd {
	s.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asReplica+"="+addr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

const (
	rate     = 2000 // requests a second
	deadline = time.Second
)

// A load is an open-loop series of requests, each with its own number, while a test disturbs the
// containers.
type load struct {
	watch *stopwatch
	stop  chan struct{}
	done  sync.WaitGroup

	asked, right, wrong, unanswered atomic.Int64

	mu      sync.Mutex
	took    []time.Duration
	types   map[string]int // of error
	version string         // of the last answer
}

// begin starts the load. Each request is one call of the client, which gets one answer or none: a
// second one would be taken for the answer of the next request, and be wrong.
func (s *shivad) begin() *load {
	l := &load{watch: newStopwatch(s.t), stop: make(chan struct{}), types: map[string]int{}}
	const clients = 8
	for i := range clients {
		c := s.client()
		l.done.Go(func() {
			ticker := time.NewTicker(time.Second * clients / rate)
			defer ticker.Stop()
			for n := int64(i); ; n += clients {
				select {
				case <-l.stop:
					return
				case <-ticker.C:
					l.done.Go(func() { l.ask(c, n) })
				}
			}
		})
	}
	return l
}

func (l *load) ask(c *shiva.Client, n int64) {
	x, err := tensor.FromSlice(tensor.Shape{1, 1}, []int64{n})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l.asked.Add(1)
	began := l.watch.read()
	m, err := c.Do(ctx,
		&shiva.Message{Namespace: "affine", Metadata: fmt.Appendf(nil, `{"timeout_ms":%d}`, deadline.Milliseconds()),
			Tensors: []tensor.Tensor{x}})
	took := l.watch.read() - began
	remote, typed := errors.AsType[*shiva.RemoteError](err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took = append(l.took, took)
	switch {
	case typed:
		l.types[remote.Type]++
		return
	case err != nil:
		l.unanswered.Add(1)
		l.types[err.Error()]++
		return
	}
	defer m.Release()
	if y, err := tensor.Values[int64](m.Tensors[0]); err != nil || len(y) != 1 || y[0] != 3*n+1 {
		l.wrong.Add(1)
		return
	}
	l.right.Add(1)
	l.version = string(jsonscan.Field(m.Metadata, "model_version"))
}

// awaitResults waits for some more results.
func (l *load) awaitResults(t *testing.T) {
	t.Helper()
	right := l.right.Load()
	budgettest.Until(t, "more results", func() bool { return l.right.Load() >= right+rate/4 })
}

// end stops the load and compares it with the bars of reliability: every request is answered once,
// correctly and within its deadline, and at least the given percentage with a result.
func (l *load) end(t *testing.T, percent float64) {
	t.Helper()
	close(l.stop)
	l.done.Wait()
	slices.Sort(l.took)
	p := func(q float64) time.Duration {
		return l.took[int(q*float64(len(l.took)-1))].Round(10 * time.Microsecond)
	}
	t.Logf("%d requests: %d right, %d wrong, %d unanswered, errors %v; p50 %v, p99 %v, p99.9 %v, longest %v",
		l.asked.Load(), l.right.Load(), l.wrong.Load(), l.unanswered.Load(), l.types, p(0.5), p(0.99), p(0.999), p(1))
	if l.wrong.Load() > 0 || l.unanswered.Load() > 0 {
		t.Errorf("%d wrong, %d unanswered", l.wrong.Load(), l.unanswered.Load())
	}
	if got := 100 * float64(l.right.Load()) / float64(l.asked.Load()); got < percent {
		t.Errorf("%.2f %% have a result, expected %g", got, percent)
	}
	// The bar is 5 ms at p99.9; the rest allows for a machine that is busy with other tests.
	if late := p(0.999) - deadline; late > 100*time.Millisecond {
		t.Errorf("p99.9 is %v after the deadline", late)
	}
}

const faultConfig = `
[model.affine]
objective = "20ms"
execution_timeout = "200ms"
`

// seconds returns how long a fault lasts: SHIVA_E2E_SECONDS for a long run.
func seconds(t *testing.T, usual int) int {
	t.Helper()
	n := usual
	if text := os.Getenv("SHIVA_E2E_SECONDS"); text != "" {
		if _, err := fmt.Sscan(text, &n); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// One of three replicas is killed each second, and started again.
func TestE2EKilledUnderLoad(t *testing.T) {
	s := start(t, faultConfig)
	var replicas [3]*exec.Cmd
	for i := range replicas {
		replicas[i] = s.replica(s.containers)
	}
	s.waitReplicas("affine", 3)
	l := s.begin()
	for i := range seconds(t, 4) {
		l.awaitResults(t)
		victim := &replicas[i%3]
		_ = (*victim).Process.Kill()
		killed := l.watch.read()
		s.waitReplicas("affine", 2)
		if d := l.watch.read() - killed; d > time.Second {
			t.Errorf("the death of a replica was noticed after %v", d)
		}
		l.awaitResults(t)
		*victim = s.replica(s.containers)
		s.waitReplicas("affine", 3)
	}
	l.end(t, 99)
}

// One of three replicas is stopped and continues later. Its batch goes to another one after the
// execution timeout, it gets no more, and it returns by itself.
func TestE2EStoppedUnderLoad(t *testing.T) {
	s := start(t, faultConfig)
	var replicas [3]*exec.Cmd
	for i := range replicas {
		replicas[i] = s.replica(s.containers)
	}
	s.waitReplicas("affine", 3)
	l := s.begin()
	for range seconds(t, 2) {
		l.awaitResults(t)
		_ = replicas[1].Process.Signal(syscall.SIGSTOP)
		stopped := l.watch.read()
		s.waitReplicas("affine", 2)
		if d := l.watch.read() - stopped; d > time.Second {
			t.Errorf("suspected after %v, expected the execution timeout of 200ms", d)
		}
		l.awaitResults(t)
		_ = replicas[1].Process.Signal(syscall.SIGCONT)
		s.waitReplicas("affine", 3)
	}
	l.end(t, 99)
}

// A cable forwards containers' connections until it is cut: then bytes vanish and neither side sees
// an end.
type cable struct {
	ear net.Listener
	cut atomic.Bool
}

// connect makes a cable to the server that carries rate bytes a second in either direction; 0: no
// limit.
func connect(t *testing.T, server string, rate int) *cable {
	t.Helper()
	ear, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &cable{ear: ear}
	var pumps sync.WaitGroup
	var mu sync.Mutex
	conns := []net.Conn{}
	pump := func(from, to net.Conn) {
		defer to.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			switch {
			case w.cut.Load(): // for ever: a cut connection is not restored
				<-t.Context().Done()
				return
			case err != nil:
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
			if rate > 0 {
				time.Sleep(time.Duration(n) * time.Second / time.Duration(rate))
			}
		}
	}
	pumps.Go(func() {
		for {
			c, err := ear.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				c.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, c, up)
			mu.Unlock()
			pumps.Go(func() { pump(c, up) })
			pumps.Go(func() { pump(up, c) })
		}
	})
	t.Cleanup(func() {
		ear.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		pumps.Wait()
	})
	return w
}

// The cable of one of three replicas is cut. For three heartbeats neither side hears from the
// other, and when there is a cable again the container reconnects.
func TestE2ECableCutUnderLoad(t *testing.T) {
	s := start(t, "[containers]\nheartbeat = \"300ms\"\n"+faultConfig)
	w := connect(t, s.containers, 0)
	s.replica(s.containers)
	s.replica(s.containers)
	s.replica(w.ear.Addr().String())
	s.waitReplicas("affine", 3)
	l := s.begin()
	l.awaitResults(t)
	w.cut.Store(true)
	cut := l.watch.read()
	s.waitReplicas("affine", 2)
	if d := l.watch.read() - cut; d > time.Second {
		t.Errorf("readiness was wrong for %v", d)
	}
	// Three heartbeats without a byte, or three execution timeouts without an answer, whichever is
	// first.
	budgettest.Until(t, "the silence to be noticed", func() bool {
		return s.logs("container gone", "silent for") || s.logs("container gone", "no answer for")
	})
	t.Logf("gone after %v", (l.watch.read() - cut).Round(time.Millisecond))
	w.cut.Store(false)
	s.waitReplicas("affine", 3)
	l.end(t, 99)
}

// The only replica is killed: errors are typed, and when it is back, requests succeed.
func TestE2EOnlyReplicaKilledUnderLoad(t *testing.T) {
	s := start(t, faultConfig)
	only := s.replica(s.containers)
	s.waitReplicas("affine", 1)
	l := s.begin()
	l.awaitResults(t)
	_ = only.Process.Kill()
	s.waitReplicas("affine", 0)
	budgettest.Until(t, "errors", func() bool {
		n := 0
		for _, of := range l.errorTypes() {
			n += of
		}
		return n >= rate/4
	})
	s.replica(s.containers)
	s.waitReplicas("affine", 1)
	l.awaitResults(t)
	for kind := range l.errorTypes() {
		if kind != shiva.Unavailable && kind != shiva.ContainerLost && kind != shiva.DeadlineExceeded &&
			kind != shiva.Overloaded {
			t.Errorf("errors of type %s", kind)
		}
	}
	l.end(t, 10)
}

// hostile runs hostile peers at the containers' address, again and again. They must not affect the
// clients that are served meanwhile.
func hostile(t *testing.T, addr string) (stop func()) {
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	dealer := "\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
	ready := slices.Concat(greeting, []byte{4, byte(len(dealer))}, []byte(dealer))
	hello := func(name string) []byte {
		json := `{"protocol":4,"model":"` + name + `","version":"1","inputs":[{"name":"x","datatype":"INT64","shape":[-1,1]}],"outputs":[{"name":"x","datatype":"INT64","shape":[-1,1]}]}`
		return slices.Concat(ready, []byte("\x01\x05hello\x00"), []byte{byte(len(json))}, []byte(json))
	}
	peers := map[string][]byte{
		"silent":            nil,
		"half a greeting":   greeting[:20],
		"frame of 2^49":     append(slices.Clone(ready), 2, 0, 2, 0, 0, 0, 0, 0, 0),
		"endless multipart": append(slices.Clone(ready), bytes.Repeat([]byte{1, 0}, 10_000)...),
		"PING flood":        append(slices.Clone(ready), bytes.Repeat([]byte("\x04\x0a\x04PING\x00\x00ctx"), 1000)...),
		"stale id":          append(hello("stale"), "\x01\x06result\x01\x0812345678\x00\x0e{\"outputs\":[]}"...),
		"hangs up":          hello("gone"),
	}
	done := make(chan struct{})
	var all sync.WaitGroup
	for name, text := range peers {
		all.Go(func() {
			for {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				_, _ = c.Write(text)
				select {
				case <-done:
					c.Close()
					return
				case <-time.After(100 * time.Millisecond):
					c.Close()
				}
			}
		})
	}
	return func() {
		close(done)
		all.Wait()
	}
}

// Hostile peers come and go while clients are served. No container hangs; a busy machine may stall
// everything for the execution timeout of the other tests.
func TestE2EHostileUnderLoad(t *testing.T) {
	s := start(t, "")
	s.replica(s.containers)
	s.replica(s.containers)
	s.waitReplicas("affine", 2)
	quiet := s.begin()
	quiet.awaitResults(t)
	quiet.end(t, 100)
	stop := hostile(t, s.containers)
	l := s.begin()
	time.Sleep(time.Duration(seconds(t, 2)) * time.Second) // the duration of the attack
	stop()
	l.end(t, 100)
	for _, words := range []string{"limit 2097152 for a message", "more than 16 frames", "not in flight; further such answers"} {
		if !s.logs(words) {
			t.Errorf("the log does not say %q", words)
		}
	}
}

func (l *load) errorTypes() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	types := map[string]int{}
	for k, n := range l.types {
		types[k] = n
	}
	return types
}
