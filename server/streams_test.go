package server

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestStreamThroughEveryDoor: the frames of one stream arrive through all doors. The newest wins,
// the others are told which frame superseded them, and the answer counts these.
func TestStreamThroughEveryDoor(t *testing.T) {
	s := start(t, nil)
	g := newStage(t, s, "m", 1)
	doors := cameraDoors(t, s)
	// On a Shiva connection the others would wait behind it.
	busy := doors[4].ask("m", frame{100, nil})
	g.taken(1)
	var before <-chan shown
	began := time.Now()
	for i, d := range doors {
		answer := d.ask("m",
			frameOf("cam", i, "user", "ann", "keep", "latest", "captured_at", began.Add(-time.Second).UnixMilli()))
		g.taken(2 + i)
		if before != nil {
			g.expect(before, doors[i-1].name, fmt.Sprintf(supersededAt[doors[i-1].name], strconv.Itoa(i)))
		}
		before = answer
	}
	g.answer(0, 100)
	g.answer(0, int32(len(doors)-1))
	<-busy
	got := g.expect(before, "the newest",
		fmt.Sprintf("frame %d is %d, skipped %d", len(doors)-1, len(doors)-1, len(doors)-1))
	if most := time.Since(began) + 1100*time.Millisecond; got.age < 999 || got.age > float64(most/time.Millisecond) {
		t.Errorf("the frame was taken a second before it was sent, and is %.1f ms old", got.age)
	}
}

// TestSupersededByAnID: a frame without a number is identified by its request's id.
func TestSupersededByAnID(t *testing.T) {
	s := start(t, nil)
	g := newStage(t, s, "m", 1)
	doors := cameraDoors(t, s)
	// On a Shiva connection the others would wait behind it.
	busy := doors[4].ask("m", frame{100, nil})
	g.taken(1)
	for i, d := range doors[:4] {
		f := frameOf("cam", i, "keep", int64(1))
		delete(f.keys, "seq")
		answer := d.ask("m", f)
		g.taken(2 + 2*i)
		f = frameOf("cam", 50+i, "keep", int64(1))
		delete(f.keys, "seq")
		f.keys["stream"] = "cam"
		newer := doors[2].ask("m", f) // which has an id
		g.taken(3 + 2*i)
		g.expect(answer, d.name, fmt.Sprintf(supersededAt[d.name], strconv.Quote(fmt.Sprint("frame ", 50+i))))
		defer func() { <-newer }()
	}
	g.answer(0, 100)
	g.answer(0, 53)
	<-busy
}

// TestStreamOrderOverDoors: a frame is answered after the older one, which arrived through another
// door and is executed for longer by another replica.
func TestStreamOrderOverDoors(t *testing.T) {
	s := start(t, nil)
	g := newStage(t, s, "m", 2)
	doors := cameraDoors(t, s)
	taken := 0
	for i, first := range doors {
		second := doors[(i+1)%len(doors)]
		one := first.ask("m", frameOf("cam", 2*i, "user", "ann")) // the library has users, too
		taken++
		g.taken(taken)
		two := second.ask("m", frameOf("cam", 2*i+1, "user", "ann"))
		taken++
		g.taken(taken)
		slow := 0
		budgettest.Until(t, "both to execute", func() bool { return len(g.batches[0]) == 1 && len(g.batches[1]) == 1 })
		b := <-g.batches[0]
		x, _ := tensor.Values[int32](b.Parts[0].Inputs[0])
		g.batches[0] <- b
		if x[0] != int32(2*i) {
			slow = 1
		}
		g.answer(1-slow, int32(2*i+1))
		select {
		case got := <-two:
			t.Errorf("%s: %v is answered before the older frame, by %s", second.name, got, first.name)
		case <-time.After(30 * time.Millisecond):
		}
		g.answer(slow, int32(2*i))
		g.expect(one, first.name, fmt.Sprintf("frame %d is %d, skipped 0", 2*i, 2*i))
		g.expect(two, second.name, fmt.Sprintf("frame %d is %d, skipped 0", 2*i+1, 2*i+1))
	}
}

// TestStreamOfAnApplicationOverDoors: a policy sends an older frame to one model, and a newer one,
// which arrived through another door, to a faster model. They are answered in order, unless the
// newer one's deadline passes first.
func TestStreamOfAnApplicationOverDoors(t *testing.T) {
	s := start(t, nil)
	slow, fast := newStage(t, s, "slow", 1), newStage(t, s, "fast", 1)
	if err := s.SetApplication(t.Context(),
		Application{Name: "app", Models: []string{"slow", "fast"}, Policy: "epsilon-greedy"}); err != nil {
		t.Fatal(err)
	}
	doors := cameraDoors(t, s)
	for i, first := range doors {
		second := doors[(i+1)%len(doors)]
		one := first.ask("app", frameOf("cam", 2*i, "user", "ann", "candidate_models", "slow"))
		slow.taken(i + 1)
		two := second.ask("app", frameOf("cam", 2*i+1, "user", "ann", "candidate_models", "fast"))
		fast.taken(2*i + 1)
		// Μs.
		late := doors[4].ask("app",
			frameOf("cam", 90, "user", "ann", "candidate_models", "fast", "timeout", int64(1e5)))
		fast.taken(2*i + 2)
		fast.answer(0, int32(2*i+1))
		fast.answer(0, 90)
		select {
		case got := <-late:
			if got.err == nil || !strings.Contains(got.err.text, "while the answer waited for that of an older frame") {
				t.Errorf("got %v (%v), expected the end of its time", got, got.err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the answer that waits has none when its time is over")
		}
		select {
		case got := <-two:
			t.Errorf("%s: %v is answered before the older frame, by %s", second.name, got, first.name)
		case <-time.After(30 * time.Millisecond):
		}
		slow.answer(0, int32(2*i))
		slow.expect(one, first.name, fmt.Sprintf("frame %d is %d, skipped 0", 2*i, 2*i))
		fast.expect(two, second.name, fmt.Sprintf("frame %d is %d, skipped 0", 2*i+1, 2*i+1))
	}
}

// TestApplicationOfASlowAndAFastModel: answers of the fast model supersede the older frame that the
// slow one executes, once there are as many as the models' settings allow.
func TestApplicationOfASlowAndAFastModel(t *testing.T) {
	s := start(t, func(c *config.Config) { c.Defaults.Keep = setting.KeepLatest })
	slow, fast := newStage(t, s, "slow", 1), newStage(t, s, "fast", 1)
	if err := s.SetApplication(t.Context(),
		Application{Name: "app", Models: []string{"slow", "fast"}, Policy: "epsilon-greedy"}); err != nil {
		t.Fatal(err)
	}
	doors := cameraDoors(t, s)
	var frames []<-chan shown
	for i, on := range []*stage{slow, fast, fast} {
		frames = append(frames, doors[1].ask("app", frameOf("cam", i, "candidate_models", on.model)))
		on.taken(max(1, i))
		if on == fast {
			fast.answer(0, int32(i))
		}
	}
	fast.expect(frames[0], "the frame of the slow model", fmt.Sprintf(supersededAt["rest"], "2"))
	fast.expect(frames[1], "the older answer", "frame 1 is 1, skipped 1")
	fast.expect(frames[2], "the newer answer", "frame 2 is 2, skipped 0")
	slow.answer(0, 0)
}

// TestSupersededKeepsItsPlace: on one Shiva connection answers leave in the order of the requests,
// even that of a superseded frame, whose memory is freed earlier.
func TestSupersededKeepsItsPlace(t *testing.T) {
	s := start(t, nil)
	g := newStage(t, s, "m", 1)
	other := newStage(t, s, "other", 1)
	l := newLine(t, s)
	l.write(frame{100, nil}.message(t, "other"))
	l.write(frame{101, nil}.message(t, "m"))
	g.taken(1)
	const frames = 20
	var used int64 // with one frame
	for i := range frames {
		l.write(frameOf("cam", i, "keep", "latest").message(t, "m"))
		if g.taken(2 + i); i == 0 {
			used = s.pool.InUse()
		}
	}
	const spare = 2 * 64 // messages that the loop keeps for the next ones
	budgettest.Until(t, "the bytes of superseded frames to be free", func() bool {
		return s.pool.InUse() <= used+spare
	})
	g.answer(0, 101)
	g.answer(0, frames-1)
	other.answer(0, 100)
	want := []string{"frame 0 is 100, skipped 0", "frame 0 is 101, skipped 0"}
	for i := 1; i < frames; i++ {
		want = append(want, fmt.Sprintf("Superseded 409 by %d", i))
	}
	want = append(want, fmt.Sprintf("frame %d is %d, skipped %d", frames-1, frames-1, frames-1))
	for i, w := range want {
		if got := l.read(); got.String() != w {
			t.Errorf("answer %d is %v (%v), expected %s", i, got, got.err, w)
		}
	}
}

// TestStreamOnModelStreamInfer: frames of one ModelStreamInfer are ordered as they were sent, and
// are answered in that order.
func TestStreamOnModelStreamInfer(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	g := newStage(t, s, "m", 1)
	stream, err := newGRPC(t, s.Addrs().GRPC[0]).client.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const frames = 50 // of each stream; as many in flight as grpc.in_flight_per_stream
	send := func(f frame) {
		t.Helper()
		if err := stream.Send(f.question(t, "m")); err != nil {
			t.Fatal(err)
		}
	}
	read := func() shown {
		t.Helper()
		a, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return shownOn(a)
	}
	taken := 0
	for round := range budgettest.Rounds(100) {
		send(frame{100, nil})
		taken++
		g.taken(taken)
		for i := range frames {
			send(frameOf(fmt.Sprint("cam ", round), i, "keep", "latest"))
		}
		taken += frames
		g.taken(taken)
		g.answer(0, 100)
		g.answer(0, frames-1)
		want := "frame 0 is 100, skipped 0"
		for i := range frames {
			if got := read(); got.String() != want {
				t.Fatalf("round %d: answer %d is %v (%v), expected %s", round, i, got, got.err, want)
			}
			want = fmt.Sprintf(" 0 by %d", i+1)
		}
		want = fmt.Sprintf("frame %d is %d, skipped %d", frames-1, frames-1, frames-1)
		if got := read(); got.String() != want {
			t.Fatalf("round %d: the newest is answered %v (%v), expected %s", round, got, got.err, want)
		}
	}
	if n := stats(s, "m").Reordered; n > 0 {
		t.Errorf("%d frames were submitted after newer ones", n)
	}
}

// A line is a Shiva connection whose answers are read one by one.
type line struct {
	t       *testing.T
	conn    net.Conn
	decoder *shiva.Decoder
	in      []byte
}

func newLine(t *testing.T, s *Server) *line {
	t.Helper()
	return newLineFrom(t, s, "127.0.0.1")
}

// newLineFrom returns a line from another machine.
func newLineFrom(t *testing.T, s *Server, host string) *line {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", s.Addrs().TCP[0].String())
	if err != nil {
		t.Fatal(err)
	}
	l := &line{t: t, conn: conn, decoder: shiva.NewDecoder(shiva.DecoderConfig{})}
	t.Cleanup(func() {
		l.conn.Close()
		l.decoder.Close()
	})
	return l
}

func (l *line) write(m *shiva.Message) {
	l.t.Helper()
	b, err := shiva.AppendMessage(nil, m)
	if err == nil {
		_, err = l.conn.Write(b)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *line) read() shown {
	l.t.Helper()
	_ = l.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	for {
		n, m, err := l.decoder.Push(l.in)
		l.in = l.in[n:]
		if err != nil {
			l.t.Fatal(err)
		}
		if m != nil {
			defer m.Release()
			return shownBy(l.t, m)
		}
		if len(l.in) > 0 {
			continue
		}
		b := make([]byte, 4096)
		if n, err = l.conn.Read(b); err != nil {
			l.t.Fatal(err)
		}
		l.in = b[:n]
	}
}

// TestStreamsAreTheirClients: one name is another stream for another user, machine and model.
func TestStreamsAreTheirClients(t *testing.T) {
	s := start(t, nil)
	g, other := newStage(t, s, "m", 1), newStage(t, s, "other", 1)
	doors := cameraDoors(t, s)
	for i, busy := range []*stage{g, other} {
		answer := doors[4].ask(busy.model, frame{int32(100 + i), nil})
		defer func() { <-answer }()
		busy.taken(1)
	}
	away := newLineFrom(t, s, "127.0.0.2")
	var frames []<-chan shown
	for i, user := range []string{"ann", "bob", ""} {
		f := frameOf("cam", 1, "keep", "latest", "user", user)
		frames = append(frames, doors[1].ask("m", f))
		g.taken(2 + i)
	}
	frames = append(frames, doors[1].ask("other", frameOf("cam", 1, "keep", "latest")))
	away.write(frameOf("cam", 1, "keep", "latest").message(t, "m"))
	g.taken(5)
	other.taken(2)
	if n := stats(s, "m").QueueRows; n != 4 {
		t.Errorf("%d frames of four streams wait", n)
	}
	// The user is the same on another machine.
	away.write(frameOf("cam", 2, "keep", "latest", "user", "ann").message(t, "m"))
	g.expect(frames[0], "Ann's older frame", " 409 by 2")
	g.answer(0, 100)
	other.answer(0, 101)
	other.answer(0, 1)
	g.answer(0, 2) // in place of the older one
	g.answer(0, 1)
	g.answer(0, 1)
	g.answer(0, 1)
	for _, f := range frames[1:] {
		g.expect(f, "a frame of a stream of its own", "frame 1 is 1, skipped 0")
	}
	for _, want := range []string{"frame 1 is 1, skipped 0", "frame 2 is 2, skipped 1"} {
		if got := away.read(); got.String() != want {
			t.Errorf("got %v (%v), expected %s", got, got.err, want)
		}
	}
}

// TestFramesThatAreNone: every door reports what is wrong with a frame, and other clients are not
// affected.
func TestFramesThatAreNone(t *testing.T) {
	t.Parallel() // it waits
	s := start(t, func(c *config.Config) { c.Defaults.StreamsPerClient = 2 })
	g := newStage(t, s, "m", 1)
	doors := cameraDoors(t, s)
	for _, d := range doors {
		for _, c := range []struct {
			key, words string
			value      any
		}{
			{"stream", "expected a string of 1 to 256 bytes, got", ""},
			{"stream", "expected a string of 1 to 256 bytes, got", strings.Repeat("n", 257)},
			{"stream", "expected a string of 1 to 256 bytes, got", strings.Repeat("n", 1<<19)},
			{"keep", `expected "all", "latest" or a whole number from 1 to 1024, got`, true},
			{"keep", `expected "all", "latest" or a whole number from 1 to 1024, got`, "newest"},
			{"keep", `expected "all", "latest" or a whole number from 1 to 1024, got`, int64(0)},
			{"keep", `expected "all", "latest" or a whole number from 1 to 1024, got`, int64(1025)},
			{"keep", `expected "all", "latest" or a whole number from 1 to 1024, got`, 1.5},
			{"keep", `expected "all", "latest" or a whole number from 1 to 1024, got`, ""},
			{"captured_at", "expected a number of milliseconds since 1970, got", "today"},
			{"captured_at", "expected a number of milliseconds since 1970, got", true},
			{"seq", "expected a whole number from 0 to 9223372036854775807, got", int64(-1)},
		} {
			got := d.send("m", frameOf("cam", 1, c.key, c.value))
			if got.err == nil || !strings.Contains(got.err.text, c.words) || !strings.Contains(got.err.text, c.key) ||
				len(got.err.text) > 500 {
				t.Errorf("%s: %s = %.20v: got %v (%.200s), expected %q", d.name, c.key, c.value, got, got.err, c.words)
			}
		}
	}
	if n := stats(s, "m").Submitted; n > 0 {
		t.Errorf("%d of them reached the model", n)
	}
	for i, d := range doors { // without a stream, the request is no frame
		for _, c := range []struct {
			key   string
			value any
		}{{"seq", int64(1)}, {"captured_at", time.Now().UnixMilli()}, {"keep", "all"}} {
			none := d.ask("m", frame{int32(i), map[string]any{c.key: c.value}})
			budgettest.Until(t, "a request", func() bool { return len(g.batches[0]) == 1 })
			g.answer(0, int32(i))
			if got := <-none; got.err != nil || got.value != int32(i) {
				t.Errorf("%s: %s without a stream: got %v (%v)", d.name, c.key, got, got.err)
			}
		}
	}
	taken := 3 * len(doors)
	for i, d := range doors {
		// A frame captured in the future, by a clock that is ahead, has the age 0. A frame whose
		// number goes back is answered in the order of arrival, and counted.
		other := doors[(i+1)%len(doors)]
		later := d.ask("m", frameOf("cam", 7, "user", "ann", "captured_at", time.Now().Add(time.Hour).UnixMilli()))
		taken++
		g.taken(taken)
		back := other.ask("m", frameOf("cam", 3, "user", "ann"))
		taken++
		g.taken(taken)
		// The age of a frame from a client whose clock was never set counts from its arrival.
		second := other.ask("m", frameOf("second", 1, "user", "ann", "captured_at", int64(86_400_000)))
		taken++
		g.taken(taken)
		// On a Shiva connection its answer waits behind the first.
		tooMany := d.ask("m", frameOf("third", 1, "user", "ann"))
		budgettest.Until(t, "a refusal", func() bool {
			return stats(s, "m").Outcomes[scheduler.OutcomeStreams] == uint64(i+1)
		})
		for _, value := range []int32{7, 3, 1} {
			g.answer(0, value)
		}
		if got := g.expect(later, "from the future", "frame 7 is 7, skipped 0"); got.age != 0 {
			t.Errorf("%s: it is %v ms old", d.name, got.age)
		}
		g.expect(back, "a number that goes back", "frame 3 is 3, skipped 0")
		if got := g.expect(second, "the second stream", "frame 1 is 1, skipped 0"); got.age < 0 ||
			got.age > float64(time.Hour/time.Millisecond) {
			t.Errorf("%s: a frame of 1970 is %v ms old", other.name, got.age)
		}
		m, _ := s.Scheduler().Model(scheduler.ModelID{Name: "m", Version: "1"})
		if list := m.Streams(2); !slices.ContainsFunc(list, func(s scheduler.StreamStats) bool {
			return s.Undated == 1
		}) {
			t.Errorf("%s: expected a frame without a time, got %+v", other.name, list)
		}
		if got := <-tooMany; got.err == nil || !strings.Contains(got.err.text, "overloaded: the limit streams_per_client is 2, this request would need 3") {
			t.Errorf("%s: a third stream: %v (%v)", d.name, got, got.err)
		}
		if n := stats(s, "m").Reordered; int(n) != 1+i {
			t.Errorf("%s: %d numbers went back, expected %d", d.name, n, 1+i)
		}
		// The streams are idle now, and the older one makes room for the third.
		third := d.ask("m", frameOf("third", 1, "user", "ann"))
		taken++
		g.taken(taken)
		g.answer(0, 1)
		g.expect(third, "the third stream", "frame 1 is 1, skipped 0")
	}
}

// TestCameraThatCancels: at a door where a client can cancel a request, a waiting frame leaves the
// queue, no newer frame waits for an executing one, and the stream continues.
func TestCameraThatCancels(t *testing.T) {
	s := start(t, nil)
	g := newStage(t, s, "m", 1)
	taken := 0
	for _, d := range cameraDoors(t, s)[1:] { // on a Shiva connection it hangs up
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan shown, 2)
		for i := range 2 {
			go func() { left <- d.do(ctx, "m", frameOf("cam", i)) }()
			taken++
			g.taken(taken)
		}
		leave()
		for range 2 {
			if got := <-left; got.err == nil {
				t.Errorf("%s: a client that has gone is answered %v", d.name, got)
			}
		}
		budgettest.Until(t, "the frames to be answered", func() bool { return stats(s, "m").Requests == 0 })
		next := d.ask("m", frameOf("cam", 2))
		taken++
		g.taken(taken)
		g.answer(0, 0) // too late for any client
		g.answer(0, 2)
		g.expect(next, d.name, "frame 2 is 2, skipped 0")
	}
	model, _ := s.Scheduler().Model(scheduler.ModelID{Name: "m", Version: "1"})
	for _, stream := range model.Streams(10) {
		if stream.Waiting > 0 {
			t.Errorf("stream %s has %d frames waiting", stream.Name, stream.Waiting)
		}
	}
}

// TestCameraThatLeaves: the frames of a client that hangs up never reach the model, and a client
// that never reads its answers has no effect on the stream of another.
func TestCameraThatLeaves(t *testing.T) {
	s := start(t, func(c *config.Config) { c.TCP.CancelOnClose = true })
	g := newStage(t, s, "m", 1)
	doors := cameraDoors(t, s)
	busy := doors[4].ask("m", frame{100, nil})
	g.taken(1)
	leaves, deaf := newLine(t, s), newLine(t, s)
	for i := range 10 {
		leaves.write(frameOf("leaves", i).message(t, "m"))
		deaf.write(frameOf("deaf", 200+i, "keep", "latest").message(t, "m"))
	}
	g.taken(21)
	leaves.conn.Close()
	budgettest.Until(t, "the frames to leave the queue", func() bool { return stats(s, "m").QueueRows == 1 })
	reads := doors[1].ask("m", frameOf("reads", 1, "keep", "latest"))
	g.taken(22)
	g.answer(0, 100)
	g.answer(0, 209)
	g.answer(0, 1)
	g.expect(reads, "the client that reads", "frame 1 is 1, skipped 0")
	<-busy
}
