package containers_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/hosttest"
	"github.com/shivad/shivad/shiva/tensor"
)

var oldID = scheduler.ModelID{Name: "old", Version: "1"}

// An oldContainer listens as the containers of RPC v0 do, and serves one connection at a time.
type oldContainer struct {
	ear   net.Listener
	conns chan net.Conn
}

func newOld(t testing.TB) *oldContainer {
	t.Helper()
	ear, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := &oldContainer{ear, make(chan net.Conn)}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := ear.Accept()
			if err != nil {
				close(o.conns)
				return
			}
			o.conns <- c
		}
	})
	t.Cleanup(func() {
		ear.Close()
		for c := range o.conns {
			c.Close()
		}
		accepting.Wait()
	})
	return o
}

// call makes r connect to the container, and returns the connection.
func (o *oldContainer) call(t testing.TB, r *rig) (*containers.Dialer, net.Conn) {
	t.Helper()
	d, err := containers.Dial(containers.DialConfig{
		Name: "old", Addr: o.ear.Addr().String(), Model: oldID, Input: tensor.Float64,
		Scheduler: r.sched, Pool: r.pool, WriteTimeout: 200 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(r.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	c := <-o.conns
	t.Cleanup(func() { c.Close() })
	r.wait(t, oldID, 1)
	return d, c
}

// question reads a request of rows of one length.
func question(c net.Conn) (rows [][]float64, err error) {
	var head [9]byte
	if _, err := io.ReadFull(c, head[:5]); err != nil {
		return nil, err
	}
	if head[0] == 0 {
		return nil, nil
	}
	if _, err := io.ReadFull(c, head[5:]); err != nil {
		return nil, err
	}
	if head[0] != 2 {
		return nil, errors.New("expected float64 of one length")
	}
	n, each := binary.LittleEndian.Uint32(head[1:]), binary.LittleEndian.Uint32(head[5:])
	for range n {
		row := make([]float64, each)
		if err := binary.Read(c, binary.LittleEndian, row); err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// sums answers requests until goodbye or an error.
func sums(c net.Conn) {
	for {
		rows, err := question(c)
		if err != nil {
			return
		}
		if rows == nil {
			c.Write([]byte{0xd2, 4, 0, 0})
			c.Close()
			return
		}
		var out []byte
		for _, row := range rows {
			sum := 0.0
			for _, v := range row {
				sum += v
			}
			out = binary.LittleEndian.AppendUint64(out, math.Float64bits(sum))
		}
		c.Write(out)
	}
}

func (r *rig) sum(v ...float64) (float64, error) {
	in, err := tensor.FromSlice(tensor.Shape{1, len(v)}, v)
	if err != nil {
		return 0, err
	}
	out, err := r.infer(oldID, in)
	if err != nil {
		return 0, err
	}
	defer out[0].Release()
	got, err := tensor.Values[float64](out[0])
	if err != nil {
		return 0, err
	}
	return got[0], nil
}

// TestDial: a container of RPC v0 serves many requests at once, is reconnected after a loss, and
// is sent goodbye.
func TestDial(t *testing.T) {
	t.Parallel() // it mostly waits
	r := newRig(t, containers.Config{})
	o := newOld(t)
	d, c := o.call(t, r)
	go sums(c)
	ask := func() {
		var asking sync.WaitGroup
		for i := range 200 {
			asking.Go(func() {
				if got, err := r.sum(float64(i), 0.5); err != nil || got != float64(i)+0.5 {
					t.Errorf("%d: %v, %v", i, got, err)
				}
			})
		}
		asking.Wait()
	}
	ask()
	if i := d.Session(); i.State != "serving" || i.RPC != "v0" || i.Rows != 200 || i.Failures != 0 {
		t.Errorf("%+v", i)
	}
	c.Close()
	r.logs(t, "container gone", "model=old/1", "it closed the connection")
	c = <-o.conns
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		sums(c)
	}()
	r.wait(t, oldID, 1)
	ask()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := d.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	<-ended
	r.logs(t, "container gone", "dismissed")
}

// TestDialHostile: a misbehaving container of RPC v0 costs only its connection or its batch.
func TestDialHostile(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, tt := range []struct {
		name   string
		do     func(c net.Conn, answered <-chan struct{})
		reason string
	}{
		{"speaks unasked", func(c net.Conn, _ <-chan struct{}) { c.Write([]byte("hello")) }, "without a batch to answer"},
		{"answers half", func(c net.Conn, _ <-chan struct{}) { question(c); c.Write([]byte{1, 2, 3}); c.Close() }, "ended early"},
		{"answers twice", func(c net.Conn, answered <-chan struct{}) {
			question(c)
			c.Write(make([]byte, 8))
			<-answered // the second answer is no part of the first
			c.Write(make([]byte, 8))
		}, "without a batch to answer"},
		{"answers a row too many", func(c net.Conn, _ <-chan struct{}) { question(c); c.Write(make([]byte, 16)) }, "1 rows has more than 8 bytes"},
		{"dies on a batch", func(c net.Conn, _ <-chan struct{}) { question(c); c.Close() }, "it closed the connection"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, containers.Config{})
			o := newOld(t)
			_, c := o.call(t, r)
			answered := make(chan struct{})
			go tt.do(c, answered)
			if tt.name == "speaks unasked" {
				r.logs(t, "container gone", tt.reason)
				return
			}
			if _, err := r.sum(1, 2); err != nil && !errors.Is(err, scheduler.ErrContainerLost) &&
				!errors.Is(err, scheduler.ErrUnavailable) {
				t.Errorf("got %v", err)
			}
			close(answered)
			r.logs(t, "container gone", tt.reason)
		})
	}
	t.Run("answers several rows with one too many", func(t *testing.T) {
		r := newRig(t, containers.Config{})
		_, c := newOld(t).call(t, r)
		go func() {
			for { // until a batch has several rows
				rows, err := question(c)
				if err != nil {
					return
				}
				c.Write(make([]byte, 8*(len(rows)+min(1, len(rows)/2))))
			}
		}()
		in, err := tensor.FromSlice(tensor.Shape{64, 1}, make([]float64, 64))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.infer(oldID, in); !errors.Is(err, scheduler.ErrContainerLost) &&
			!errors.Is(err, scheduler.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		r.logs(t, "container gone", "rows has more than")
	})
	t.Run("does not read", func(t *testing.T) {
		r := newRig(t, containers.Config{})
		newOld(t).call(t, r)
		big := make([]float64, 4<<20)
		if _, err := r.sum(big...); !errors.Is(err, scheduler.ErrContainerLost) &&
			!errors.Is(err, scheduler.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		r.logs(t, "container gone", "does not read a batch")
	})
	t.Run("stays away, and close does not wait", func(t *testing.T) {
		nobody := hosttest.Refusing(t)
		r := newRig(t, containers.Config{})
		d, err := containers.Dial(containers.DialConfig{Name: "old", Addr: nobody, Model: oldID, Input: tensor.Float64,
			Scheduler: r.sched, Log: slog.New(slog.NewTextHandler(r.log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		r.logs(t, "cannot connect to the container", "refused")
		if i := d.Session(); i.State != "calling" || !strings.Contains(i.Reason, "refused") {
			t.Errorf("%+v", i)
		}
		d.Close()
	})
}

// TestDialPanic: a panic of a request's owner affects no other request.
func TestDialPanic(t *testing.T) {
	t.Parallel() // it mostly waits
	for name, do := range map[string]func(c net.Conn){"answer": sums,
		"end": func(c net.Conn) { question(c); c.Close() }} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, containers.Config{})
			o := newOld(t)
			_, c := o.call(t, r)
			go do(c)
			m, _ := r.sched.Model(oldID)
			x, err := tensor.FromSlice(tensor.Shape{1, 2}, []float64{1, 2})
			if err != nil {
				t.Fatal(err)
			}
			done := make(panicking)
			r.sched.Submit(&scheduler.Request{Model: m, Rows: 1, Inputs: []tensor.Tensor{x}, Owner: done})
			<-done
			r.logs(t, "panic in the callback of a request", "an owner's bug")
			if name == "end" {
				r.logs(t, "container gone")
				r.wait(t, oldID, 1) // it is reconnected
			} else if got, err := r.sum(3, 4); err != nil || got != 7 {
				t.Errorf("the container that answered serves no more: %v, %v", got, err)
			}
		})
	}
}

// TestDialStuck: the status of a container that accepts connections and answers on none gives a
// remedy, until it answers.
func TestDialStuck(t *testing.T) {
	t.Parallel() // it mostly waits
	r := newRig(t, containers.Config{Addrs: []string{"tcp://127.0.0.1:0"}})
	if err := r.sched.Configure("old",
		scheduler.ModelConfig{Objective: 10 * time.Millisecond, ExecTimeout: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	o := newOld(t)
	d, _ := o.call(t, r)
	if _, err := r.sum(1, 2); err == nil {
		t.Error("it answered")
	}
	next := <-o.conns // reconnected
	defer next.Close()
	budgettest.Until(t, "the reason", func() bool { return strings.Contains(d.Session().Reason, "restart the container") })
	// From now on executions may take longer.
	if err := r.sched.Configure("old", scheduler.ModelConfig{Objective: 10 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { sums(next) })
	defer serving.Wait()
	defer next.Close()
	r.wait(t, oldID, 1)
	if v, err := r.sum(1, 2); err != nil || v != 3 {
		t.Errorf("got %v, %v", v, err)
	}
	if reason := d.Session().Reason; reason != "" {
		t.Errorf("it has answered, and the status says %q", reason)
	}
}

// TestDialFaults: all faults are reported at once.
func TestDialFaults(t *testing.T) {
	_, err := containers.Dial(containers.DialConfig{Addr: "udp://x:1", Input: tensor.Float32})
	for _, want := range []string{"udp", "model is empty", "float32", "no scheduler"} {
		if err == nil || !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

// TestShutdownTwice: goodbye is sent once.
func TestShutdownTwice(t *testing.T) {
	r := newRig(t, containers.Config{})
	d, c := newOld(t).call(t, r)
	r.logs(t, "container connected")
	var parting sync.WaitGroup
	for range 2 {
		parting.Go(func() {
			if err := d.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	goodbye := make([]byte, 10)
	if _, err := io.ReadFull(c, goodbye[:5]); err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, _ := c.Read(goodbye[5:]); n > 0 {
		t.Errorf("% x after goodbye", goodbye[5:5+n])
	}
	c.Write([]byte{0xd2, 4, 0, 0})
	parting.Wait()
}
