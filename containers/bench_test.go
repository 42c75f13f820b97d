package containers_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/containers/internal/arena"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// Sizes of a batch: rows, bytes of a row. They are the two for which DESIGN.md has limits, and a
// small one.
var benchSizes = []struct {
	name      string
	rows, row int
}{{"rows=1/row=64B", 1, 64}, {"rows=64/row=64B", 64, 64}, {"rows=64/row=4KiB", 64, 4 << 10},
	{"rows=1/row=6MiB", 1, 6 << 20}}

// warmUps are the round trips before the measured ones: they fill pools and fault memory in.
const warmUps = 10

const benchAddrEnv = "SHIVA_TEST_ADDR"

// serveEcho runs in a process of its own and sends back every message: the upper bound. A ROUTER
// learns its identity from a first message.
func serveEcho(first bool) {
	network, addr, _ := strings.Cut(os.Getenv(benchAddrEnv), " ")
	raw, err := net.Dial(network, addr)
	if err != nil {
		return
	}
	c, err := zmtp.Client(raw, zmtp.Config{Pool: tensor.NewPool(0)})
	if err != nil {
		return
	}
	var in zmtp.Message
	sent := make(chan struct{}, 1)
	o := zmtp.Outgoing{Done: func(error) { sent <- struct{}{} }}
	if first {
		o.FrameString("here")
		if c.Send(&o) != nil {
			return
		}
		<-sent
	}
	for c.Receive(&in) == nil {
		o.Reset()
		for _, f := range in.Frames {
			o.Frame(f.Data)
		}
		if c.Send(&o) != nil {
			return
		}
		<-sent
		in.Release()
	}
}

// serveNoop runs in a process of its own a container that answers with its inputs.
func serveNoop() {
	spec := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1}}}
	_ = container.Serve(context.Background(), container.Model{
		Name: "noop", Version: "1", Batched: new(true), Inputs: spec, Outputs: spec, Log: slog.New(slog.DiscardHandler),
		Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) { return b.Inputs, nil },
	}, os.Getenv(benchAddrEnv))
}

// spawn starts this binary in another role until the end of the test.
func spawn(tb testing.TB, role, addr string) *exec.Cmd {
	tb.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+role, benchAddrEnv+"="+addr)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

// BenchmarkRoundTrip compares a batch through scheduler, session and Go container (via=container)
// with a bare exchange of the same bytes over the same kind of connection (via=echo), and that with
// zmq4's unmodified ROUTER (via=router). The peer is a process of its own. As under load, and as in
// the bare exchange, the next batch is sent from the goroutine on which the last one arrived;
// via=waiter shows the cost of waiting on another goroutine.
//
// bench/run holds the ratios to their limits. To look closer:
//
//	go test ./containers -run '^$' -bench RoundTrip -count 6 | benchstat -col /via -
func BenchmarkRoundTrip(b *testing.B) {
	for _, transport := range []string{"tcp", "ipc"} {
		for _, size := range benchSizes {
			name := fmt.Sprintf("%s/over=%s", size.name, transport)
			b.Run(name+"/via=echo", func(b *testing.B) { benchEcho(b, transport, size.rows*size.row) })
			b.Run(name+"/via=router", func(b *testing.B) { benchRouter(b, transport, size.rows*size.row) })
			b.Run(name+"/via=container", func(b *testing.B) { benchContainer(b, transport, size.rows, size.row) })
			b.Run(name+"/via=waiter", func(b *testing.B) { benchWaiter(b, transport, size.rows, size.row) })
		}
	}
}

func benchEcho(b *testing.B, transport string, size int) {
	network, address := "tcp", "127.0.0.1:0"
	if transport == "ipc" {
		network, address = "unix", b.TempDir()+"/s"
	}
	l, err := net.Listen(network, address)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	spawn(b, "echo", network+" "+l.Addr().String())
	raw, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	c, err := zmtp.Server(raw, zmtp.Config{Pool: tensor.NewPool(0)})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	payload := written(size)
	header := make([]byte, 80)
	var o zmtp.Outgoing
	var m zmtp.Message
	exchange := func() {
		o.Reset()
		o.Frame(header)
		o.Frame(payload)
		if err := c.Send(&o); err != nil {
			b.Fatal(err)
		}
		if err := c.Receive(&m); err != nil {
			b.Fatal(err)
		}
		m.Release()
		if !c.Written(&o) { // the writer is done with it
			b.Fatal("answered before it was sent")
		}
	}
	for range warmUps {
		exchange()
	}
	b.SetBytes(2 * int64(size))
	b.ReportAllocs()
	for b.Loop() {
		exchange()
	}
}

func benchRouter(b *testing.B, transport string, size int) {
	addr, network := "tcp://127.0.0.1:0", "tcp"
	if transport == "ipc" {
		addr, network = "ipc://"+b.TempDir()+"/s", "unix"
	}
	router := zmq4.NewRouter(context.Background())
	defer router.Close()
	if err := router.Listen(addr); err != nil {
		b.Fatal(err)
	}
	spawn(b, "echo first", network+" "+strings.TrimPrefix(router.Addr().String(), "ipc://"))
	m, err := router.Recv() // identity, "here"
	if err != nil {
		b.Fatal(err)
	}
	m = zmq4.NewMsgFrom(m.Frames[0], make([]byte, 80), written(size))
	exchange := func() {
		if err := router.SendMulti(m); err != nil {
			b.Fatal(err)
		}
		if _, err := router.Recv(); err != nil {
			b.Fatal(err)
		}
	}
	for range warmUps {
		exchange()
	}
	b.SetBytes(2 * int64(size))
	b.ReportAllocs()
	for b.Loop() {
		exchange()
	}
}

func benchContainer(b *testing.B, transport string, rows, row int) {
	r := newNoop(b, transport)
	q := r.request(rows, row)
	r.warmUp(b, q)
	b.SetBytes(2 * int64(rows*row))
	b.ReportAllocs()
	before := r.Writes(0)
	r.again = b.Loop // its first call, after one more batch, starts the clock
	r.roundTrip(b, q)
	b.ReportMetric(float64(r.Writes(0)-before-1)/float64(b.N), "writes/op")
}

func benchWaiter(b *testing.B, transport string, rows, row int) {
	r := newNoop(b, transport)
	q := r.request(rows, row)
	r.warmUp(b, q)
	b.SetBytes(2 * int64(rows*row))
	b.ReportAllocs()
	for b.Loop() {
		r.roundTrip(b, q)
	}
}

// A noopRig is a scheduler, a listener and a container process that does nothing.
type noopRig struct {
	*containers.Listener
	sched *scheduler.Scheduler
	done  chan struct{}
	again func() bool // whether Complete submits the request again; nil: no
}

func newNoop(tb testing.TB, transport string) *noopRig {
	tb.Helper()
	addr := "tcp://127.0.0.1:0"
	if transport == "ipc" {
		addr = "ipc://" + tb.TempDir() + "/s"
	}
	pool := tensor.NewPool(1 << 30)
	sched, err := scheduler.New(scheduler.Config{Pool: pool,
		Default: scheduler.ModelConfig{Strategy: "static", ExecTimeout: time.Minute}})
	if err != nil {
		tb.Fatal(err)
	}
	l, err := containers.Listen(containers.Config{Addrs: []string{addr}, Scheduler: sched, Pool: pool})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		l.Close()
		sched.Close()
	})
	spawn(tb, "noop", l.Dialable()[0])
	r := &noopRig{Listener: l, sched: sched, done: make(chan struct{}, 1)}
	budgettest.Until(tb, "the container", func() bool {
		m, ok := sched.Model(scheduler.ModelID{Name: "noop", Version: "1"})
		return ok && m.Replicas() == 1
	})
	return r
}

// written returns memory that has been written to: fresh memory is a single page of zeros, which
// copies faster.
func written(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// Complete implements scheduler.Completer.
func (r *noopRig) Complete(q *scheduler.Request) {
	if r.again == nil || q.Err != nil || !r.again() {
		r.done <- struct{}{}
		return
	}
	for _, t := range q.Outputs {
		t.Release()
	}
	r.sched.Submit(q)
}

func (r *noopRig) request(rows, row int) *scheduler.Request {
	m, _ := r.sched.Model(scheduler.ModelID{Name: "noop", Version: "1"})
	return &scheduler.Request{
		Model: m, Rows: rows, Owner: r,
		Inputs: []tensor.Tensor{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{rows, row},
			Data: written(rows * row)}},
	}
}

func (r *noopRig) roundTrip(tb testing.TB, q *scheduler.Request) {
	r.sched.Submit(q)
	<-r.done
	if q.Err != nil {
		tb.Fatal(q.Err)
	}
	for _, t := range q.Outputs {
		t.Release()
	}
}

func (r *noopRig) warmUp(tb testing.TB, q *scheduler.Request) {
	for range warmUps {
		r.roundTrip(tb, q)
	}
}

// BenchmarkArena compares shared memory (by=arena) and bytes for a frame of 1080p through a
// container that answers with a copy of it. CPU is the time of both processes.
//
//	go test ./containers -run '^$' -bench Arena -count 6 | benchstat -col /by -
func BenchmarkArena(b *testing.B) {
	for _, transport := range []string{"tcp", "ipc"} {
		for _, by := range []string{"bytes", "arena"} {
			b.Run("over="+transport+"/by="+by, func(b *testing.B) { benchArena(b, transport, by == "bytes") })
		}
	}
}

func benchArena(b *testing.B, transport string, asBytes bool) {
	const size = 1920 * 1080 * 3
	a := arena.New(256*mib, func(err error) { b.Fatal(err) })
	pool := tensor.NewPoolFrom(a, 256*mib)
	addr := "tcp://127.0.0.1:0"
	if transport == "ipc" {
		addr = "ipc://" + b.TempDir() + "/s"
	}
	sched, err := scheduler.New(scheduler.Config{Pool: pool,
		Default: scheduler.ModelConfig{Strategy: "static", ExecTimeout: time.Minute}})
	if err != nil {
		b.Fatal(err)
	}
	l, err := containers.Listen(containers.Config{Addrs: []string{addr}, Scheduler: sched, Pool: pool, Arena: a,
		Settings: containers.Settings{Bytes: asBytes}})
	if err != nil {
		b.Fatal(err)
	}
	cmd := spawn(b, "noop", l.Dialable()[0])
	r := &noopRig{Listener: l, sched: sched, done: make(chan struct{}, 1)}
	budgettest.Until(b, "the container", func() bool { return l.Stats().Registered == 1 })
	data := written(size)
	once := func() { // a frame is read from a client's socket into memory of the pool
		buf, err := pool.Get(size)
		if err != nil {
			b.Fatal(err)
		}
		copy(buf.Bytes(), data)
		q := r.request(1, 1)
		q.Inputs[0].Shape, q.Inputs[0].Data, q.Inputs[0].Buf = tensor.Shape{1, size}, buf.Bytes(), buf
		r.roundTrip(b, q)
		buf.Release()
	}
	for range warmUps {
		once()
	}
	b.SetBytes(2 * size)
	began := cpuTime(b, cmd.Process.Pid) + cpuTime(b, os.Getpid())
	for b.Loop() {
		once()
	}
	b.ReportMetric(float64(cpuTime(b, cmd.Process.Pid)+cpuTime(b, os.Getpid())-began)/1e3/float64(b.N), "cpu-µs/op")
	l.Close()
	sched.Close()
	a.Renew()
}

// cpuTime is the processor time that a process has taken.
func cpuTime(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	var user, system int64
	fmt.Sscan(f[11], &user)
	fmt.Sscan(f[12], &system)
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100
}

// TestOneWrite: one system call sends a batch of many rows of one request, and of many requests.
func TestOneWrite(t *testing.T) {
	r := newNoop(t, "tcp")
	q := r.request(64, 2048)
	r.roundTrip(t, q)
	before := r.Writes(0)
	const batches = 50
	for range batches {
		r.roundTrip(t, q)
	}
	// Heartbeats and PINGs may come in between, one a second.
	if n := r.Writes(0) - before; n < batches || n > batches+3 {
		t.Errorf("%d batches took %d writes", batches, n)
	}
}
