package containers_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// slowly joins a container of one request at a time that reads and answers only on demand. Its
// requests are twice the capacity of the pipe.
func (r *rig) slowly(t *testing.T, slots int) (p *containertest.Peer, ask func() error, answer func()) {
	t.Helper()
	const row = 1 << 17 // floats
	spec := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{row}}}
	p = r.peer(t)
	if err := p.Send([]byte("hello"),
		containertest.Hello(containertest.Model{Name: "echo", Version: "1", Inputs: spec, Outputs: spec,
			Slots: slots})); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	x, err := tensor.FromSlice(tensor.Shape{1, row}, make([]float32, row))
	if err != nil {
		t.Fatal(err)
	}
	ask = func() error {
		out, err := r.infer(echoID, x)
		for _, o := range out {
			o.Release()
		}
		return err
	}
	answer = func() {
		for {
			f, err := p.Receive()
			if err != nil {
				t.Fatal(err)
			}
			if string(f[0]) == "batch" {
				time.Sleep(100 * time.Microsecond)
				if err := p.Send([]byte("result"), f[1],
					fmt.Appendf(nil, `{"outputs":[{"name":"x","datatype":"FP32","shape":[%d]}]}`, row),
					f[3]); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
	}
	return p, ask, answer
}

// TestSlowReader: a container that reads before the write timeout ends is slow and not stuck,
// however many heartbeats became due meanwhile.
func TestSlowReader(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.Close()
		const heartbeat = 100 * time.Millisecond
		var err error
		r.Listener, err = containers.Listen(containers.Config{Scheduler: r.sched, Pool: r.pool,
			Settings: containers.Settings{Heartbeat: heartbeat}, Log: slog.New(slog.NewTextHandler(r.log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		p, ask, answer := r.slowly(t, 0)
		var wg sync.WaitGroup
		wg.Go(func() { err = ask() })
		for range 9 * time.Second / heartbeat { // it sends heartbeats and does not read
			if err := p.Send([]byte("heartbeat")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(heartbeat)
		}
		answer()
		wg.Wait()
		if err != nil {
			t.Error(err)
		}
	})
}

// TestAllSlots: a container may have as many batches in flight as it declared, at most 64, before
// it has read one of them, and a PONG in addition.
func TestAllSlots(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		const slots = 64
		p, ask, answer := r.slowly(t, slots)
		go func() {
			for p.Send([]byte("heartbeat")) == nil {
				time.Sleep(time.Second)
			}
		}()
		var wg sync.WaitGroup
		asked := func(n int) {
			for range n {
				wg.Go(func() {
					if err := ask(); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
		}
		for range 5 { // so that its profile is fast and all batches are sent at once
			asked(1)
			answer()
			wg.Wait()
		}
		asked(1)
		if _, err := p.Raw().Write([]byte("\x04\x07\x04PING\x00\x00")); err != nil {
			t.Fatal(err)
		}
		asked(slots - 1)
		if s := r.Sessions(); len(s) != 1 || s[0].InFlight != slots {
			t.Fatalf("%+v", s)
		}
		for range slots {
			answer()
		}
		wg.Wait()
		p.Close()
		time.Sleep(time.Second)
	})
}

// TestCrawl: a peer that begins a message and does not complete it cannot hold its memory for
// long, even where silence is allowed: a container that computes, or one of v1. A byte now and
// then does not help.
func TestCrawl(t *testing.T) {
	for _, pause := range []time.Duration{time.Second, time.Hour} {
		bubble(t, func(t *testing.T, r *rig) {
			mine, theirs := containertest.Pipe()
			if err := r.Add(theirs); err != nil {
				t.Fatal(err)
			}
			defer mine.Close()
			const ready = "\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
			v1 := []byte("\x01\x00\x01\x05crawl\x01\x011\x00\x012")
			// ZMTP 3.0 has no PING.
			if _, err := mine.Write(bytes.Join([][]byte{zmtpGreeting(), {4, byte(len(ready))}, []byte(ready), v1},
				nil)); err != nil {
				t.Fatal(err)
			}
			go io.Copy(io.Discard, mine)
			time.Sleep(time.Hour)
			if r.live(scheduler.ModelID{Name: "crawl", Version: "1"}) != 1 {
				t.Fatal("an idle container was given up")
			}
			if _, err := mine.Write(append(frameHeader(1, 64<<20), make([]byte, 64<<10)...)); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			for len(r.Sessions()) > 0 && time.Since(began) < 10*time.Minute {
				if time.Since(began)%pause == 0 {
					mine.Write([]byte{0})
				}
				time.Sleep(time.Second)
			}
			synctest.Wait()
			if len(r.Sessions()) != 0 || r.pool.InUse() != 0 {
				t.Errorf("still there after %v, with %d bytes", time.Since(began), r.pool.InUse())
			}
			r.logs(t, "container gone", "model=crawl/1", "is too slow")
		})
	}
}
