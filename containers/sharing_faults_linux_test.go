package containers_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/containers/internal/arena"
	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A liar is a hand-written container of the model sharing that maps the offered segments and
// answers whatever the test wants.
type liar struct {
	*containertest.Peer
	t   *testing.T
	in  map[int64][]byte
	out []byte // the segment of outputs
	no  int64  // its number
}

// newLiar registers with an output of the given datatype, and a count of its rows if counts.
func newLiar(t *testing.T, r *rig, datatype string, counts bool) *liar {
	t.Helper()
	hello := wire.HelloMessage{Protocol: wire.Version, Model: "sharing", Version: "1", Batched: new(true), Arena: true,
		Inputs:  []wire.TensorMessage{{Name: "x", Datatype: "UINT8", Shape: []int{-1, -1}}},
		Outputs: []wire.TensorMessage{{Name: "y", Datatype: datatype, Shape: []int{-1}}}}
	if counts {
		hello.Outputs[0].Ragged = "n"
		hello.Outputs = append(hello.Outputs, wire.TensorMessage{Name: "n", Datatype: "INT32", Shape: []int{-1}})
	}
	return newLiarOf(t, r, hello)
}

func newLiarOf(t *testing.T, r *rig, hello wire.HelloMessage) *liar {
	t.Helper()
	p, err := containertest.NewPeer(dial(t, r))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	l := &liar{Peer: p, t: t, in: make(map[int64][]byte)}
	l.send(wire.Hello, hello)
	m := l.receive(wire.Welcome)
	var w wire.WelcomeMessage
	if err := json.Unmarshal(m[1], &w); err != nil || w.Arena == nil {
		t.Fatalf("welcome %s (%v)", m[1], err)
	}
	l.take(*w.Arena)
	return l
}

func (l *liar) send(kind string, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		l.t.Fatal(err)
	}
	if err := l.Send([]byte(kind), text); err != nil {
		l.t.Error(err)
	}
}

// receive waits for a message of a kind, and maps segments offered meanwhile.
func (l *liar) receive(kind string) [][]byte {
	for {
		m, err := l.Receive()
		if err != nil {
			return nil
		}
		if string(m[0]) == wire.Arena {
			var a wire.ArenaMessage
			if err := json.Unmarshal(m[1], &a); err != nil {
				l.t.Errorf("%s: %v", m[1], err)
			}
			l.take(a)
		}
		if string(m[0]) == kind {
			return m
		}
	}
}

// take maps a segment and confirms it. It unmaps nothing.
func (l *liar) take(a wire.ArenaMessage) {
	if a.Unmap != 0 {
		return
	}
	token, _ := hex.DecodeString(a.Token)
	mem, err := arena.Map(a.Path, a.Bytes, token, a.Use == wire.UseOutputs)
	if err != nil {
		l.t.Error(err)
		return
	}
	l.t.Cleanup(func() { arena.Unmap(mem) })
	if l.in[a.Segment] = mem; a.Use == wire.UseOutputs {
		l.out, l.no = mem, a.Segment
	}
	l.send(wire.Arena, wire.ArenaMessage{Segment: a.Segment})
}

// answer sends a result with the JSON of its outputs and their frames.
func (l *liar) answer(batch [][]byte, outputs string, frames ...[]byte) {
	l.answerWith(batch, `{"outputs":[`+outputs+`]}`, frames...)
}

func (l *liar) answerWith(batch [][]byte, header string, frames ...[]byte) {
	m := append([][]byte{[]byte(wire.Result), batch[1], []byte(header)}, frames...)
	if err := l.Send(m...); err != nil {
		l.t.Error(err)
	}
}

// later submits a request of one row, and returns the answer when the container has given it.
func (r *rig) later(t *testing.T) <-chan answered {
	done := make(chan answered, 1)
	in := r.input(t, 1, 1)
	go func() { // ends with the answer
		out, err := r.infer(sharingID, in)
		in.Release()
		done <- answered{out, err}
	}()
	return done
}

type answered struct {
	out []tensor.Tensor
	err error
}

// TestSharingLies: an answer in memory that it may not name fails its own batch, and the next
// answer is right.
func TestSharingLies(t *testing.T) {
	r, _ := newSharedRig(t, containers.Config{})
	l := newLiar(t, r, "UINT8", false)
	r.wait(t, sharingID, 1)
	// After large outputs as bytes the server offers it a segment.
	const size = 64 << 10
	y := fmt.Sprintf(`{"name":"y","datatype":"UINT8","shape":[%d]`, 1)
	first := r.later(t)
	l.answer(l.receive(wire.Batch), y+`}`, make([]byte, size))
	if a := <-first; a.err == nil {
		t.Error("65,536 bytes were taken for one row of one byte")
	}
	good := r.later(t)
	b := l.receive(wire.Batch)
	if l.out == nil {
		t.Fatal("it was offered no segment for outputs")
	}
	end := int64(len(l.out))
	var input int64
	for no := range l.in {
		if no != l.no {
			input = no
		}
	}
	l.out[4160] = 9
	l.answer(b, y+fmt.Sprintf(`,"at":[%d,4160,1]}`, l.no), nil)
	if a := <-good; a.err != nil || a.out[0].Data[0] != 9 {
		t.Fatalf("a right answer: %v", a.err)
	} else {
		l.out[4096] = 1
		a.out[0].Release()
		// The batch may hold it for a moment longer than the request.
		budgettest.Until(t, "the region to be free", func() bool { return l.out[4096] == 0 })
	}
	for _, at := range []string{
		fmt.Sprintf("%d,%d,1", l.no, end), fmt.Sprintf("%d,%d,1", l.no, end+64), fmt.Sprintf("%d,-64,1", l.no),
		fmt.Sprintf("%d,0,1", l.no),
		fmt.Sprintf("%d,4161,1", l.no), fmt.Sprintf("%d,4160,%d", l.no, end), fmt.Sprintf("%d,4160,-1", l.no),
		fmt.Sprintf("%d,4160,0", l.no),
		fmt.Sprintf("%d,9223372036854775744,64", l.no), fmt.Sprintf("%d,4160,9223372036854775807", l.no),
		"99999,4160,1", "-1,4160,1", "0,4160,1",
		fmt.Sprintf("%d,4160,1,%d,4224,1", l.no, l.no), fmt.Sprintf("%d,4160", l.no), fmt.Sprintf("%d,4160,1.5", l.no),
		fmt.Sprintf("%d,4160,2", l.no),
	} {
		asked := r.later(t)
		l.answer(l.receive(wire.Batch), y+`,"at":[`+at+`]}`, nil)
		if a := <-asked; !errors.Is(a.err, scheduler.ErrContainerFailed) {
			t.Errorf("at %s: %v", at, a.err)
		}
	}
	answersWithInputs(t, r, l, y)
	asked := r.later(t)
	l.answer(l.receive(wire.Batch), y+fmt.Sprintf(`,"at":[%d,4160,1]}`, l.no), []byte{1})
	if a := <-asked; !errors.Is(a.err, scheduler.ErrContainerFailed) {
		t.Errorf("memory and a frame: %v", a.err)
	}
	// An answer for which there is no memory frees its regions.
	asked = r.later(t)
	b = l.receive(wire.Batch)
	// The batch before may hold its input for a moment longer than its request.
	budgettest.Until(t, "one input in use", func() bool { return r.pool.InUse() == mib+int64(len(l.out)) })
	free := r.pool.Budget() - r.pool.InUse()
	if err := r.pool.Reserve(free); err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(l.out[4096:], 1)
	l.answer(b, y+fmt.Sprintf(`,"at":[%d,4160,1]}`, l.no), make([]byte, 40000))
	if a := <-asked; !errors.Is(a.err, scheduler.ErrOverloaded) || l.out[4096] != 0 {
		t.Errorf("no memory: %v; the region's word is %d", a.err, l.out[4096])
	}
	r.pool.Unreserve(free)
	// A stray is freed as well, and answers to nothing change nothing.
	binary.LittleEndian.PutUint32(l.out[4096:], 1)
	l.answer([][]byte{nil, make([]byte, 8)}, y+fmt.Sprintf(`,"at":[%d,4160,1]}`, l.no), nil)
	for _, m := range []wire.ArenaMessage{{Segment: 12345}, {Segment: l.no}, {Unmapped: 777}, {Segment: input, Error: "late"}} {
		l.send(wire.Arena, m)
	}
	last := r.later(t)
	l.answer(l.receive(wire.Batch), y+`}`, []byte{5})
	if a := <-last; a.err != nil || a.out[0].Data[0] != 5 {
		t.Errorf("after all that: %v", a.err)
	} else {
		a.out[0].Release()
	}
	if l.out[4096] != 0 {
		t.Error("the region of an answer to no batch was not freed")
	}
}

// answersWithInputs answers from the memory of the inputs, of which it may name those of its batch.
func answersWithInputs(t *testing.T, r *rig, l *liar, y string) {
	t.Helper()
	for _, c := range []struct {
		ahead, size int
		right       bool
	}{{0, 1, true}, {mib - 1, 1, true}, {-1, 1, false}, {mib, 1, false}, {mib - 1, 2, false}, {0, 0, false},
		{1, math.MaxInt, false}, {2 * mib, 1, false}} {
		asked := r.later(t)
		b := l.receive(wire.Batch)
		var h wire.BatchHeader
		if err := h.Parse(b[2]); err != nil || len(h.Inputs[0].At) != 3 {
			t.Fatalf("batch %s: %v", b[2], err)
		}
		at := h.Inputs[0].At
		l.answer(b, y+fmt.Sprintf(`,"at":[%d,%d,%d]}`, at[0], at[1]+c.ahead, c.size), nil)
		a := <-asked
		if c.right {
			if a.err != nil || a.out[0].Data[0] != 1 {
				t.Errorf("%d bytes, %d after the input's first: %v", c.size, c.ahead, a.err)
				continue
			}
			a.out[0].Release()
		} else if !errors.Is(a.err, scheduler.ErrContainerFailed) {
			t.Errorf("%d bytes, %d after the input's first: %v", c.size, c.ahead, a.err)
		}
	}
}

// TestScribbler: a container that writes at random into its region after its answer spoils that
// answer, but nothing that the server interprets.
func TestScribbler(t *testing.T) {
	for name, c := range map[string]struct {
		datatype string
		counts   bool
	}{"strings": {"BYTES", false}, "counts": {"UINT8", true}} {
		t.Run(name, func(t *testing.T) {
			r, _ := newSharedRig(t, containers.Config{})
			l := newLiar(t, r, c.datatype, c.counts)
			r.wait(t, sharingID, 1)
			first := r.later(t)
			if b := l.receive(wire.Batch); c.counts {
				l.answer(b, `{"name":"y","datatype":"UINT8","shape":[40000]},{"name":"n","datatype":"INT32","shape":[1]}`,
					make([]byte, 40000), []byte{0x40, 0x9c, 0, 0})
			} else {
				l.answer(b, `{"name":"y","datatype":"BYTES","shape":[1]}`,
					append([]byte{0x40, 0x9c, 0, 0}, make([]byte, 40000)...))
			}
			if a := <-first; a.err != nil {
				t.Fatal(a.err)
			} else {
				for _, o := range a.out {
					o.Release()
				}
			}
			next := r.later(t)
			b := l.receive(wire.Batch)
			if l.out == nil {
				t.Fatal("it was offered no segment for outputs")
			}
			var stop atomic.Bool
			scribbled := make(chan struct{})
			var outs string
			word := l.out[4160+64:] // the count, or the length of the string
			if c.counts {
				outs = fmt.Sprintf(`{"name":"n","datatype":"INT32","shape":[1],"at":[%d,4224,4]},{"name":"y","datatype":"UINT8","shape":[100],"at":[%d,8256,100]}`,
					l.no, l.no)
			} else {
				outs = fmt.Sprintf(`{"name":"y","datatype":"BYTES","shape":[1],"at":[%d,4224,104]}`, l.no)
			}
			go func() { // ends with stop
				defer close(scribbled)
				random := rand.New(rand.NewPCG(1, 2))
				for !stop.Load() {
					binary.LittleEndian.PutUint32(word, 100)
					binary.LittleEndian.PutUint32(word, random.Uint32()>>random.IntN(32))
				}
			}()
			frames := [][]byte{nil}
			if c.counts {
				frames = append(frames, nil)
			}
			right := 0
			rounds := budgettest.Rounds(1000)
			for range rounds {
				l.answer(b, outs, frames...)
				a := <-next
				switch {
				case a.err == nil:
					right++
					if c.counts {
						if n := binary.LittleEndian.Uint32(a.out[1].Data); n != 100 {
							t.Fatalf("%d values were counted, and 100 answered", n)
						}
					} else if s, err := tensor.BytesElems(a.out[0]); err != nil || len(s[0]) != 100 {
						t.Fatalf("a string of %d bytes, %v", len(s[0]), err)
					}
					for _, o := range a.out {
						o.Release()
					}
				case !errors.Is(a.err, scheduler.ErrContainerFailed):
					t.Fatal(a.err)
				}
				next = r.later(t)
				b = l.receive(wire.Batch)
			}
			stop.Store(true)
			<-scribbled
			l.answer(b, `{"error":"done"}`)
			<-next
			t.Logf("%d of %d answers were right", right, rounds)
		})
	}
}

// TestStoppedReader: while a stopped container may be reading an input, no other request gets its
// memory, although the request is over; the memory counts, is shown, and is freed with the end of
// the session.
func TestStoppedReader(t *testing.T) {
	t.Parallel() // it mostly waits
	r, a := newSharedRig(t, containers.Config{Settings: containers.Settings{Heartbeat: 300 * time.Millisecond}})
	cmd := spawn(t, "sharing", r.Dialable()[0])
	r.shares(t)
	in := r.input(t, 1, 42)
	_, at := a.Find(in.Data)
	r.stopWhileAsked(t, cmd, sharingID, in, 300*time.Millisecond)
	in.Release()
	// A session ends before its memory is released, and is listed for a moment longer.
	serves := func() bool {
		s := r.Sessions()
		return len(s) == 1 && s[0].State != "ended"
	}
	if s, used := r.Sessions(), r.pool.InUse(); serves() && (s[0].Readable != mib || used < mib) {
		t.Errorf("sessions %+v, %d bytes in use", s, used)
	}
	for serves() {
		other := r.input(t, 1, 13)
		_, there := a.Find(other.Data)
		other.Release()
		if there == at && serves() {
			t.Fatal("others get the memory that a stopped container may read")
		}
		time.Sleep(20 * time.Millisecond)
	}
	budgettest.Until(t, "the memory", func() bool { return r.pool.InUse() == 0 })
	// It is killed, as by a supervisor, and replaced: nothing is left of the first container.
	cmd.Process.Kill()
	spawn(t, "sharing", r.Dialable()[0])
	r.shares(t)
}

// TestKilledReader: kill -9 of a container in the midst of batches costs those batches, and its
// memory is free at once.
func TestKilledReader(t *testing.T) {
	r, _ := newSharedRig(t, containers.Config{})
	for range 3 {
		cmd := spawn(t, "sharing", r.Dialable()[0])
		r.shares(t)
		done := make(chan error, 1)
		in := r.input(t, 1, 255) // never answered
		go func() {              // ends with the answer
			_, err := r.infer(sharingID, in)
			in.Release()
			done <- err
		}()
		budgettest.Until(t, "the batch", func() bool { return r.session(t).Readable == mib })
		cmd.Process.Kill()
		if err := <-done; err == nil {
			t.Error("a request that nobody computes was answered")
		}
		budgettest.Until(t, "the session to end", func() bool { return len(r.Sessions()) == 0 })
		budgettest.Until(t, "the memory", func() bool { return r.pool.InUse() == 0 })
	}
}

// TestReplacement: the segment of inputs is replaced, as it is some minutes after a peak, while a
// container works, which unmaps the old one.
func TestReplacement(t *testing.T) {
	t.Parallel() // it mostly waits
	r, a := newSharedRig(t, containers.Config{})
	cmd := spawn(t, "sharing", r.Dialable()[0])
	r.shares(t)
	for round := range 3 {
		peak := r.input(t, 24, 1)
		peak.Release()
		if !tensor.Invariants || round == 0 {
			a.Renew()
		}
		for range 4 {
			if err := r.adds(t, 1, byte(round)); err != nil {
				t.Fatal(err)
			}
		}
		if tensor.Invariants {
			continue // released memory waits, and counts as in use until then
		}
		budgettest.Until(t, "the memory of the peak", func() bool {
			if err := r.adds(t, 2, byte(round)); err != nil {
				t.Fatal(err)
			}
			return a.Resident() < 20*mib && r.session(t).Arena == "inputs, outputs"
		})
	}
	if n := mapped(t, cmd.Process.Pid); n > 3 {
		t.Errorf("the container has %d segments mapped", n)
	}
}

// TestReplacementInWork: a container that always has a batch also unmaps replaced segments, when it
// has answered the earlier batches.
func TestReplacementInWork(t *testing.T) {
	r, a := newSharedRig(t, containers.Config{})
	ctx, end := context.WithCancel(context.Background())
	served := make(chan error, 1)
	entered, leave := make(chan byte), [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	spec := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1}}}
	go func() { // ends with ctx
		served <- container.Serve(ctx, container.Model{
			Name: "sharing", Version: "1", Batched: new(true), Inputs: spec, Outputs: spec, MaxBatch: 1, Concurrency: 2,
			Log: slog.New(slog.DiscardHandler),
			Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
				x := b.Inputs[0]
				if v := x.Data[0]; v > 0 {
					entered <- v
					<-leave[v%2]
				}
				y, err := tensor.New(x.DType, x.Shape, slices.Clone(x.Data))
				for i := range y.Data {
					y.Data[i]++
				}
				return []tensor.Tensor{y}, err
			},
		}, r.Dialable()[0])
	}()
	defer func() {
		end()
		<-served
	}()
	r.wait(t, sharingID, 1)
	budgettest.Until(t, "shared memory", func() bool {
		if err := r.adds(t, 1, 0); err != nil {
			t.Fatal(err)
		}
		return r.session(t).Arena == "inputs, outputs"
	})
	ask := func(v byte) <-chan error { // and waits until it is being computed
		done := make(chan error, 1)
		go func() { done <- r.adds(t, 1, v) }() // ends with the answer
		<-entered
		return done
	}
	last := ask(1)
	a.Renew()
	budgettest.Until(t, "the replacement", func() bool { return r.session(t).Replaced > 0 })
	const requests = 6
	for v := byte(2); v <= requests; v++ {
		next := ask(v)
		leave[(v-1)%2] <- struct{}{}
		if err := <-last; err != nil {
			t.Error(err)
		}
		last = next
	}
	budgettest.Until(t, "the container to unmap", func() bool { return r.session(t).Replaced == 0 })
	leave[requests%2] <- struct{}{}
	if err := <-last; err != nil {
		t.Error(err)
	}
}

// TestHoarder: a container that unmaps nothing is shown with the memory that it holds, gets bytes
// when it has too many segments, and its memory is free after its session.
func TestHoarder(t *testing.T) {
	r, a := newSharedRig(t, containers.Config{})
	l := newLiar(t, r, "UINT8", false)
	r.wait(t, sharingID, 1)
	const answer = `{"name":"y","datatype":"UINT8","shape":[1]}`
	for range 20 {
		asked := r.later(t)
		l.answer(l.receive(wire.Batch), answer, []byte{1})
		if x := <-asked; x.err != nil {
			t.Fatal(x.err)
		} else {
			x.out[0].Release()
		}
		a.Renew()
	}
	if n := len(l.in); n != 8 {
		t.Errorf("it was offered %d segments", n)
	}
	budgettest.Until(t, "the last segment to be retired", func() bool { return r.session(t).Replaced == a.Resident() })
	if i := r.session(t); i.Arena != "" || i.Replaced < 8*mib || i.ReplacedFor <= 0 {
		t.Errorf("it shows as %+v", i)
	}
	if u := a.Usage(); u.Replaced != u.Resident || u.Resident < 8*mib || u.Outputs != 0 {
		t.Errorf("usage %+v", u)
	}
	l.Close()
	budgettest.Until(t, "the memory", func() bool { return a.Resident() == 0 })
}

// TestOutputsShow: segments of outputs count as a whole, in the budget and in the status: a
// replaced one until the container has unmapped it, and all until the session ends.
func TestOutputsShow(t *testing.T) {
	r, a := newSharedRig(t, containers.Config{})
	l := newLiar(t, r, "UINT8", false)
	r.wait(t, sharingID, 1)
	const answer = `{"name":"y","datatype":"UINT8","shape":[1]}`
	segments := func(size int) { // it answers with that many bytes, so that it gets another segment
		before := l.no
		asked := r.later(t)
		l.answer(l.receive(wire.Batch), answer, make([]byte, size))
		if x := <-asked; x.err == nil {
			t.Error("its answer has another size than it says")
		}
		asked = r.later(t) // the offer arrives before the next batch
		l.answer(l.receive(wire.Batch), answer, []byte{1})
		if x := <-asked; x.err != nil {
			t.Fatal(x.err)
		} else {
			x.out[0].Release()
		}
		if l.no == before {
			t.Fatal("it was offered no segment for outputs")
		}
	}
	segments(mib)
	first := int64(len(l.out))
	number := l.no
	if i, u := r.session(t), a.Usage(); i.Outputs != first || i.Replaced != 0 || u.Outputs != first ||
		r.pool.InUse() < first {
		t.Errorf("session %+v, usage %+v, %d bytes in use; the segment has %d", i, u, r.pool.InUse(), first)
	}
	segments(3 * mib)
	both := first + int64(len(l.out))
	if i, u := r.session(t), a.Usage(); i.Outputs != both || i.Replaced != first || i.ReplacedFor <= 0 ||
		u.Outputs != both {
		t.Errorf("session %+v, usage %+v; the segments have %d and %d", i, u, first, len(l.out))
	}
	l.send(wire.Arena, wire.ArenaMessage{Unmapped: number})
	budgettest.Until(t, "the first segment", func() bool {
		i := r.session(t)
		return i.Replaced == 0 && i.Outputs == int64(len(l.out)) && a.Usage().Outputs == i.Outputs
	})
	l.Close()
	budgettest.Until(t, "the memory", func() bool { return a.Usage().Outputs == 0 && r.pool.InUse() == 0 })
}

// mapped counts the segments that a process maps.
func mapped(t *testing.T, pid int) int {
	t.Helper()
	return strings.Count(maps(t, pid), "shivad-arena")
}

// maps lists the memory of a process.
func maps(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestKilledServer: after kill -9 of the server its container maps nothing of it, and no name is
// left behind.
func TestKilledServer(t *testing.T) {
	addr := "ipc://" + t.TempDir() + "/s"
	server := exec.Command(os.Args[0])
	server.Env = append(os.Environ(), childEnv+"=sharing server", benchAddrEnv+"="+addr)
	server.Stderr = os.Stderr
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	cmd := spawn(t, "sharing", addr)
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "inputs, outputs"; {
	}
	if mapped(t, cmd.Process.Pid) == 0 {
		t.Error("the container maps nothing")
	}
	for _, pid := range []int{server.Process.Pid, cmd.Process.Pid} {
		for line := range strings.Lines(maps(t, pid)) {
			// Other processes have files in /dev/shm, so it is not enough to count them.
			if f := strings.Fields(line); f[1][3] == 's' && !strings.HasSuffix(line, "(deleted)\n") {
				t.Errorf("process %d shares memory that has a name: %s", pid, line)
			}
		}
	}
	server.Process.Kill()
	server.Wait()
	budgettest.Until(t, "the container to unmap", func() bool { return mapped(t, cmd.Process.Pid) == 0 })
}

// TestSharingPlaces: tensors described as shared lie there and nowhere else: an input is where the
// batch says, with an empty frame, even a very large one, and an answer is the memory that the
// container has written.
func TestSharingPlaces(t *testing.T) {
	r, a := newSharedRig(t, containers.Config{})
	l := newLiar(t, r, "UINT8", false)
	budgettest.Until(t, "the segment of inputs to be mapped", func() bool { return r.session(t).Arena == "inputs" })
	// The segment for outputs is offered after the first answer.
	for i, size := range []int{mib, mib, 70 * mib} {
		in := r.input(t, size/mib, byte(40+i))
		in.Shape = tensor.Shape{1, size}
		segment, offset := a.Find(in.Data)
		done := make(chan answered, 1)
		go func() { // ends with the answer
			out, err := r.infer(sharingID, in)
			done <- answered{out, err}
		}()
		b := l.receive(wire.Batch)
		var head struct{ Inputs []struct{ At []int64 } }
		if err := json.Unmarshal(b[2], &head); err != nil || len(head.Inputs) != 1 {
			t.Fatalf("%s: %v", b[2], err)
		}
		if at := head.Inputs[0].At; !slices.Equal(at, []int64{segment.Number, offset, int64(size)}) || len(b[3]) > 0 {
			t.Fatalf("the input is at %v with a frame of %d bytes; it lies in segment %d at %d", at, len(b[3]),
				segment.Number, offset)
		}
		if got := l.in[segment.Number][offset:][:size]; !bytes.Equal(got, in.Data) {
			t.Errorf("the container reads % x..., expected % x", got[:8], in.Data[:8])
		}
		if i == 0 {
			l.answer(b, `{"name":"y","datatype":"UINT8","shape":[1]}`, make([]byte, 40000))
			<-done
			in.Release()
			continue
		}
		copy(l.out[4160:], "before")
		l.answer(b, fmt.Sprintf(`{"name":"y","datatype":"UINT8","shape":[1],"at":[%d,4160,1]}`, l.no), nil)
		x := <-done
		in.Release()
		if x.err != nil {
			t.Fatal(x.err)
		}
		if l.out[4160] = 'a'; x.out[0].Data[0] != 'a' {
			t.Error("the answer is a copy")
		}
		x.out[0].Release()
	}
}
