package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// answering serves Shiva: it sends what answer returns, in pieces of at most step bytes, and closes
// the connection on nil.
func answering(t *testing.T, step int, answer func(q *shiva.Message) *shiva.Message) (addr string) {
	return serve(t, func(c net.Conn) {
		defer c.Close()
		d := shiva.NewDecoder(shiva.DecoderConfig{})
		in, buf := bufio.NewReader(c), make([]byte, 64<<10)
		for {
			n, err := in.Read(buf)
			if err != nil {
				return
			}
			for p := buf[:n]; len(p) > 0; {
				n, q, err := d.Push(p)
				if err != nil {
					return
				}
				if p = p[n:]; q == nil {
					continue
				}
				a := answer(q)
				q.Release()
				if a == nil {
					return
				}
				frame, err := shiva.AppendMessage(nil, a)
				if err != nil {
					t.Error(err)
				}
				for piece := range slices.Chunk(frame, step) {
					if _, err := c.Write(piece); err != nil {
						return
					}
				}
			}
		}
	})
}

func faulty(kind, text string) *shiva.Message {
	return shiva.ErrorMessage(&shiva.RemoteError{Type: kind, Message: text, Code: 500})
}

// framesOf makes n stream requests, each with a different byte as data.
func framesOf(t *testing.T, n int) (frames [][]byte, stamps []Stamp) {
	t.Helper()
	for i := range n {
		q := Request{Model: "m", Stream: "cam-", Keep: "latest",
			Inputs: []tensor.Tensor{{DType: tensor.Uint8, Shape: tensor.Shape{1}, Data: []byte{byte(i)}}}}
		frame, stamp, err := q.Encode(Shiva)
		if err != nil {
			t.Fatal(err)
		}
		frames, stamps = append(frames, frame), append(stamps, stamp)
	}
	return frames, stamps
}

// Each stream sends its frames evenly, with numbers of its own and the times at which they were
// due. Superseded frames count neither as answered nor as failed.
func TestStreams(t *testing.T) {
	type frame struct {
		Seq        int64
		CapturedAt int64 `json:"captured_at"`
		Keep       string
		data       byte
	}
	var mu sync.Mutex
	got := map[string][]frame{}
	addr := answering(t, 1<<20, func(q *shiva.Message) *shiva.Message {
		var m struct {
			Stream string
			frame
		}
		if err := json.Unmarshal(q.Metadata, &m); err != nil {
			t.Errorf("%s: %v", q.Metadata, err)
		}
		m.data = q.Tensors[0].Data[0]
		mu.Lock()
		got[m.Stream] = append(got[m.Stream], m.frame)
		mu.Unlock()
		switch {
		case m.Seq%4 == 1:
			return faulty(shiva.Superseded, "a newer one came")
		case m.Seq == 2:
			return faulty(shiva.ContainerFailed, "no")
		}
		return &shiva.Message{Namespace: "m"}
	})
	for _, conns := range []int{0, 6} {
		mu.Lock()
		clear(got)
		mu.Unlock()
		frames, stamps := framesOf(t, 5)
		began := time.Now()
		r, err := Run(t.Context(),
			Config{Addr: addr, Frames: frames, Cycle: true, Streams: &Streams{Stamps: stamps, Count: 3}, Conns: conns,
				Rate: 300, Duration: 200 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		// Each stream has 100 frames a second; the last is due at the end of the run.
		const each = 20
		mu.Lock()
		if len(got) != 3 || len(r.PerStream) != 3 {
			t.Fatalf("%d streams came, %d are counted", len(got), len(r.PerStream))
		}
		for name, all := range got {
			if len(all) < each-1 || len(all) > each {
				t.Errorf("%s sent %d frames, want %d", name, len(all), each)
			}
			// Frames on two connections overtake each other.
			slices.SortFunc(all, func(a, b frame) int { return int(a.Seq - b.Seq) })
			for i, f := range all {
				if f.Seq != int64(i) || f.Keep != "latest" {
					t.Errorf("%s: frame %d is %+v", name, i, f)
				}
				if at := began.UnixMilli(); f.CapturedAt < at || f.CapturedAt > at+2000 ||
					conns == 0 && i > 0 &&
						(f.CapturedAt-all[i-1].CapturedAt < 9 || f.CapturedAt-all[i-1].CapturedAt > 11) {
					t.Errorf("%s: frame %d was captured at %d, the run began at %d", name, i, f.CapturedAt, at)
				}
			}
			if conns == 0 && (all[0].data == all[1].data || all[0].data != all[5].data) {
				t.Errorf("%s does not send all frames in turn: %v", name, all[:6])
			}
		}
		mu.Unlock()
		var sum FramesOf
		for _, s := range r.PerStream {
			sum.Answered += s.Answered
			sum.Superseded += s.Superseded
			sum.Failed += s.Failed
		}
		if sum.Failed != 3 || sum.Superseded != 15 || sum.Answered != r.Latency.Count() || r.Superseded != 15 ||
			r.Refusal.Count() != 3 || r.Failed > 3 {
			t.Errorf("%+v of the streams, %d superseded, %d answered, %d refused", sum, r.Superseded, r.Latency.Count(),
				r.Refusal.Count())
		}
		if len(r.Faults) != 1 || r.Faults[0] != (Fault{shiva.ContainerFailed, 3, "no"}) {
			t.Errorf("faults %+v", r.Faults)
		}
	}
	frames, stamps := framesOf(t, 2)
	for name, c := range map[string]Config{
		"connections":  {Frames: frames, Streams: &Streams{Stamps: stamps, Count: 3}, Conns: 4},
		"stamps":       {Frames: frames, Streams: &Streams{Stamps: stamps[:1]}},
		"too many":     {Frames: frames, Streams: &Streams{Stamps: stamps, Count: MaxStreams + 1}},
		"gathered":     {Frames: frames, Streams: &Streams{Stamps: stamps}, Gather: true},
		"over HTTP":    {Frames: frames, Streams: &Streams{Stamps: stamps, Each: func(FrameAnswer) {}}, Wire: HTTP},
		"in turn":      {Frames: frames, Cycle: true, Gather: true},
		"and compared": {Frames: frames, Cycle: true, Check: same},
	} {
		if _, err := Run(t.Context(), c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Each receives what the server reports about every frame, in the order of the answers.
func TestEach(t *testing.T) {
	addr := answering(t, 1000, func(q *shiva.Message) *shiva.Message {
		seq := jsonscan.Field(q.Metadata, "seq")
		if n, _ := strconv.Atoi(strings.TrimSpace(string(seq))); n%3 > 0 {
			return faulty(shiva.Superseded, "by another")
		}
		return &shiva.Message{Namespace: "m", Metadata: fmt.Appendf(nil, `{"seq":%s,"age_ms":1.5,"skipped":2}`, seq)}
	})
	frames, stamps := framesOf(t, 1)
	next := map[int]int64{}
	r, err := Run(t.Context(),
		Config{Addr: addr, Frames: frames, Conns: 3, Rate: 600, Duration: 200 * time.Millisecond, Grace: time.Minute,
			Streams: &Streams{Stamps: stamps, Each: func(s FrameAnswer) {
				if s.Seq != next[s.Stream] || s.At < s.Due || s.Due > 200*time.Millisecond {
					t.Errorf("%+v, want frame %d", s, next[s.Stream])
				}
				if good := s.Fault == "" && s.Age == 1500*time.Microsecond && s.Skipped == 2; good != (s.Seq%3 == 0) ||
					!good && s.Fault != "Superseded" {
					t.Errorf("%+v", s)
				}
				next[s.Stream]++
			}}})
	if err != nil {
		t.Fatal(err)
	}
	// 40 frames of each stream, except the one due at the end.
	if len(next) != 3 || next[0] < 39 || next[1] < 39 || next[2] < 39 || r.Lost != 0 || r.Failed != 0 {
		t.Errorf("frames of streams: %v, lost %d, failed %d (%s)", next, r.Lost, r.Failed, r.Failure)
	}
	for metadata, want := range map[string]string{`{"seq":5}`: "frame 0 of stream 0 was answered as 5",
		`{}`: "knows no streams", `[]`: "metadata of an answer"} {
		addr := answering(t, 1000, func(*shiva.Message) *shiva.Message {
			return &shiva.Message{Namespace: "m", Metadata: []byte(metadata)}
		})
		_, err := Run(t.Context(),
			Config{Addr: addr, Frames: frames, Streams: &Streams{Stamps: stamps, Each: func(FrameAnswer) {}},
				Duration: time.Minute})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", metadata, err, want)
		}
	}
}

// Errors are counted by kind, with the first text of each kind, however many pieces they arrive in.
func TestFaultsByKind(t *testing.T) {
	length, least := 500*time.Millisecond, int64(240) // of 250
	if !budgettest.Whole() {
		length, least = length/4, 52 // of 62
	}
	for _, step := range []int{1 << 20, 5} {
		n := 0
		addr := answering(t, step, func(*shiva.Message) *shiva.Message {
			n++
			switch {
			case n%4 == 0:
				return faulty(shiva.Overloaded, fmt.Sprintf("busy %d", n))
			case n%2 == 0:
				return faulty(fmt.Sprintf("Kind%d", n%(5*maxKinds)), strings.Repeat("x", 100))
			default:
				return &shiva.Message{Namespace: "m", Metadata: []byte(`{"type":"not an error"}`)}
			}
		})
		r, err := Run(t.Context(),
			Config{Addr: addr, Frames: [][]byte{small}, Rate: 2000, Even: true, Duration: length})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Faults) > maxKinds+1 || r.Faults[0].Kind != shiva.Overloaded || r.Faults[0].First != "busy 4" ||
			r.Faults[0].Count < least {
			t.Errorf("in pieces of %d: %d kinds, the first %+v", step, len(r.Faults), r.Faults[0])
		}
		var all int64
		for _, f := range r.Faults {
			all += f.Count
		}
		if all != r.Refusal.Count() || r.Failure != "Kind2: "+strings.Repeat("x", 100) {
			t.Errorf("%d errors by kind, %d refusals, the first %q", all, r.Refusal.Count(), r.Failure)
		}
	}
}

// A run that is stopped, or whose server closes the connection, returns its results so far.
func TestEarlyEnd(t *testing.T) {
	n := 0
	leaves := answering(t, 1<<20, func(*shiva.Message) *shiva.Message {
		if n++; n > 50 {
			return nil
		}
		return &shiva.Message{Namespace: "m"}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	silent := serve(t, func(c net.Conn) {
		io.ReadFull(c, make([]byte, len(small)))
		cancel()
		io.Copy(io.Discard, c)
	})
	for _, tt := range []struct {
		name, addr string
		ctx        context.Context
		want       error
		lost       bool
	}{
		{"the server leaves", leaves, t.Context(), io.ErrUnexpectedEOF, true},
		{"stopped", silent, ctx, context.Canceled, false},
	} {
		live := &Live{}
		r, err := Run(tt.ctx,
			Config{Addr: tt.addr, Frames: [][]byte{small}, Rate: 500, Even: true, Duration: time.Minute, Live: live})
		if !errors.Is(err, tt.want) || r == nil {
			t.Fatalf("%s: result %v, error %v", tt.name, r, err)
		}
		if r.Elapsed <= 0 || r.Elapsed > 30*time.Second || (r.Lost > 0) != tt.lost ||
			tt.lost && r.Latency.Count() != 50 {
			t.Errorf("%s: after %v, lost %d, %d answers", tt.name, r.Elapsed, r.Lost, r.Latency.Count())
		}
	}
}

// Live receives the answers while the run goes on, each at most once.
func TestLive(t *testing.T) {
	live := &Live{}
	var answers, failed int64
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			m := live.Take()
			answers, failed = answers+m.Latency.Count(), failed+m.Failed
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	n := 0
	addr := answering(t, 1<<20, func(*shiva.Message) *shiva.Message {
		if n++; n%2 == 0 {
			return faulty(shiva.Overloaded, "busy")
		}
		return &shiva.Message{Namespace: "m"}
	})
	r, err := Run(t.Context(),
		Config{Addr: addr, Frames: [][]byte{small}, Rate: 1000, Even: true, Duration: 5 * tellEvery, Live: live})
	close(stop)
	watching.Wait()
	if err != nil {
		t.Fatal(err)
	}
	// Answers after Live's last update are only in the result.
	if all := r.Latency.Count(); answers == 0 || failed == 0 || answers > all || failed > r.Refusal.Count() {
		t.Errorf("%d answers and %d errors while it went on, %d and %d in the end", answers, failed, all,
			r.Refusal.Count())
	}
}

// Over HTTP, a request goes to a connection with no request in flight, if there is one.
func TestIdleConnectionsFirst(t *testing.T) {
	question, reply := []byte("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), []byte("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
	var mu sync.Mutex
	slow, answers := true, 0 // answers: of the slow connection
	addr := serve(t, func(c net.Conn) {
		p, mine := make([]byte, len(question)), false
		for {
			if _, err := io.ReadFull(c, p); err != nil {
				return
			}
			mu.Lock()
			first := slow
			slow, mine = false, mine || first
			if mine {
				answers++
			}
			mu.Unlock()
			if first {
				time.Sleep(300 * time.Millisecond)
			}
			if _, err := c.Write(reply); err != nil {
				return
			}
		}
	})
	r, err := Run(t.Context(),
		Config{Wire: HTTP, Addr: addr, Frames: [][]byte{question}, Conns: 8, Rate: 200, Even: true,
			Duration: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	// With connections in turn, one in eight of the 60 requests would wait behind the slow one.
	if answers > 3 || r.Latency.Count() != 59 {
		t.Errorf("%d of %d requests went to the connection that was busy", answers, r.Latency.Count())
	}
}
