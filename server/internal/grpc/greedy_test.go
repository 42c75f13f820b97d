package grpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/doortest"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// sized is a model that answers each row with as many bytes as its number; declared may be -1.
func (r *rig) sized(name string, declared int) *atomic.Int64 {
	rows := new(atomic.Int64)
	r.Model(name, scheduler.Spec{
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 1}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Uint8, Shape: tensor.Shape{-1, declared}}},
	}, scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		rows.Add(int64(b.Rows))
		n := int(math.Float32frombits(binary.NativeEndian.Uint32(b.Parts[0].Inputs[0].Data)))
		buf, err := r.Pool.Get(b.Rows * n)
		if err != nil {
			return err
		}
		b.Complete([]tensor.Tensor{{DType: tensor.Uint8, Shape: tensor.Shape{b.Rows, n}, Data: buf.Bytes(), Buf: buf}},
			nil)
		return nil
	}))
	return rows
}

// A client's unread answers are bounded from the first one on, also with windows of 0, and whether
// or not the model declares how large its answers are. The connection is closed when nothing has
// moved for a while.
func TestUnreadAnswersAreBounded(t *testing.T) {
	t.Parallel() // it waits
	// The kernel takes some megabytes for a client that does not read; they count as read.
	const limit, answer, streams = 8 << 20, 1 << 20, 100
	for name, c := range map[string]struct {
		declared int
		method   string
		window   uint32
	}{
		"declared":   {answer, "ModelInfer", 0},
		"undeclared": {-1, "ModelInfer", 0},
		"streams":    {answer, "ModelStreamInfer", 0},
		"no reading": {answer, "ModelInfer", 1 << 30},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *Config, _ *int64) { c.OutboundBytes, c.StallTimeout = limit, time.Second })
			rows := r.sized("m", c.declared)
			greedy := r.caller(http2.Setting{ID: http2.SettingInitialWindowSize, Val: c.window})
			if c.window > 0 {
				greedy.must(greedy.framer.WriteWindowUpdate(0, c.window))
			}
			for i := range streams {
				greedy.call(uint32(2*i+1), c.method, time.Minute, floats("m", answer), true)
			}
			most := int64(0)
			budgettest.Until(r.T, "the connection to be closed", func() bool {
				most = max(most, r.Pool.InUse())
				return metric(r, `shivad_connections_closed_total{door="grpc",reason="stalled"} `) == 1
			})
			before := rows.Load()
			if most > limit+2*answer {
				t.Errorf("%d KiB of payload for a client that does not read, whose limit is %d", most>>10, limit>>10)
			}
			budgettest.Until(r.T, "its requests to end", func() bool { return r.inside() == 0 })
			if n := rows.Load() - before; n > 1 {
				t.Errorf("%d of its requests were executed after it was closed", n)
			}
		})
	}
}

// A higher limit admits requests that wait for room on an open connection, and a lower
// stall_timeout ends the connection.
func TestConfigureLetsWaitingRequestsIn(t *testing.T) {
	const answer, asked = 1 << 20, 8
	r := newRig(t, func(c *Config, _ *int64) { c.OutboundBytes = answer })
	rows := r.sized("m", answer)
	greedy := r.caller(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	for i := range asked {
		greedy.call(uint32(2*i+1), "ModelInfer", time.Minute, floats("m", answer), true)
	}
	waiting := func() (n int) {
		r.eachConn(func(c *conn) {
			c.mu.Lock()
			defer c.mu.Unlock()
			n += len(c.line)
		})
		return n
	}
	budgettest.Until(r.T, "all but one to wait", func() bool { return waiting() == asked-1 })
	next := r.door.Settings()
	next.OutboundBytes = asked * answer
	r.door.Configure(next)
	budgettest.Until(r.T, "all to be executed", func() bool { return rows.Load() == asked && waiting() == 0 })
	next.StallTimeout = 100 * time.Millisecond
	r.door.Configure(next)
	budgettest.Until(r.T, "the connection to be closed", func() bool {
		return metric(r, `shivad_connections_closed_total{door="grpc",reason="stalled"} `) == 1
	})
}

// A client that reads gets every answer, however far their sum exceeds the limit on unread answers:
// in calls, and in order in streams. It does not count as stalled, since the time of its last
// progress counts.
func TestReaderGetsEverything(t *testing.T) {
	t.Parallel() // it waits
	const limit, answer = 1 << 20, 600 << 10
	asked := 60
	if !budgettest.Whole() {
		asked = 20
	}
	for name, declared := range map[string]int{"declared": answer, "undeclared": -1} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *Config, _ *int64) { c.OutboundBytes = limit })
			r.sized("m", declared)
			var mu sync.Mutex
			var answers int
			var mark time.Time
			read := func() {
				// More answers than sockets and windows can hold.
				first, last := asked, 3*asked
				mu.Lock()
				defer mu.Unlock()
				switch answers++; answers {
				case first:
					mark = time.Now()
				case last:
					r.eachConn(func(c *conn) {
						if since := c.stalledSince(); !since.IsZero() && since.Before(mark) {
							t.Errorf("a client that has read %d answers meanwhile stands still since %v before",
								last-first, mark.Sub(since))
						}
					})
				}
			}
			var calls sync.WaitGroup
			for range asked {
				calls.Go(func() {
					a, err := r.client.ModelInfer(t.Context(), floats("m", answer))
					if err != nil || len(a.RawOutputContents[0]) != answer {
						t.Errorf("a call: %v", err)
					}
					read()
				})
			}
			for range 3 {
				s := r.stream(t.Context())
				calls.Go(func() {
					for i := range asked {
						q := floats("m", answer)
						q.Id = fmt.Sprint(i)
						if i%3 > 0 { // of two sequences, and of none
							q.Parameters = map[string]*pb.InferParameter{
								"sequence_id": {
									ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: int64(i % 3)}}}
						}
						if err := s.Send(q); err != nil {
							t.Error(err)
							return
						}
					}
					_ = s.CloseSend()
				})
				calls.Go(func() {
					for i := range asked {
						a, err := s.Recv()
						if err != nil || a.ErrorMessage != "" || a.InferResponse.Id != fmt.Sprint(i) ||
							len(a.InferResponse.RawOutputContents[0]) != answer {
							t.Errorf("answer %d: %v %s", i, err, a.GetErrorMessage())
							return
						}
						read()
					}
				})
			}
			calls.Wait()
		})
	}
}

// askingFour returns a request as a call's data.
func askingFour(t *testing.T) []byte {
	body, err := proto.Marshal(floats("m", 4))
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
}

// askAndReset makes a call and cancels it at once.
func (c *caller) askAndReset(stream uint32, message []byte) error {
	c.header.Reset()
	for _, h := range callHeaders("ModelInfer") {
		c.must(c.enc.WriteField(h))
	}
	var all bytes.Buffer // in one write, so that it costs the least to send
	frames := http2.NewFramer(&all, nil)
	c.must(
		frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.header.Bytes(),
			EndHeaders: true}))
	c.must(frames.WriteData(stream, true, message))
	c.must(frames.WriteRSTStream(stream, http2.ErrCodeCancel))
	_, err := c.conn.Write(all.Bytes())
	return err
}

// A client that is disconnected for cancelling while it sends can read why, however late it reads.
func TestCalmDownIsRead(t *testing.T) {
	t.Parallel() // it waits
	r := newRig(t)
	r.sized("m", 4)
	c, message := r.caller(), askingFour(t)
	for i := range uint32(3000) {
		if err := c.askAndReset(2*i+1, message); err != nil {
			t.Fatalf("after %d calls: %v", i, err)
		}
	}
	budgettest.Until(t, "the connection to be closed", func() bool {
		return metric(r, `shivad_connections_closed_total{door="grpc",reason="cancels"} `) == 1
	})
	told := false
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			if !told || !errors.Is(err, io.EOF) {
				t.Errorf("the connection ended with %v; it was told to calm down: %t", err, told)
			}
			return
		}
		if f, ok := frame.(*http2.GoAwayFrame); ok {
			told = f.ErrCode == http2.ErrCodeEnhanceYourCalm
		}
	}
}

// A client that cancels nearly all of its calls is slowed down, then disconnected, and the work
// that it caused is bounded. Reading is slowed down: calls that have begun delay other clients,
// whatever becomes of them.
func TestRapidReset(t *testing.T) {
	r := newRig(t)
	rows := r.sized("m", 4)
	message := askingFour(t)
	attack := func(until time.Time) (asked int) { // until it is disconnected, or until then
		c := r.caller()
		c.must(c.conn.SetDeadline(until))
		go func() {
			for { // reads the answers, or else the connection would be closed for that
				if _, err := c.framer.ReadFrame(); err != nil {
					return
				}
			}
		}()
		for asked = 0; time.Now().Before(until) && c.askAndReset(uint32(2*asked+1), message) == nil; asked++ {
		}
		return asked
	}
	begun := func() (n int) {
		for _, outcome := range []string{"ok", "canceled", "overloaded"} {
			n += metric(r, fmt.Sprintf(`shivad_door_requests_total{door="grpc",outcome=%q} `, outcome))
		}
		return n
	}
	asked := attack(time.Now().Add(doortest.Patience))
	budgettest.Until(r.T, "the connection to be closed for it", func() bool {
		return metric(r, `shivad_connections_closed_total{door="grpc",reason="cancels"} `) == 1
	})
	if first := rows.Load(); first > 2000 {
		t.Errorf("%d calls were cancelled, and %d rows of them reached the model", asked, first)
	}
	before := begun()
	again := time.Now()
	for until := again.Add(time.Duration(budgettest.Rounds(1000)) * time.Millisecond); time.Now().Before(until); {
		attack(until)
	}
	// The server has read calls of the first and of the last connection.
	const pace, left = 2 * cancelRate, 2 * 256
	if n, took := begun()-before, time.Since(again); n > left+int(took.Seconds()*pace) {
		t.Errorf("it came again and again, and %d calls began in %v", n, took)
	}
	// A concurrent client is not held back, once its first call has been answered.
	budgettest.Until(r.T, "those connections to end", func() bool { return r.connections() == 0 })
	ctx, cancel := context.WithTimeout(t.Context(), doortest.Patience)
	defer cancel()
	var first time.Time // when the connection existed
	for i := range 100 {
		var ours peer.Peer
		if _, err := r.client.ModelInfer(ctx, floats("m", 4), grpc.Peer(&ours)); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = time.Now()
		}
		r.eachConn(func(c *conn) {
			if c.RemoteAddr().String() != ours.LocalAddr.String() {
				return
			}
			now := time.Now()
			if wait, _ := c.cancels.debt(now); i > 0 && wait > 0 {
				t.Errorf("after %d calls, none of which was cancelled, the next waits for %v", i+1, wait)
			}
			// On a slow machine time alone would fill the account. The last answer may not have
			// been counted yet.
			least := min(now.Sub(first).Seconds()*cancelRate+float64(cancelAnswer*i), cancelCredit) - 1
			c.cancels.mu.Lock()
			credit := c.cancels.credit
			c.cancels.mu.Unlock()
			if credit < least {
				t.Errorf("after %d answers in %v the credit is %.1f, expected %.1f", i+1, now.Sub(first), credit, least)
			}
		})
	}
}

// A client that makes the server reset its calls (MadeYouReset) is disconnected, and told why; none
// of the calls that it makes in the same breath begins.
func TestMadeYouReset(t *testing.T) {
	message := askingFour(t)
	for name, c := range map[string]struct {
		provoke func(c *caller, stream uint32)
		begun   int // calls, at most
	}{
		"a window update of 0": {func(c *caller, stream uint32) {
			c.must(c.framer.WriteRawFrame(http2.FrameWindowUpdate, 0, stream, make([]byte, 4)))
		}, 0},
		"one of the reserved bit": {func(c *caller, stream uint32) {
			c.must(c.framer.WriteRawFrame(http2.FrameWindowUpdate, 0, stream, []byte{0x80, 0, 0, 0}))
		}, 0},
		"data after the end": {func(c *caller, stream uint32) { c.must(c.framer.WriteData(stream, true, message)) },
			100},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			w := r.held("m")
			one := r.caller()
			var all bytes.Buffer
			one.framer = http2.NewFramer(&all, one.conn)
			one.framer.AllowIllegalWrites = true
			for i := range uint32(100) {
				one.call(2*i+1, "ModelInfer", time.Minute, floats("m", 4), true)
				c.provoke(one, 2*i+1)
			}
			_, err := one.conn.Write(all.Bytes())
			one.must(err)
			one.must(one.conn.SetDeadline(time.Now().Add(doortest.Patience)))
			code := http2.ErrCodeNo
			for {
				frame, err := one.framer.ReadFrame()
				if err != nil {
					break
				}
				if f, ok := frame.(*http2.GoAwayFrame); ok {
					code = f.ErrCode
				}
			}
			if code != http2.ErrCodeProtocol {
				t.Errorf("the connection ends with %v", code)
			}
			budgettest.Until(t, "the connection to be closed for it", func() bool {
				return metric(r, `shivad_connections_closed_total{door="grpc",reason="protocol"} `) == 1
			})
			budgettest.Until(t, "its calls to end", func() bool {
				for w.Answer() == nil {
				}
				return r.inside() == 0
			})
			if n := metric(r, `shivad_door_requests_total{door="grpc",outcome="canceled"} `); n > c.begun {
				t.Errorf("%d calls began", n)
			}
		})
	}
}

// A client whose calls the server resets before they begin, for headers that no call may have, is
// disconnected like one that cancels.
func TestProvokedResetsAreCharged(t *testing.T) {
	r := newRig(t)
	c := r.caller()
	go func() { _, _ = io.Copy(io.Discard, c.conn) }()
	for i := range uint32(5000) {
		c.header.Reset()
		for _, h := range append(callHeaders("ModelInfer"), hpack.HeaderField{Name: "connection", Value: "close"}) {
			c.must(c.enc.WriteField(h))
		}
		if c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: c.header.Bytes(),
			EndHeaders: true}) != nil {
			break
		}
	}
	budgettest.Until(t, "the connection to be closed", func() bool {
		return metric(r, `shivad_connections_closed_total{door="grpc",reason="cancels"} `) == 1
	})
}

// Calls that a deadline ends are paid for, also where grpc-go ends them before they begin, but
// nobody is disconnected for them, and some answers suffice to be read at full speed again.
func TestLateCalls(t *testing.T) {
	var k cancels
	k.begin(false)
	now := k.at
	for i := range 10_000 {
		now = now.Add(time.Millisecond)
		how := expired
		if i%2 == 0 { // the client's clock was earlier, or else it is later
			how = given
		}
		if k.reset(now) {
			t.Fatalf("after %d late calls the client is sent away", i)
		}
		k.cut()
		k.ended(now, how, false)
	}
	if wait, _ := k.debt(now); wait == 0 {
		t.Error("calls that are late cost nothing")
	}
	k.credit = -longestPause.Seconds() * cancelRate // as deep as it gets: reading pauses before
	for range 10 {
		k.ended(now, answered, false)
	}
	if wait, _ := k.debt(now); wait > 0 {
		t.Errorf("after 10 answers a client whose calls were late waits for %v", wait)
	}

	inBubble(t, func(t *testing.T, r *rig) {
		c := r.caller()
		for i := range uint32(500) {
			c.call(2*i+1, "ModelInfer", time.Microsecond, nil, false)
		}
		c.ends(0)
		r.credits(func(k *cancels) {
			if k.credit > cancelCredit/2 {
				t.Errorf("after 500 calls of a microsecond the credit is %.1f", k.credit)
			}
		})
	})
}

// What the server's resets say about the client.
func TestProvokedResets(t *testing.T) {
	for code, want := range map[http2.ErrCode]struct {
		provoked int32
		wrong    bool
	}{
		http2.ErrCodeNo: {0, false}, http2.ErrCodeCancel: {0, false}, http2.ErrCodeProtocol: {1, false},
		http2.ErrCodeRefusedStream: {1, false},
		http2.ErrCodeFrameSize:     {1, false}, http2.ErrCodeStreamClosed: {0, true},
		http2.ErrCodeFlowControl: {0, true},
	} {
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		f := cancelFilter{Conn: near}
		if err := http2.NewFramer(&f, nil).WriteRSTStream(1, code); err != nil {
			t.Error(err)
		}
		near.Close()
		if provoked, wrong := f.provoked.Load(), f.wrong.Load(); provoked != want.provoked || wrong != want.wrong {
			t.Errorf("%v: %d provoked, wrong: %t; expected %v", code, provoked, wrong, want)
		}
	}
}

// A client that resets its calls at once is charged, whatever deadline it names; one whose clock
// has reached the deadline before ours is not.
func TestResetOrDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			allowed, after time.Duration
			want           ending
		}{
			{4 * time.Millisecond, 0, abandoned},
			{4 * time.Millisecond, time.Millisecond, abandoned},
			{20 * time.Millisecond, 19 * time.Millisecond, given},
			{20 * time.Millisecond, 21 * time.Millisecond, expired},
			{time.Minute, time.Second, abandoned},
			{-1, time.Second, abandoned}, // none
		} {
			ctx, cancel := context.WithCancel(t.Context())
			if c.allowed > 0 {
				ctx, cancel = context.WithTimeout(ctx, c.allowed)
			}
			began := time.Now()
			time.Sleep(c.after)
			cancel()
			if got := endingOf(ctx, began, time.Now()); got != c.want {
				t.Errorf("a reset after %v of %v: %v, expected %v", c.after, c.allowed, got, c.want)
			}
		}
	})
}

// A client that hedges, cancelling each later call, or that cancels now and then, never waits.
func TestCancelsOfOrdinaryClients(t *testing.T) {
	for name, c := range map[string]struct {
		perSecond, of, canceled int
		waits                   bool
	}{
		"hedged":                    {10_000, 2, 1, false},
		"hedged threefold":          {10_000, 3, 2, false},
		"now and then":              {1_000, 10, 1, false},
		"each key pressed":          {90, 10, 10, false},
		"nearly all, again at once": {1_000, 100, 99, true},
	} {
		var k cancels
		k.begin(false)
		now := k.at
		var waited time.Duration
		for i := range 10 * c.perSecond {
			now = now.Add(time.Second / time.Duration(c.perSecond))
			wait, paid := k.call(now)
			waited += wait
			canceled := i%c.of < c.canceled
			if canceled {
				if k.reset(now) && !c.waits {
					t.Errorf("%s: is sent away", name)
				}
				k.cut()
			}
			how := answered
			if canceled {
				how = abandoned
			}
			k.ended(now, how, paid)
		}
		if (waited > 0) != c.waits {
			t.Errorf("%s: waits for %v", name, waited)
		}
	}
}
