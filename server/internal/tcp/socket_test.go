package tcp

import (
	"bytes"
	"context"
	"io"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// On a Unix socket the kernel tells a client that has closed from one that waits for its answers:
// its requests leave the queue, even if a byte was sent ahead before it closed and nothing else is
// to be written.
func TestGoneFromAUnixSocket(t *testing.T) {
	r := newUnixRig(t, func(c *Config) { c.CancelOnClose = true })
	batches := make(chan *scheduler.Batch, 100)
	replica := r.model("m", floats("x"), func(b *scheduler.Batch) error { batches <- b; return nil })
	waiting := func() int { return replica.Model().Stats().QueueRows }
	other, asked := r.fillReplica(batches, waiting)
	c := r.dial()
	c.send(message("m", "", 1, 2, 3, 4))
	c.endDirection()
	budgettest.Until(t, "the end to be seen, and a byte to be sent ahead", func() (seen bool) {
		onlySession(r, func(s *session) { seen = seen || s.probed })
		return seen && waiting() == 2
	})
	c.Close()
	budgettest.Until(t, "its request to leave", func() bool { return waiting() == 1 })
	budgettest.Until(t, "its place", func() bool { return r.open() == 1 })
	for range asked {
		if err := r.Echo(<-batches); err != nil {
			t.Fatal(err)
		}
		values(t, other.next())
	}
}

// A client that never stops sending is closed when the server stops.
func TestFloodAtShutdown(t *testing.T) {
	onTransports(t, func(t *testing.T, newSocketRig func(testing.TB, func(*Config)) *rig) {
		r := newSocketRig(t, nil)
		r.model("m", floats("x"), r.Echo)
		c := r.dial()
		ask, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			go func() { _, _ = io.Copy(io.Discard, c) }() // until the end of the connection
			for {
				if _, err := c.Write(ask); err != nil {
					return
				}
				if !budgettest.Whole() {
					time.Sleep(time.Millisecond) // never quiet, but without taking a whole processor
				}
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := r.close(ctx); err != nil {
			t.Error(err)
		}
		<-ended
	})
}

// While a loop is in a turn, few of the clients that send have a buffer.
func TestManyWaitForATurn(t *testing.T) {
	for name, newSocketRig := range transports { // one by one: memory is measured for the process
		if name == "tcp" {
			continue // gnet's loops read in turns
		}
		t.Run(name, func(t *testing.T) {
			r := newSocketRig(t, nil)
			r.model("m", floats("x"), r.Echo)
			ask, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
			if err != nil {
				t.Fatal(err)
			}
			loops, all := r.loops(), make([]*wire, 64)
			for i := range all {
				all[i] = r.dial()
				all[i].bytes(ask)
				values(t, all[i].next())
			}
			before := inUse()
			for _, l := range loops {
				l.turns.Lock()
			}
			for _, c := range all {
				c.bytes(ask)
			}
			stacks := make([]byte, 1<<20)
			budgettest.Until(t, "all to wait", func() bool {
				return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("(*socket).read(")) == len(all)
			})
			if n := inUse() - before; n > 2<<20 {
				t.Errorf("%d KiB are in use", n>>10)
			}
			for _, l := range loops {
				l.turns.Unlock()
			}
			for _, c := range all {
				values(t, c.next())
			}
		})
	}
}

// The kernel closes descriptors that a client sends along, and the client still gets its answers.
func TestDescriptorsFromAClient(t *testing.T) {
	r := newUnixRig(t, nil)
	r.model("m", floats("x"), r.Echo)
	c := r.dial()
	ask, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	for _, piece := range [][]byte{ask[:20], ask[20:]} {
		if _, _, err := c.client.(*net.UnixConn).WriteMsgUnix(piece, syscall.UnixRights(0, 1), nil); err != nil {
			t.Fatal(err)
		}
	}
	values(t, c.next())
}

// A request over a socket allocates little in addition to the test's model.
func TestAllocationsOnSockets(t *testing.T) {
	for name, newSocketRig := range transports { // one by one: allocations are counted for the process
		t.Run(name, func(t *testing.T) {
			r := newSocketRig(t, nil)
			r.model("m", floats("x"), r.Echo)
			c := r.dial()
			ask, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
			if err != nil {
				t.Fatal(err)
			}
			c.bytes(ask)
			answer, err := shiva.AppendMessage(nil, c.next())
			if err != nil {
				t.Fatal(err)
			}
			in := make([]byte, len(answer))
			// The echo makes 4; TLS adds some for each record, here and at the client.
			most, encrypted := 6.0, 4.0
			if budgettest.Race || tensor.Invariants {
				// Buffers are not reused, and pools drop some at random: 15 and 24 are usual.
				most, encrypted = 20, 12
			}
			if r.tls != nil {
				most += encrypted
			}
			const asked = 300
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if n := testing.AllocsPerRun(asked, func() {
				c.bytes(ask)
				if _, err := io.ReadFull(c, in); err != nil {
					t.Fatal(err)
				}
			}); n > most {
				t.Errorf("%v allocations for a request", n)
			}
			runtime.ReadMemStats(&after)
			if n := (after.TotalAlloc - before.TotalAlloc) / asked; n > 16<<10 && !budgettest.Race { // in which pools drop buffers
				t.Errorf("%d bytes allocated for a request: a buffer for what it reads has 64 KiB", n)
			}
		})
	}
}

// BenchmarkIdle measures the memory of an idle connection, the server's side and the client's.
func BenchmarkIdle(b *testing.B) {
	for name, newSocketRig := range map[string]func(testing.TB, func(*Config)) *rig{"tcp": newSocketRig,
		"unix": newUnixRig} {
		b.Run(name, func(b *testing.B) {
			const n = 500
			r := newSocketRig(b, nil)
			r.model("m", floats("x"), r.Echo)
			used := func() uint64 {
				var m runtime.MemStats
				for range 4 { // stacks shrink by half at a time
					runtime.GC()
				}
				runtime.ReadMemStats(&m)
				return m.HeapAlloc + m.StackInuse
			}
			before := used()
			for range n {
				c := r.dial()
				c.send(message("m", "", 1, 2, 3, 4))
				c.next().Release()
				c.d, c.rest = nil, nil
			}
			b.ReportMetric(float64(used()-before)/n, "bytes/connection")
		})
	}
}
