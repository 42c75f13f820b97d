package containers_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/containers/internal/arena"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// newSharedRig makes a rig whose pool lies in an arena.
func newSharedRig(t testing.TB, cfg containers.Config) (*rig, *arena.Arena) {
	t.Helper()
	var l atomic.Pointer[containers.Listener]
	a := arena.New(256*mib, func(err error) { t.Error(err) })
	a.OnRetire(func(s *arena.Segment) {
		if l := l.Load(); l != nil {
			l.RetireSegment(s)
		}
	})
	cfg.Arena, cfg.Pool = a, tensor.NewPoolFrom(a, 256*mib)
	if cfg.Addrs == nil {
		cfg.Addrs = []string{"ipc://" + t.TempDir() + "/s"}
	}
	t.Cleanup(func() { // after the rig's, which closes the sessions
		a.Renew()
		if n := a.Resident(); n != 0 && !tensor.Invariants {
			t.Errorf("%d bytes of the arena left", n)
		}
	})
	if s := a.Current(); s != nil { // its descriptor exists before the rig counts them
		s.Release()
	}
	r := newRig(t, cfg)
	l.Store(r.Listener)
	return r, a
}

// input returns a tensor of the pool of rows of 1 MiB, all bytes of which are v.
func (r *rig) input(t testing.TB, rows int, v byte) tensor.Tensor {
	t.Helper()
	buf, err := r.pool.Get(rows * mib)
	if err != nil {
		t.Fatal(err)
	}
	data := buf.Bytes()
	data[0] = v
	for n := 1; n < len(data); n *= 2 {
		copy(data[n:], data[:n])
	}
	return tensor.Tensor{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{rows, mib}, Data: data, Buf: buf}
}

// adds asks the container to add one to rows of a value.
func (r *rig) adds(t testing.TB, rows int, v byte) error {
	t.Helper()
	in := r.input(t, rows, v)
	defer in.Release()
	out, err := r.infer(sharingID, in)
	if err != nil {
		return err
	}
	defer out[0].Release()
	if data := out[0].Data; len(data) != rows*mib || bytes.Count(data, []byte{v + 1}) != len(data) {
		return fmt.Errorf("answered % x… of %d bytes", out[0].Data[:8], len(out[0].Data))
	}
	return nil
}

func (r *rig) session(t testing.TB) containers.SessionInfo {
	t.Helper()
	all := r.Sessions()
	if len(all) != 1 {
		t.Fatalf("%d sessions", len(all))
	}
	return all[0]
}

// shares waits until tensors go by shared memory in both directions.
func (r *rig) shares(t testing.TB) {
	t.Helper()
	r.wait(t, sharingID, 1)
	budgettest.Until(t, "shared memory", func() bool {
		if err := r.adds(t, 1, 1); err != nil {
			t.Fatal(err)
		}
		return r.session(t).Arena == "inputs, outputs"
	})
}

// TestSharing: a container in another process receives and sends tensors by shared memory, whatever
// its connection.
func TestSharing(t *testing.T) {
	secure := trusted(t)
	for _, addr := range []string{"ipc://" + t.TempDir() + "/s", "tcp://127.0.0.1:0", "tls://127.0.0.1:0"} {
		t.Run(addr[:3], func(t *testing.T) {
			r, a := newSharedRig(t, containers.Config{Addrs: []string{addr}, Secure: secure})
			spawn(t, "sharing", r.Dialable()[0])
			r.shares(t)
			for i := range budgettest.Rounds(100) {
				if err := r.adds(t, 1+i%3, byte(i)); err != nil {
					t.Fatal(err)
				}
			}
			in := r.input(t, 1, 7)
			out, err := r.infer(sharingID, in)
			if err != nil {
				t.Fatal(err)
			}
			if s, _ := a.Find(out[0].Data); s != nil || out[0].Buf.Size() != mib {
				t.Errorf("the answer has %d bytes, in the inputs: %v", out[0].Buf.Size(), s != nil)
			}
			in.Release()
			out[0].Release()
		})
	}
}

// TestPassedOn: an output that is an input, or a part of one, is not copied, and no other request
// gets its memory until the answer is released.
func TestPassedOn(t *testing.T) {
	r, _ := newSharedRig(t, containers.Config{})
	x := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, mib}}}
	outputs := append([]tensor.Spec{{Name: "half", DType: tensor.Uint8, Shape: tensor.Shape{-1, mib / 2}}}, x...)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { // ends with ctx
		served <- container.Serve(ctx, container.Model{
			Name: "sharing", Version: "1", Batched: new(true), Inputs: x, Outputs: outputs,
			Log: slog.New(slog.DiscardHandler),
			Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
				half := tensor.Tensor{Name: "half", DType: tensor.Uint8, Shape: tensor.Shape{1, mib / 2},
					Data: b.Inputs[0].Data[mib/2:]}
				return []tensor.Tensor{half, b.Inputs[0]}, nil
			},
		}, r.Dialable()[0])
	}()
	r.wait(t, sharingID, 1)
	passed := func() bool {
		in := r.input(t, 1, 1)
		in.Data[mib/2] = 2
		out, err := r.infer(sharingID, in)
		if err != nil {
			t.Fatal(err)
		}
		same := &out[1].Data[0] == &in.Data[0] && &out[0].Data[0] == &in.Data[mib/2]
		in.Release()
		other := r.input(t, 1, 9)
		if out[0].Data[0] != 2 || out[1].Data[0] != 1 || len(out[0].Data) != mib/2 || len(out[1].Data) != mib {
			t.Errorf("answered %d and %d", out[0].Data[0], out[1].Data[0])
		}
		other.Release()
		out[0].Release()
		out[1].Release()
		return same
	}
	budgettest.Until(t, "shared memory", passed)
	for range 10 {
		if !passed() {
			t.Error("an input was copied on its way through the container")
		}
	}
	stop()
	<-served
}

// TestSharingOff: with the setting the same container gets bytes.
func TestSharingOff(t *testing.T) {
	r, _ := newSharedRig(t, containers.Config{Settings: containers.Settings{Bytes: true}})
	spawn(t, "sharing", r.Dialable()[0])
	r.wait(t, sharingID, 1)
	for i := range 10 {
		if err := r.adds(t, 2, byte(i)); err != nil {
			t.Fatal(err)
		}
	}
	if i := r.session(t); i.Arena != "" || i.Readable != 0 {
		t.Errorf("it goes by shared memory: %q, %d bytes", i.Arena, i.Readable)
	}
}

// TestGathered: the rows of several requests in one batch, each in another place, arrive in order
// and return to their requests.
func TestGathered(t *testing.T) {
	r, _ := newSharedRig(t, containers.Config{})
	spawn(t, "sharing", r.Dialable()[0])
	r.shares(t)
	if err := r.sched.Configure(sharingID.Name,
		scheduler.ModelConfig{Strategy: "static", MaxBatch: 8, Delay: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	const requests = 16
	before := r.session(t)
	done := make(chan error, requests)
	for i := range requests {
		go func() { done <- r.adds(t, 1+i%2, byte(i)) }() // ends with the answer
	}
	for range requests {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	after := r.session(t)
	if batches := after.Batches - before.Batches; batches >= requests {
		t.Errorf("%d requests had %d batches", requests, batches)
	}
}

// TestInputsReadOnly: a Predict that writes to its inputs fails with a remedy, and with
// WritableInputs it may write.
func TestInputsReadOnly(t *testing.T) {
	for _, writable := range []bool{false, true} {
		r, _ := newSharedRig(t, containers.Config{})
		spec := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1}}}
		ctx, stop := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() { // ends with ctx
			served <- container.Serve(ctx, container.Model{
				Name: "sharing", Version: "1", Batched: new(true), Inputs: spec, Outputs: spec,
				WritableInputs: writable, Log: slog.New(slog.DiscardHandler),
				Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
					for i := range b.Inputs[0].Data {
						b.Inputs[0].Data[i]++
					}
					return b.Inputs, nil
				},
			}, r.Dialable()[0])
		}()
		r.wait(t, sharingID, 1)
		var err error
		budgettest.Until(t, "shared memory", func() bool { // the first ones may be bytes
			err = r.adds(t, 1, 3)
			return err != nil || writable && r.session(t).Arena == "inputs, outputs"
		})
		if writable && err != nil {
			t.Errorf("writable inputs: %v", err)
		}
		if !writable && !strings.Contains(err.Error(), "set Model.WritableInputs") {
			t.Errorf("it wrote to an input: %v", err)
		}
		stop()
		<-served
	}
}
