package tcp

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

func TestOneRowLosesItsBatchDimensionAgain(t *testing.T) {
	onAll(t, testOneRowLosesItsBatchDimensionAgain)
}

func testOneRowLosesItsBatchDimensionAgain(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	r := newRig(t, nil)
	r.model("m", floats("x"), r.Echo)
	c := r.dial()
	c.send(message("m", `{"id":"a-1"}`, 1, 2, 3, 4))
	m := c.next()
	if got := values(t, m); fmt.Sprint(got) != "[1 2 3 4]" {
		t.Errorf("values: %v", got)
	}
	if got := m.Tensors[0].Shape.String(); got != "[4]" {
		t.Errorf("shape: expected [4], got %s", got)
	}
	want := `{"id":"a-1","model_name":"m","model_version":"1","__tensors__":["x"]}`
	if m.Namespace != "m" || string(m.Metadata) != want {
		t.Errorf("expected m %s, got %s %s", want, m.Namespace, m.Metadata)
	}
	batch, _ := tensor.FromSlice(tensor.Shape{2, 4}, []float32{1, 2, 3, 4, 5, 6, 7, 8})
	c.send(&shiva.Message{Namespace: "v2/models/m/versions/1/infer", Tensors: []tensor.Tensor{batch}})
	m = c.next()
	if got := m.Tensors[0].Shape.String(); got != "[2, 4]" {
		t.Errorf("shape: expected [2, 4], got %s", got)
	}
}

// A request of no rows is answered with no rows, in its place in the line, and no container is
// asked.
func TestNoRows(t *testing.T) { onAll(t, testNoRows) }

func testNoRows(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	r := newRig(t, nil)
	spec := floats("x")
	spec.Outputs = []tensor.Spec{{Name: "y", DType: tensor.Int64, Shape: tensor.Shape{-1, 2, 3}},
		{Name: "label", DType: tensor.Bytes, Shape: tensor.Shape{-1}}}
	none := func(*scheduler.Batch) error { t.Error("a batch of nothing was sent"); return nil }
	r.model("m", spec, none)
	open := floats("x")
	open.Outputs = []tensor.Spec{spec.Outputs[1], {Name: "y", DType: tensor.Int64, Shape: tensor.Shape{-1, -1, 3}}}
	r.model("open", open, none)
	c := r.dial()
	for id := range 3 {
		c.send(&shiva.Message{Namespace: "m", Metadata: fmt.Appendf(nil, `{"id":%d}`, id),
			Tensors: []tensor.Tensor{{DType: tensor.Float32, Shape: tensor.Shape{0, 4}}}})
	}
	for id := range 3 {
		m := c.next()
		if m == nil || m.Namespace != "m" || len(m.Tensors) != 1 || fmt.Sprint(m.Tensors[0].Shape) != "[0, 2, 3]" ||
			string(jsonscan.Field(m.Metadata, "id")) != fmt.Sprint(id) {
			t.Fatalf("answer %d: %s", id, describeMessage(m))
		}
	}
	// A shape that only an execution tells is not made up.
	c.send(&shiva.Message{Namespace: "open",
		Tensors: []tensor.Tensor{{DType: tensor.Float32, Shape: tensor.Shape{0, 4}}}})
	if f := c.fault("InvalidInput"); !strings.Contains(f.Message, `output "y" int64 [-1, -1, 3]`) {
		t.Errorf("no rows, and an output of open size: %s", f.Message)
	}
}

// Answers leave in the order of the requests although the second model answers first.
func TestAnswersKeepTheOrderOfQuestions(t *testing.T) { onAll(t, testAnswersKeepTheOrderOfQuestions) }

func testAnswersKeepTheOrderOfQuestions(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	r := newRig(t, nil)
	held := make(chan *scheduler.Batch, 10)
	r.model("slow", floats("x"), func(b *scheduler.Batch) error { held <- b; return nil })
	r.model("fast", floats("x"), r.Echo)
	c := r.dial()
	c.send(message("slow", `{"id":1}`, 1, 1, 1, 1))
	for i := range 5 {
		c.send(message("fast", fmt.Sprintf(`{"id":%d}`, i+2), 2, 2, 2, 2))
	}
	c.send(message("!live", `{"id":7}`))
	c.send(message("nobody", `{"id":8}`, 1))
	b := <-held
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Fatalf("%d bytes left before the first answer", n)
	}
	if err := r.Echo(b); err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		m := c.next()
		var meta struct{ ID int }
		if err := json.Unmarshal(m.Metadata, &meta); err != nil || meta.ID != i+1 {
			t.Errorf("answer %d: %s", i+1, describeMessage(m))
		}
	}
	if m := c.next(); string(m.Metadata) != `{"id":7,"live":true}` {
		t.Errorf("!live: %s", describeMessage(m))
	}
	if e := c.fault("NotFound"); e.ID != 8.0 || e.Code != 404 {
		t.Errorf("NotFound: %+v", e)
	}
}

func TestSemanticFaultsKeepTheConnection(t *testing.T) { onAll(t, testSemanticFaultsKeepTheConnection) }

func testSemanticFaultsKeepTheConnection(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	r := newRig(t, nil)
	r.model("digits", floats("x"), r.Echo)
	c := r.dial()
	ints, _ := tensor.FromSlice(tensor.Shape{4}, []int32{1, 2, 3, 4})
	for _, tc := range []struct {
		m    *shiva.Message
		kind string
		says []string
	}{
		{message("digit", "", 1, 2, 3, 4), "NotFound", []string{`"digits"`}},
		{message("digits/7", "", 1, 2, 3, 4), "NotFound", []string{`"7"`, `"1"`}},
		{message("", "", 1, 2, 3, 4), "NotFound", []string{"empty", "digits"}},
		{message("!nonsense", ""), "NotFound", []string{"!ready"}},
		{message("digits", "", 1, 2, 3), "InvalidInput", []string{`"x"`, "float32 [-1, 4]", "float32 [3]"}},
		{&shiva.Message{Namespace: "digits", Tensors: []tensor.Tensor{ints}}, "InvalidInput", []string{"float32", "int32"}},
		{&shiva.Message{Namespace: "digits"}, "InvalidInput", []string{"expected 1 tensor", "got 0"}},
		{message("digits", `{"__tensors__":["y"]}`, 1, 2, 3, 4), "InvalidInput", []string{`"x" is missing`, `"y"`}},
		{message("digits", `{"__tensors__":["x","y"]}`, 1, 2, 3, 4), "InvalidInput", []string{"names 2", "has 1"}},
		{message("digits", `{"timeout_ms":-1}`, 1, 2, 3, 4), "InvalidInput", []string{"timeout_ms", "-1"}},
		{message("digits", `{"priority":10}`, 1, 2, 3, 4), "InvalidInput", []string{"priority", "10"}},
		{message("digits", `{"version":"9"}`, 1, 2, 3, 4), "NotFound", []string{`"9"`}},
		{message("digits", `{"version":[]}`, 1, 2, 3, 4), "InvalidInput", []string{"version"}},
	} {
		tc.m.Metadata = bytes.Replace(tc.m.Metadata, []byte("}"), []byte(`,"id":"q"}`), 1)
		c.send(tc.m)
		e := c.fault(tc.kind)
		for _, s := range tc.says {
			if !strings.Contains(e.Message, s) {
				t.Errorf("%s %s: %q does not say %s", tc.m.Namespace, tc.m.Metadata, e.Message, s)
			}
		}
		if len(tc.m.Metadata) > 0 && e.ID != "q" {
			t.Errorf("%s: the error has id %v", tc.m.Metadata, e.ID)
		}
	}
	c.send(message("digits", "", 1, 2, 3, 4))
	values(t, c.next())
}

// A protocol error is answered after the earlier answers, and then the connection ends.
func TestProtocolFaultsAreAnsweredAndClosed(t *testing.T) {
	onAll(t, testProtocolFaultsAreAnsweredAndClosed)
}

func testProtocolFaultsAreAnsweredAndClosed(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	for name, rubbish := range map[string][]byte{
		"magic":    []byte("GET / HTTP/1.1\r\n\r\n"),
		"negative": {6, 66, 11, 1, 255, 255, 255, 255, 0, 0, 83, 166},
		"dtype":    append(header(0, 1, 0), 1, 16, 0, 0, 0, 1),
		"2 GiB":    append(header(0, 1, 0), 1, 3, 0x7f, 0xff, 0xff, 0xff),
	} {
		r := newRig(t, nil)
		held := make(chan *scheduler.Batch, 1)
		r.model("m", floats("x"), func(b *scheduler.Batch) error { held <- b; return nil })
		c, other := r.dial(), r.dial()
		c.send(message("m", "", 1, 2, 3, 4))
		c.bytes(append(rubbish, "and what follows is never read"...))
		if r.net != nil {
			synctest.Wait() // the error is detected before the earlier answer is ready
		}
		if err := r.Echo(<-held); err != nil {
			t.Fatal(err)
		}
		values(t, c.next())
		want := "Protocol"
		if name == "2 GiB" {
			want = "TooLarge"
		}
		c.fault(want)
		if m := c.next(); m != nil {
			t.Errorf("%s: expected the end of the stream, got %s", name, describeMessage(m))
		}
		other.send(message("m", "", 1, 2, 3, 4))
		if err := r.Echo(<-held); err != nil {
			t.Fatal(err)
		}
		values(t, other.next())
	}
}

func header(metadata uint32, tensors, namespace byte) []byte {
	h := append([]byte{6, 66, 11, 1}, 0, 0, 0, 0, tensors, namespace)
	binary.BigEndian.PutUint32(h[4:], metadata)
	crc := byte(84 + metadata + uint32(tensors) + uint32(namespace))
	return append(h, crc, crc*2)
}

// Bad JSON has a known end: the connection continues.
func TestBadMetadataKeepsTheConnection(t *testing.T) { onAll(t, testBadMetadataKeepsTheConnection) }

func testBadMetadataKeepsTheConnection(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	r := newRig(t, nil)
	r.model("m", floats("x"), r.Echo)
	c := r.dial()
	c.send(&shiva.Message{Namespace: "m", Metadata: []byte(`{"a":`)})
	c.fault("Protocol")
	c.send(message("m", "", 1, 2, 3, 4))
	values(t, c.next())
}

func TestInFlightLimitIsAnsweredInTurn(t *testing.T) { onAll(t, testInFlightLimitIsAnsweredInTurn) }

func testInFlightLimitIsAnsweredInTurn(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	r := newRig(t, func(c *Config) { c.InFlight = 2 })
	held := make(chan *scheduler.Batch, 10)
	r.model("m", floats("x"), func(b *scheduler.Batch) error { held <- b; return nil })
	c := r.dial()
	var questions []byte
	for i := range 4 { // in one write, so that all arrive before the first is answered
		questions, _ = shiva.AppendMessage(questions, message("m", "", float32(i), 0, 0, 0))
	}
	c.bytes(questions)
	rows := 0
	for rows < 2 {
		b := <-held
		rows += b.Rows
		if err := r.Echo(b); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		if got := values(t, c.next()); got[0] != float32(i) {
			t.Errorf("answer %d: %v", i, got)
		}
	}
	for range 2 {
		if e := c.fault("Overloaded"); !e.Retryable || !strings.Contains(e.Message, "in_flight_per_connection) is 2") {
			t.Errorf("%+v", e)
		}
	}
}

// With cancel_on_close, the queued requests of a client that disconnects never reach a worker.
func TestLeavingClientTakesItsRequestsAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.CancelOnClose = true })
		held := make(chan *scheduler.Batch, 10)
		r.model("m", floats("x"), func(b *scheduler.Batch) error { held <- b; return nil })
		stay, leave := r.dial(), r.dial()
		for range 2 { // fills the replica's slots
			stay.send(message("m", "", 0, 0, 0, 0))
			synctest.Wait()
		}
		first := <-held
		for range 20 {
			leave.send(message("m", "", 7, 7, 7, 7))
		}
		m, _ := r.Sched.Model(scheduler.ModelID{Name: "m", Version: "1"})
		budgettest.Until(t, "20 rows to wait", func() bool { return m.Stats().QueueRows >= 20 })
		leave.Close()
		budgettest.Until(t, "the queue to lose them", func() bool { return m.Stats().QueueRows <= 1 })
		if err := r.Echo(first); err != nil {
			t.Fatal(err)
		}
		values(t, stay.next())
		if err := r.Echo(<-held); err != nil {
			t.Fatal(err)
		}
		if got := values(t, stay.next()); got[0] != 0 {
			t.Errorf("a request of the client that left was served: %v", got)
		}
	})
}

func TestConnectionLimitIsSaidAndClosed(t *testing.T) {
	onAll(t, testConnectionLimitIsSaidAndClosed)
}

func testConnectionLimitIsSaidAndClosed(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	r := newRig(t, func(c *Config) { c.Connections = 2 })
	r.model("m", floats("x"), r.Echo)
	a, b := r.dial(), r.dial()
	for _, c := range []*wire{a, b} {
		c.send(message("m", "", 1, 2, 3, 4))
		values(t, c.next())
	}
	c := r.dial()
	if e := c.fault("Overloaded"); !strings.Contains(e.Message, "tcp.connections = 2") {
		t.Errorf("%+v", e)
	}
	if m := c.next(); m != nil {
		t.Errorf("expected the end, got %s", describeMessage(m))
	}
	a.Close()
	budgettest.Until(t, "a place", func() bool {
		c := r.dial()
		b, _ := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
		if _, err := c.Write(b); err != nil {
			return false
		}
		m := c.next()
		return m != nil && m.Namespace == "m"
	})
}

// One address cannot fill the door: it gets a refusal, other addresses are accepted, and a
// connection that ends makes room.
func TestConnectionsOfOneAddress(t *testing.T) { onAll(t, testConnectionsOfOneAddress) }

func testConnectionsOfOneAddress(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	r := newRig(t, func(c *Config) { c.ConnectionsPerAddress, c.Loopback = 2, true })
	r.model("m", floats("x"), r.Echo)
	a, b := r.dial(), r.dial()
	for _, c := range []*wire{a, b} {
		c.send(message("m", "", 1, 2, 3, 4))
		values(t, c.next())
	}
	if e := r.dial().fault("Overloaded"); !strings.Contains(e.Message, "tcp.connections_per_address = 2") {
		t.Errorf("%+v", e)
	}
	if !strings.Contains(scrape(r.Metrics), `connections_closed_total{door="tcp",reason="address_limit"} 1`) {
		t.Error("it is not counted")
	}
	others := 0
	// On a Unix socket another address would need another user.
	if addr := r.door.Addrs()[0]; addr.Network() == "tcp" {
		other, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).Dial("tcp", addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		w := &wire{client: other.(client), t: t, d: shiva.NewDecoder(shiva.DecoderConfig{})}
		w.send(message("m", "", 1, 2, 3, 4))
		values(t, w.next())
		others = 1
	}
	for range 3 { // closed, half-closed with an answer due, and closed again
		a.Close()
		budgettest.Until(t, "its place", func() bool { return r.open() == 1+others })
		a = r.dial()
		a.send(message("m", "", 1, 2, 3, 4))
		_ = a.CloseWrite()
		values(t, a.next())
	}
}

// A worker that panics, on the event loop, fails its batch and nothing else.
func TestPanicInAWorkerIsAnAnswer(t *testing.T) { onAll(t, testPanicInAWorkerIsAnAnswer) }

func testPanicInAWorkerIsAnAnswer(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	r := newRig(t, nil)
	r.model("bad", floats("x"), func(b *scheduler.Batch) error { panic("boom") })
	r.model("good", floats("x"), r.Echo)
	c := r.dial()
	c.send(message("bad", "", 1, 2, 3, 4))
	if m := c.next(); m == nil || m.Namespace != "!error" {
		t.Errorf("expected an error, got %s", describeMessage(m))
	}
	c.send(message("good", "", 1, 2, 3, 4))
	values(t, c.next())
}

// A message that never becomes complete is answered, and then the connection is closed.
func TestHalfMessageIsAnsweredAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.MessageTimeout = 200 * time.Millisecond })
		r.model("m", floats("x"), r.Echo)
		c, other := r.dial(), r.dial()
		b, _ := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
		c.bytes(b[:20])
		if e := c.fault("DeadlineExceeded"); !strings.Contains(e.Message, "20 bytes") || !strings.Contains(e.Message, "tcp.message_timeout = 200ms") {
			t.Errorf("%+v", e)
		}
		if m := c.next(); m != nil {
			t.Errorf("expected the end, got %s", describeMessage(m))
		}
		other.send(message("m", "", 1, 2, 3, 4)) // an idle connection is not a half message
		values(t, other.next())
	})
}

func TestIdleConnectionIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.IdleTimeout = 200 * time.Millisecond })
		r.model("m", floats("x"), r.Echo)
		c := r.dial()
		c.send(message("m", "", 1, 2, 3, 4))
		values(t, c.next())
		if m := c.next(); m != nil {
			t.Errorf("expected the end, got %s", describeMessage(m))
		}
	})
}

// A client that requests much and reads nothing is closed; the answers that it can pile up are
// bounded; another client is served meanwhile.
func TestReaderThatStandsStillIsClosed(t *testing.T) {
	onTransports(t, testReaderThatStandsStillIsClosed)
}

func testReaderThatStandsStillIsClosed(t *testing.T, newSocketRig func(testing.TB, func(*Config)) *rig) {
	r := newSocketRig(t, func(c *Config) {
		c.OutboundBytes = 1 << 20
		c.StallTimeout = 500 * time.Millisecond
		c.InFlight = 16
	})
	spec := scheduler.Spec{
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Uint8, Shape: tensor.Shape{-1, 1 << 20}}},
	}
	r.model("big", spec, func(b *scheduler.Batch) error {
		buf, err := r.Pool.Get(b.Rows << 20)
		if err != nil {
			return err
		}
		b.Complete(
			[]tensor.Tensor{{DType: tensor.Uint8, Shape: tensor.Shape{b.Rows, 1 << 20}, Data: buf.Bytes(), Buf: buf}},
			nil)
		return nil
	})
	r.model("m", floats("x"), r.Echo)
	greedy, other := r.dial(), r.dial()
	_ = greedy.client.(interface{ SetReadBuffer(int) error }).SetReadBuffer(64 << 10)
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		b, _ := shiva.AppendMessage(nil, message("big", "", 1, 2, 3, 4))
		b = bytes.Repeat(b, 100)
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := greedy.Write(b); err != nil {
					return
				}
				time.Sleep(time.Millisecond) // otherwise the server would never stop reading
			}
		}
	})
	closedBefore := func() bool {
		return r.open() < 2 && strings.Contains(scrape(r.Metrics), `connections_closed_total{door="tcp",reason="stalled"} 1`)
	}
	for end := time.Now().Add(10 * time.Second); !closedBefore(); {
		if time.Now().After(end) {
			t.Fatal("the client that does not read is still connected after 10 s")
		}
		other.send(message("m", "", 1, 2, 3, 4))
		values(t, other.next())
		if n := r.Pool.InUse(); n > 64<<20 {
			t.Fatalf("%d MiB of payload for a client that does not read", n>>20)
		}
		time.Sleep(5 * time.Millisecond) // continuous requests would take the processor from other tests
	}
	close(stop)
	greedy.Close()
	writing.Wait()
}

// The session knows of bytes that the socket has taken and its client has not read: they may be
// megabytes, which take a slow client minutes.
func TestHeldBySocket(t *testing.T) { onAll(t, testHeldBySocket) }

func testHeldBySocket(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	r := newRig(t, nil)
	r.model("m", floats("x"), r.Echo)
	c := r.dial()
	held := func() (n int) {
		onlySession(r, func(s *session) { n += s.transport.Unacknowledged() })
		return n
	}
	in, err := tensor.FromSlice(tensor.Shape{25_000, 4}, make([]float32, 100_000))
	if err != nil {
		t.Fatal(err)
	}
	c.send(&shiva.Message{Namespace: "m", Tensors: []tensor.Tensor{in}})
	budgettest.Until(t, "an answer that the client does not read", func() bool { return held() > 0 })
	values(t, c.next())
	budgettest.Until(t, "the client's side to have it", func() bool { return held() == 0 })
}

func scrape(m *metrics.Metrics) string {
	w := newRecorder()
	m.Handler().ServeHTTP(w, w.request)
	return w.Body.String()
}
