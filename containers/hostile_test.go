package containers_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// hello is a valid registration, the first message of hostile peers.
func hello(name string) []byte {
	m := echo(nil)
	m.Name = name
	return containertest.Hello(m)
}

// registered returns a peer over TCP that has registered a model of its own.
func registered(t testing.TB, r *rig, name string) *containertest.Peer {
	t.Helper()
	p, err := containertest.NewPeer(dial(t, r))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Send([]byte("hello"), hello(name)); err != nil {
		t.Fatal(err)
	}
	if f, err := p.Receive(); err != nil || string(f[0]) != "welcome" {
		t.Fatalf("%q, %v", f, err)
	}
	return p
}

func zmtpGreeting() []byte {
	g := make([]byte, 64)
	g[0], g[9], g[10] = 0xff, 0x7f, 3
	copy(g[12:], "NULL")
	return g
}

// frameHeader returns a raw frame header with the long flag.
func frameHeader(flags byte, size uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | 2}, size)
}

// TestHostilePeers connects each of them over a real socket while another container serves. Only
// its own session may suffer, and its end is logged with a reason.
func TestHostilePeers(t *testing.T) {
	write := func(b ...[]byte) func(t *testing.T, r *rig, c net.Conn) {
		return func(t *testing.T, r *rig, c net.Conn) { c.Write(bytes.Join(b, nil)) }
	}
	after := func(name string, do func(p *containertest.Peer)) func(t *testing.T, r *rig, c net.Conn) {
		return func(t *testing.T, r *rig, c net.Conn) {
			c.Close()
			p := registered(t, r, name)
			defer p.Close()
			do(p)
			for { // until the server hangs up
				if _, err := p.Receive(); err != nil {
					return
				}
			}
		}
	}
	dealer := "\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
	ready := append([]byte{4, byte(len(dealer))}, dealer...)
	command := func(body string) []byte { return append([]byte{4, byte(len(body))}, body...) }
	type hostile struct {
		name  string
		peer  func(t *testing.T, r *rig, c net.Conn)
		words []string // of its log line
	}
	late := []hostile{ // for registration
		{"silent", write(), []string{"i/o timeout"}},
		{"half a greeting", write(zmtpGreeting()[:20]), []string{"i/o timeout"}},
		{"greeting only", write(zmtpGreeting()), []string{"READY", "i/o timeout"}},
		{"handshake only", write(zmtpGreeting(), ready), []string{"not registered within"}},
		{"PING flood", write(zmtpGreeting(), ready, bytes.Repeat(command("\x04PING\x00\x00ctx"), 10_000)), []string{"not registered within"}},
	}
	wrong := []hostile{
		{"http", write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")), []string{"not a ZeroMQ greeting"}},
		{"rubbish", write(bytes.Repeat([]byte{0xa5}, 4096)), []string{"not a ZeroMQ greeting"}},
		{"READY of 2^62", write(zmtpGreeting(), frameHeader(4, 1<<62)), []string{"limit 4096"}},
		{"READY without a type", write(zmtpGreeting(), command("\x05READY")), []string{"expected DEALER"}},
		{"READY past its end", write(zmtpGreeting(), command("\x05READY\xff")), []string{"cut short"}},
		{"READY of a STREAM", write(zmtpGreeting(), command("\x05READY\x0bSocket-Type\x00\x00\x00\x06STREAM")),
			[]string{"STREAM"}},
		{"frame of 2^62", write(zmtpGreeting(), ready, frameHeader(0, 1<<62)), []string{"4611686018427387904 bytes"}},
		{"frame of 2^49", write(zmtpGreeting(), ready, frameHeader(0, 1<<49)), []string{"limit 2097152"}},
		{"endless MORE", write(zmtpGreeting(), ready, bytes.Repeat([]byte{1, 0}, 100_000)), []string{"more than 16 frames"}},
		{"v1 of no type", write(zmtpGreeting(), ready, []byte("\x01\x00\x01\x01m\x01\x011\x00\x019")),
			[]string{"rpc=v1", "input type"}},
		{"v1 that answers first", write(zmtpGreeting(), ready, []byte("\x01\x00\x01\x04\x01\x00\x00\x00\x00\x04\x00\x00\x80\x3f")),
			[]string{"must be restarted to register"}},
		{"v2 among v3", write(zmtpGreeting(), ready, []byte("\x01\x00\x01\x04\x00\x00\x00\x00\x01\x01m\x01\x011\x00\x013")),
			[]string{"RPC v2", "address of its own"}},
		{"unknown words", write(zmtpGreeting(), ready, []byte("\x00\x05howdy")), []string{"howdy"}},
		{"2^62 when registered", after("h1", func(p *containertest.Peer) { p.Raw().Write(frameHeader(0, 1<<62)) }),
			[]string{"model=h1/1", "limit 268435456"}},
		{"endless MORE when registered",
			after("h7", func(p *containertest.Peer) { p.Raw().Write(bytes.Repeat([]byte{1, 0}, 100_000)) }),
			[]string{"model=h7/1", "more than 8192 frames"}},
		{"unknown kind", after("h2", func(p *containertest.Peer) { p.Send([]byte("evil\n")) }),
			[]string{"model=h2/1", `evil`, "expected hello, heartbeat"}},
		{"short result", after("h3", func(p *containertest.Peer) { p.Send([]byte("result"), []byte("id")) }),
			[]string{"model=h3/1", "expected result | id"}},
		{"second hello", after("h4", func(p *containertest.Peer) { p.Send([]byte("hello"), hello("h4")) }),
			[]string{"model=h4/1", "twice"}},
		{"dies in a frame", after("h5", func(p *containertest.Peer) {
			p.Raw().Write(frameHeader(1, 1000))
			p.Raw().(*net.TCPConn).CloseWrite()
		}), []string{"model=h5/1", "unexpected EOF"}},
		{"reserved bits", after("h6", func(p *containertest.Peer) { p.Raw().Write([]byte{0xf8, 0}) }),
			[]string{"model=h6/1", "reserved bits"}},
	}
	settings := containers.Settings{Heartbeat: 20 * time.Second}
	r := newRig(t, containers.Config{Addrs: []string{"tcp://127.0.0.1:0"}, Settings: settings})
	r.LogEverything()
	stop := r.serveMeanwhile(t)
	meet := func(all []hostile) {
		var peers sync.WaitGroup
		for _, tt := range all {
			peers.Go(func() {
				c := dial(t, r)
				tt.peer(t, r, c)
				io.Copy(io.Discard, c) // until the server hangs up
				c.Close()
			})
		}
		peers.Wait()
		for _, tt := range all {
			t.Run(tt.name, func(t *testing.T) { r.logs(t, tt.words...) })
		}
	}
	meet(wrong)
	settings.HandshakeTimeout = 2 * time.Second
	if err := r.Configure(settings); err != nil {
		t.Fatal(err)
	}
	meet(late)
	// A session is removed after the container has hung up.
	budgettest.Until(t, "only the good session to be left", func() bool { return len(r.Sessions()) == 1 })
	stop()
}

// serveMeanwhile sends requests to the good container until the function that it returns is
// called.
func (r *rig) serveMeanwhile(t *testing.T) (stop func()) {
	t.Helper()
	good, err := containertest.Dial(t.Context(), r.Dialable()[0], echo(nil))
	if err != nil {
		t.Fatal(err)
	}
	r.wait(t, echoID, 1)
	done, served := make(chan struct{}), 0
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := r.echoes(echoID); err != nil {
				t.Errorf("the good container: %v", err)
				return
			}
			served++
			time.Sleep(3 * time.Millisecond) // it must be seen to serve, not take the processor
		}
	})
	return func() {
		close(done)
		serving.Wait()
		good.Close()
		if served == 0 {
			t.Error("nothing was served meanwhile")
		}
	}
}

// TestLyingContainers: containers that have registered and answer wrongly, over real sockets,
// while a good one serves. Each is logged once; only its own requests fail, and its session
// continues.
func TestLyingContainers(t *testing.T) {
	r := newRig(t, containers.Config{Addrs: []string{"tcp://127.0.0.1:0"}})
	r.LogEverything()
	stop := r.serveMeanwhile(t)
	reply := func(b *containertest.Batch, header string) containertest.Reply {
		return containertest.Reply{Frames: append(containertest.Result(b.ID, nil, containertest.Reply{})[:2],
			[]byte(header), b.Inputs[0].Data)}
	}
	late := make(chan struct{}) // closed after the deadline
	tests := []struct {
		name   string
		answer func(b *containertest.Batch) containertest.Reply
		want   error    // of its first request; nil: it is answered
		words  []string // of its line in the log
	}{
		{"twice", func(b *containertest.Batch) containertest.Reply {
			return containertest.Reply{Outputs: b.Inputs, Twice: true}
		}, nil, []string{"not in flight"}},
		{"late", func(b *containertest.Batch) containertest.Reply {
			<-late
			return containertest.Reply{Outputs: b.Inputs}
		}, scheduler.ErrDeadlineExceeded, nil},
		{"wrong-id", func(b *containertest.Batch) containertest.Reply {
			return containertest.Reply{Outputs: b.Inputs, ID: b.ID + 1}
		}, scheduler.ErrDeadlineExceeded, []string{"not in flight"}},
		{"few-rows", func(b *containertest.Batch) containertest.Reply {
			return containertest.Reply{Outputs: []tensor.Tensor{floats()}}
		}, scheduler.ErrContainerFailed, []string{"failed a batch", "[0, 4]"}},
		{"nan-shape", func(b *containertest.Batch) containertest.Reply {
			return reply(b, `{"outputs":[{"name":"y","datatype":"FP32","shape":[2,NaN]}]}`)
		}, scheduler.ErrContainerFailed, []string{"failed a batch", "expected a whole number"}},
		{"huge-shape", func(b *containertest.Batch) containertest.Reply {
			return reply(b, `{"outputs":[{"name":"y","datatype":"FP32","shape":[2,4611686018427387904]}]}`)
		}, scheduler.ErrContainerFailed, []string{"failed a batch", "has shape [2, 4611686018427387904]"}},
	}
	var all sync.WaitGroup
	for _, tt := range tests {
		m := echo(tt.answer)
		m.Name = tt.name
		c, err := containertest.Dial(t.Context(), r.Dialable()[0], m)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		id := scheduler.ModelID{Name: tt.name, Version: "1"}
		r.wait(t, id, 1)
		ask := func(q *scheduler.Request) {
			q.Inputs = []tensor.Tensor{floats(1, 2, 3, 4, 5, 6, 7, 8)}
			out, err := r.ask(q, id)
			if !errors.Is(err, tt.want) {
				t.Errorf("%s: got %v, expected %v", tt.name, err, tt.want)
			}
			for _, o := range out {
				o.Release()
			}
		}
		all.Go(func() {
			if tt.want != scheduler.ErrDeadlineExceeded {
				for range 3 {
					ask(&scheduler.Request{})
				}
				return
			}
			for len(c.Batches()) == 0 { // the deadline may pass before the request is sent
				ask(&scheduler.Request{Deadline: time.Now().Add(50 * time.Millisecond)})
			}
			if tt.name == "late" {
				close(late)
			}
		})
	}
	all.Wait()
	for _, tt := range tests {
		if tt.words != nil {
			r.logs(t, append(tt.words, "model="+tt.name+"/1")...)
		}
		id := scheduler.ModelID{Name: tt.name, Version: "1"}
		if m, ok := r.sched.Model(id); !ok || m.Replicas() != 1 {
			t.Errorf("%s: its session has ended", tt.name)
		}
		// One line for the registration, one for the fault.
		if n := strings.Count(r.log.String(), "model="+tt.name+"/1"); n > 2 {
			t.Errorf("%s: %d lines in the log", tt.name, n)
		}
	}
	stop()
}

// TestUnaskedACK: a container of any generation that acknowledges feedback, which is never sent,
// fails the batch whose id it names; an ACK for no batch counts as a stray answer. Then the
// container serves. v4 has no such message: there it ends the session.
func TestUnaskedACK(t *testing.T) {
	word := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	long := func(n ...uint64) (b []byte) {
		for _, v := range n {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		return b
	}
	one := []byte{0, 0, 0x80, 0x3f}
	texts := append(append(word(1), word(2)...), "ok"...)
	typed := func(id []byte, rest ...[]byte) [][]byte { return append([][]byte{nil, word(1), id}, rest...) }
	for _, g := range []struct {
		rpc      string
		dialect  containers.Dialect
		register [][]byte
		at       int // which frame of a request is the id
		ack      func(id []byte) [][]byte
		answer   func(id []byte) [][]byte
	}{
		{"v1", containers.DialectV3, [][]byte{nil, []byte("old"), []byte("1"), []byte("1")}, 1,
			func(id []byte) [][]byte { return [][]byte{nil, id, []byte("ACK")} }, func(id []byte) [][]byte {
				return [][]byte{nil, id, one}
			}},
		{"v1b", containers.DialectV1b, [][]byte{nil, []byte("old"), []byte("1"), []byte("1")}, 1,
			func(id []byte) [][]byte { return [][]byte{nil, id, []byte("ACK")} }, func(id []byte) [][]byte {
				return [][]byte{nil, id, one}
			}},
		{"v2", containers.DialectV2, [][]byte{nil, word(0), []byte("old"), []byte("1"), []byte("1")}, 2,
			func(id []byte) [][]byte { return typed(id, []byte("ACK")) }, func(id []byte) [][]byte {
				return typed(id, texts)
			}},
		{"v2a", containers.DialectV2a, [][]byte{nil, word(0), []byte("old"), []byte("1"), []byte("1")}, 2,
			func(id []byte) [][]byte { return typed(id, []byte("ACK")) }, func(id []byte) [][]byte {
				return typed(id, one)
			}},
		{"v3", containers.DialectV3, [][]byte{nil, word(0), []byte("old"), []byte("1"), []byte("1"), word(3)}, 3,
			func(id []byte) [][]byte { return typed(id, []byte("ACK")) },
			func(id []byte) [][]byte { return typed(id, long(16), long(1, 2), []byte("ok")) }},
	} {
		t.Run(g.rpc, func(t *testing.T) {
			r := newRig(t,
				containers.Config{Others: []containers.Address{{Addr: "tcp://127.0.0.1:0", Dialect: g.dialect}},
					Addrs: []string{"tcp://127.0.0.1:0"}})
			c, err := net.Dial("tcp", r.AddrsOf(g.dialect)[0].String())
			if err != nil {
				t.Fatal(err)
			}
			p, err := containertest.NewPeer(c)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if err := p.Send(g.register...); err != nil {
				t.Fatal(err)
			}
			id := scheduler.ModelID{Name: "old", Version: "1"}
			r.wait(t, id, 1)
			if err := p.Send(g.ack(word(77))...); err != nil { // for no batch
				t.Fatal(err)
			}
			for _, answer := range []func([]byte) [][]byte{g.ack, g.answer} {
				var served sync.WaitGroup
				served.Go(func() {
					f, err := p.Receive()
					if err == nil {
						err = p.Send(answer(f[g.at])...)
					}
					if err != nil {
						t.Error(err)
					}
				})
				x, err := tensor.FromSlice(tensor.Shape{1, 2}, []int32{1, 2})
				if err != nil {
					t.Fatal(err)
				}
				out, err := r.infer(id, x)
				served.Wait()
				acked := len(answer(word(0))) == len(g.ack(word(0))) &&
					string(answer(word(0))[len(answer(word(0)))-1]) == "ACK"
				switch {
				case acked && (!errors.Is(err, scheduler.ErrContainerFailed) || !strings.Contains(err.Error(), `"ACK", the acknowledgement of feedback`)):
					t.Errorf("after ACK: %v", err)
				case !acked && err != nil:
					t.Errorf("after an answer: %v", err)
				}
				for _, o := range out {
					o.Release()
				}
			}
			if i := r.Sessions()[0]; i.Strays != 1 || i.Failures != 1 || i.RPC != g.rpc {
				t.Errorf("the status has %+v", i)
			}
			r.logs(t, "failed a batch", "model=old/1", "rpc="+g.rpc, "acknowledgement of feedback")
		})
	}
}

func TestUnaskedACKOfV4(t *testing.T) {
	r := newRig(t, containers.Config{Addrs: []string{"tcp://127.0.0.1:0"}})
	p := registered(t, r, "new")
	if err := p.Send([]byte("ACK")); err != nil {
		t.Fatal(err)
	}
	r.logs(t, "container gone", "model=new/1", "ACK")
}

// TestUnserved: a container that cannot be served as it is stays in the status after its connection
// has closed, with a remedy, until it registers.
func TestUnserved(t *testing.T) {
	word := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	for _, c := range []struct {
		name, rpc string
		says      [][][]byte
		leaves    bool
		want      string
	}{
		{"v1 that was connected before", "v1", nil, false, "must be restarted to register again"},
		{"v1 that answers one from before", "v1", [][][]byte{{nil, word(7), {0, 0, 0x80, 0x3f}}}, false, "must be restarted to register again"},
		{"v2 that goes mute", "v2", [][][]byte{{nil, word(2)}}, false, "set containers.listen_v2"},
		{"v2 that dies", "v2", [][][]byte{{nil, word(2)}}, true, "set containers.listen_v2"},
		{"v2 that registers at once", "v2", [][][]byte{{nil, word(0), []byte("m"), []byte("1"), []byte("1")}}, false, "set containers.listen_v2"},
		{"v2 that registers when asked", "v2",
			[][][]byte{{nil, word(2)}, {nil, word(0), []byte("m"), []byte("1"), []byte("1")}}, false, "set containers.listen_v2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				p := r.peer(t)
				for _, m := range c.says {
					if err := p.Send(m...); err != nil {
						t.Fatal(err)
					}
					if len(m) == 2 { // the answer to a heartbeat
						if _, err := p.Receive(); err != nil {
							t.Fatal(err)
						}
					}
				}
				if c.leaves {
					p.Close()
				}
				budgettest.Until(t, "it to be shown", func() bool {
					return len(r.Unserved()) == 1 && len(r.Sessions()) == 0
				})
				i := r.Unserved()[0]
				if i.State != containers.StateUnserved || i.RPC != c.rpc || !strings.Contains(i.Reason, c.want) ||
					i.Remote == "" {
					t.Errorf("the status has %+v", i)
				}
				r.logs(t, "ended before it registered", c.want)

				// The container is changed as advised.
				dialect, register := containers.DialectV3, [][]byte{nil, []byte("m"), []byte("1"), []byte("1")}
				if c.rpc == "v2" {
					dialect, register = containers.DialectV2, [][]byte{nil, word(0), []byte("m"), []byte("1"), []byte("1")}
				}
				if err := r.peerAs(t, dialect).Send(register...); err != nil {
					t.Fatal(err)
				}
				budgettest.Until(t, "it to be forgotten", func() bool { return len(r.Unserved()) == 0 })
			})
		})
	}
	// A peer that is not a ZeroMQ socket, or speaks v4 and is refused, is not listed.
	r := newRig(t, containers.Config{Addrs: []string{"tcp://127.0.0.1:0"}})
	dial(t, r).Close()
	p, err := containertest.NewPeer(dial(t, r))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Send([]byte("hello"), []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if f, err := p.Receive(); err != nil || string(f[0]) != "refused" {
		t.Errorf("%q, %v", f, err)
	}
	p.Close()
	budgettest.Until(t, "both to go", func() bool { return r.Stats().Strangers == 2 })
	if list := r.Unserved(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

// TestHostileNames: containers with names that would harm a terminal or a disk are refused with a
// reason, over real sockets, and two with one identity are two replicas, while a good one serves.
func TestHostileNames(t *testing.T) {
	r := newRig(t, containers.Config{Addrs: []string{"tcp://127.0.0.1:0"}})
	r.LogEverything()
	stop := r.serveMeanwhile(t)
	for _, tt := range []struct{ name, hello, want string }{
		{"control characters", strings.Replace(string(hello("bad")), `"bad"`, `"b\u001b[31md"`, 1), "unprintable"},
		{"1 MB of metadata",
			strings.Replace(string(hello("bad")), `{`, `{"parameters":{"x":"`+strings.Repeat("x", 1<<20)+`"},`, 1), "limit 262144"},
	} {
		p, err := containertest.NewPeer(dial(t, r))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if err := p.Send([]byte("hello"), []byte(tt.hello)); err != nil {
			t.Fatal(err)
		}
		if f, err := p.Receive(); err != nil || string(f[0]) != "refused" || !strings.Contains(string(f[1]), tt.want) {
			t.Errorf("%s: answered %q, %v, expected refused with %q", tt.name, f, err, tt.want)
		}
		p.Close()
		r.logs(t, "ended before it registered", tt.want)
	}
	if strings.ContainsRune(r.log.String(), 0x1b) {
		t.Error("an escape character is in the log")
	}

	const ready = "\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x04twin"
	text := hello("twins")
	for range 2 {
		c := dial(t, r)
		defer c.Close()
		if _, err := c.Write(
			bytes.Join([][]byte{zmtpGreeting(), {4, byte(len(ready))}, []byte(ready), []byte("\x01\x05hello"),
				frameHeader(0, uint64(len(text))), text}, nil)); err != nil {
			t.Fatal(err)
		}
	}
	r.wait(t, scheduler.ModelID{Name: "twins", Version: "1"}, 2)
	stop()
}

// largeRow is more floats than the buffers of a connection by dialNarrow hold: 4 MiB on the sending
// side, unless the kernel is configured otherwise.
const largeRow = 5 << 18

// dialNarrow connects a socket that receives only a little before it is read.
func dialNarrow(t testing.TB, r *rig) net.Conn {
	t.Helper()
	c := dial(t, r)
	if err := c.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestStuckReader: the write timeout ends a container that reads nothing, its rows go to other
// replicas, and it delays neither clients nor other containers, nor new ones.
func TestStuckReader(t *testing.T) {
	t.Parallel() // it mostly waits
	// Containers that read have time to, however busy the machine is.
	settings := containers.Settings{WriteTimeout: time.Minute, Heartbeat: 20 * time.Second}
	r := newRig(t,
		containers.Config{Addrs: []string{"tcp://127.0.0.1:0"}, Settings: settings, Pool: tensor.NewPool(256 << 20)})
	configure := func(timeout time.Duration) {
		t.Helper()
		settings.WriteTimeout = timeout
		if err := r.Configure(settings); err != nil {
			t.Fatal(err)
		}
	}
	const row = largeRow
	spec := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, row}}}
	large := containertest.Model{Name: "echo", Version: "1", Inputs: spec, Outputs: spec, MaxBatch: 1, Slots: 1}
	sent := make(chan struct{}) // closed when the stuck one has a batch
	large.Answer = func(b *containertest.Batch) containertest.Reply {
		if b.N > 1 {
			<-sent
		}
		return containertest.Reply{Outputs: b.Inputs}
	}
	join := func() *containertest.Container {
		t.Helper()
		c, err := containertest.Dial(t.Context(), r.Dialable()[0], large)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	join()
	r.wait(t, echoID, 1)
	x, err := tensor.FromSlice(tensor.Shape{1, row}, make([]float32, row))
	if err != nil {
		t.Fatal(err)
	}
	ask := func() {
		out, err := r.infer(echoID, x)
		if err != nil {
			t.Error(err)
			return
		}
		out[0].Release()
	}
	ask() // an answer makes the source trusted: one loss of its requests is chance from now on

	configure(200 * time.Millisecond)
	stuck, err := containertest.NewPeer(dialNarrow(t, r))
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Close()
	if err := stuck.Send([]byte("hello"), containertest.Hello(large)); err != nil {
		t.Fatal(err)
	}
	r.wait(t, echoID, 2)
	configure(time.Minute)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(ask)
	}
	budgettest.Until(t, "a batch to go to each, or the stuck one to be gone already", func() bool {
		list := r.Sessions()
		return len(list) == 1 || list[0].Batches > 1 && list[1].Batches > 0
	})
	close(sent)
	join()
	wg.Wait()
	r.logs(t, "container gone", "does not read")
}

// TestEarlyAnswer: a peer that answers a batch which is still being sent has guessed the id. Its
// session ends, since the memory of the batch must not be released while the socket reads it.
func TestEarlyAnswer(t *testing.T) {
	// The peer sends no heartbeats.
	r := newRig(t,
		containers.Config{Addrs: []string{"tcp://127.0.0.1:0"},
			Settings: containers.Settings{Heartbeat: 20 * time.Second}})
	const row = largeRow
	spec := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, row}}}
	large := containertest.Model{Name: "echo", Version: "1", Inputs: spec, Outputs: spec}
	p, err := containertest.NewPeer(dialNarrow(t, r))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Send([]byte("hello"), containertest.Hello(large)); err != nil {
		t.Fatal(err)
	}
	r.wait(t, echoID, 1)
	x, err := tensor.FromSlice(tensor.Shape{1, row}, make([]float32, row))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ask := func(want error) {
		wg.Go(func() {
			out, err := r.infer(echoID, x)
			if !errors.Is(err, want) {
				t.Errorf("got %v, expected %v", err, want)
			}
			for _, o := range out {
				o.Release()
			}
		})
	}
	ask(nil)
	if _, err := p.Receive(); err != nil { // welcome
		t.Fatal(err)
	}
	f, err := p.Receive()
	if err != nil {
		t.Fatal(err)
	}
	id := binary.LittleEndian.Uint64(f[1])
	if err := p.Send(containertest.Result(id, spec, containertest.Reply{Outputs: []tensor.Tensor{x}})...); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	ask(scheduler.ErrContainerLost)
	budgettest.Until(t, "the second batch", func() bool { return r.Sessions()[0].Batches == 2 })
	if err := p.Send(containertest.Result(id+1, spec, containertest.Reply{Error: "guessed"})...); err != nil {
		t.Fatal(err)
	}
	r.logs(t, "container gone", "before all of it had been sent")
	wg.Wait()
}
