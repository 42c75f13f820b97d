package load

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/shivad/shivad/shiva/tensor"
)

// readAll feeds a wire with a stream, cut at first and then after every step bytes, and returns
// the answers.
func readAll(t *testing.T, w wire, stream []byte, first, step int) (got []string) {
	t.Helper()
	for at, upTo := 0, first; at < len(stream); upTo = min(max(at, upTo)+step, len(stream)) {
		for at < upTo {
			a, n, err := w.read(stream[at:upTo], true)
			if err != nil {
				t.Fatalf("cut at %d, then every %d: %v", first, step, err)
			}
			at += n
			switch {
			case a.done && a.fault:
				got = append(got, "fault")
			case a.done:
				got = append(got, fmt.Sprintf("%d %s", a.place, a.whole))
			}
		}
	}
	return got
}

func TestHTTPAnswersAtEveryCut(t *testing.T) {
	stream := []byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello" +
		"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n" +
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n" +
		"HTTP/1.1 404 Not Found\r\ntransfer-encoding:Chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n" +
		"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: 0\r\n\r\n")
	want := []string{"0 hello", "fault", "0 abc0123456789abcdef", "fault", "0 "}
	for first := range len(stream) + 1 {
		for _, step := range []int{1, 7, len(stream)} {
			if got := readAll(t, &httpWire{}, stream, first, step); !slices.Equal(got, want) {
				t.Fatalf("cut at %d, then every %d: got %q, want %q", first, step, got, want)
			}
		}
	}
	w := &httpWire{}
	if _, _, err := w.read([]byte("HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nlate"), false); err != nil ||
		failureOf(w) != "503 Busy: late" {
		t.Errorf("failure %q, error %v", failureOf(w), err)
	}
}

func TestNoHTTP(t *testing.T) {
	for _, bad := range []string{
		"HTTP/1.1 200 OK\r\n\r\n", "SSH-2.0\r\nContent-Length: 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
		strings.Repeat("x", 2*maxHead), "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("0", 2*headStep), "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n5\r\n",
	} {
		w, p := &httpWire{}, []byte(bad)
		var err error
		for err == nil && len(p) > 0 {
			var n int
			_, n, err = w.read(p, false)
			p = p[n:]
		}
		if !errors.Is(err, errOutOfStep) {
			t.Errorf("%.60q: error %v", bad, err)
		}
	}
}

// grpcServer writes the frames of a gRPC server, with another implementation of HTTP/2.
type grpcServer struct {
	bytes.Buffer
	framer *http2.Framer
	block  bytes.Buffer
	fields *hpack.Encoder
}

func newGRPCServer() *grpcServer {
	s := &grpcServer{}
	s.framer = http2.NewFramer(&s.Buffer, nil)
	s.fields = hpack.NewEncoder(&s.block)
	return s
}

func (s *grpcServer) headers(stream uint32, end bool, pairs ...string) {
	s.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		_ = s.fields.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: s.block.Bytes(),
		EndHeaders: true, EndStream: end})
}

func failureOf(w wire) string {
	kind, text := w.failure()
	return kind + ": " + text
}

// askedWire is a wire on which requests were sent, and the frames of one request.
type askedWire struct {
	*grpcWire
	frame []byte
}

// asked makes a wire with n requests in flight.
func asked(t *testing.T, n int) askedWire {
	t.Helper()
	g := askedWire{grpcWire: newGRPCWire("")}
	g.frame = g.encode(nil, []byte("question"), true)
	for range n {
		g.ready(g.frame)
		if n := g.admitted(g.frame); n != len(g.frame) {
			t.Fatalf("the window admits %d bytes of %d", n, len(g.frame))
		}
	}
	return g
}

// Streams end in any order and their frames interleave, but each request gets its own answer.
func TestGRPCAnswersAtEveryCut(t *testing.T) {
	message := func(text string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text))), text...)
	}
	s := newGRPCServer()
	_ = s.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	_ = s.framer.WriteWindowUpdate(0, 1000)
	s.headers(3, false, ":status", "200", "content-type", "application/grpc")
	s.headers(1, false, ":status", "200", "content-type", "application/grpc")
	three := message("three")
	_ = s.framer.WriteData(3, false, three[:7])
	_ = s.framer.WriteData(1, false, message("one"))
	_ = s.framer.WritePing(false, [8]byte{1, 2, 3})
	_ = s.framer.WriteData(3, false, three[7:])
	s.headers(3, true, "grpc-status", "0")
	// grpc-go does this when it has not seen the end of the request yet.
	_ = s.framer.WriteRSTStream(3, http2.ErrCodeNo)
	s.headers(5, true, ":status", "200", "grpc-status", "14", "grpc-message", "busy")
	s.headers(1, true, "grpc-status", "0")
	_ = s.framer.WriteRSTStream(7, http2.ErrCodeInternal)
	stream := s.Bytes()
	// Even with gather always on, the wire collects one answer at a time: the one on stream 1 began
	// while that on stream 3 was collected.
	want := []string{"1 three", "fault", "0 ", "fault"}
	for first := range len(stream) + 1 {
		for _, step := range []int{1, 7, len(stream)} {
			g := asked(t, 4)
			if got := readAll(t, g, stream, first, step); !slices.Equal(got, want) {
				t.Fatalf("cut at %d, then every %d: got %q, want %q", first, step, got, want)
			}
			if g.initial != 1<<20 || g.window != initialWindow+1000-4*int64(messageHead+len("question")) {
				t.Fatalf("windows %d and %d", g.initial, g.window)
			}
			ahead := g.ready(g.frame)
			wantAhead := appendFrame(appendFrame(nil, frameSettings, flagAck, nil), framePing, flagAck,
				[]byte{1, 2, 3, 0, 0, 0, 0, 0})
			if !bytes.Equal(ahead, wantAhead) {
				t.Fatalf("% x goes ahead, want % x", ahead, wantAhead)
			}
		}
	}
}

func TestGRPCFailure(t *testing.T) {
	s := newGRPCServer()
	s.headers(1, true, ":status", "200", "grpc-status", "14", "grpc-message", "busy")
	g := asked(t, 1)
	a, _, err := g.read(s.Bytes(), false)
	if err != nil || !a.done || !a.fault || failureOf(g) != "UNAVAILABLE: busy" {
		t.Errorf("%+v, failure %q, error %v", a, failureOf(g), err)
	}
	for name, write := range map[string]func(*grpcServer){
		"an answer too many": func(s *grpcServer) { s.headers(3, true, "grpc-status", "0") },
		"a frame too large":  func(s *grpcServer) { _ = s.framer.WriteData(1, false, make([]byte, maxFrame+1)) },
		"no fields of headers": func(s *grpcServer) {
			_ = s.framer.WriteRawFrame(http2.FrameHeaders, 4, 1, []byte{0xff, 0xff})
		},
		"headers in pieces": func(s *grpcServer) { _ = s.framer.WriteRawFrame(http2.FrameHeaders, 0, 1, nil) },
	} {
		s := newGRPCServer()
		write(s)
		if _, _, err := asked(t, 1).read(s.Bytes(), false); !errors.Is(err, errOutOfStep) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// A request is sent as far as both windows of the server admit. Bytes received are returned to the
// generator's own window, also while a request is partly sent.
func TestGRPCWindows(t *testing.T) {
	g := askedWire{grpcWire: newGRPCWire("")}
	g.frame = g.encode(nil, make([]byte, 200<<10), true)
	g.ready(g.frame)
	parts := func(what string, want int) {
		t.Helper()
		end := len(g.frame)
		if want+1 < len(g.marks) {
			end = g.marks[want+1]
		}
		if got := g.admitted(g.frame); got != end {
			t.Errorf("%s: %d bytes are admitted, want the %d of %d frames", what, got, end, want)
		}
	}
	update := func(write func(*grpcServer)) {
		t.Helper()
		s := newGRPCServer()
		write(s)
		if _, _, err := g.read(s.Bytes(), false); err != nil {
			t.Fatal(err)
		}
	}
	parts("64 KiB less one byte", 3)
	update(func(s *grpcServer) { _ = s.framer.WriteWindowUpdate(0, 1<<20) })
	parts("more for the connection", 3)
	update(func(s *grpcServer) { _ = s.framer.WriteWindowUpdate(1, 1+maxFrame) })
	parts("more for the stream", 5)
	update(func(s *grpcServer) { _ = s.framer.WriteWindowUpdate(3, 1<<20) })
	parts("more for another stream", 5)
	update(func(s *grpcServer) {
		_ = s.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: initialWindow + 2*maxFrame})
	})
	parts("more for all streams", 7)
	g.pending() // the acknowledgement of the settings
	g.unreturned = math.MaxInt32/2 - 999
	update(func(s *grpcServer) { _ = s.framer.WriteData(1, false, make([]byte, 1000)) })
	if ahead, want := g.pending(),
		appendFrame(nil, frameWindow, 0, binary.BigEndian.AppendUint32(nil, math.MaxInt32/2+1)); !bytes.Equal(ahead,
		want) {
		t.Errorf("% x goes ahead, want % x", ahead, want)
	}
	update(func(s *grpcServer) { s.headers(1, true, ":status", "200", "grpc-status", "14") })
	parts("a request that has its answer", len(g.marks)-1)
}

// serveGRPC answers each ModelInfer with its own message, the later one first when two are there.
// Each stream has a window of window bytes, the connection HTTP/2's default of 64 KiB less one.
func serveGRPC(t *testing.T, window uint32) (addr string, reordered *atomic.Int64) {
	reordered = new(atomic.Int64)
	type question struct {
		stream uint32
		body   []byte
	}
	return serve(t, func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, len(preface))); err != nil {
			return
		}
		out := newGRPCServer()
		var mu sync.Mutex // guards out and writes to c
		flush := func() {
			_, _ = c.Write(out.Bytes())
			out.Reset()
		}
		answer := func(q question) {
			mu.Lock()
			defer mu.Unlock()
			out.headers(q.stream, false, ":status", "200", "content-type", "application/grpc")
			for part := range slices.Chunk(q.body, maxFrame) {
				_ = out.framer.WriteData(q.stream, false, part)
			}
			out.headers(q.stream, true, "grpc-status", "0")
			flush()
		}
		whole := make(chan question, 16)
		var writing sync.WaitGroup
		defer writing.Wait()
		defer close(whole)
		writing.Go(func() {
			mu.Lock()
			_ = out.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
			flush()
			mu.Unlock()
			for first := range whole {
				select {
				case second, more := <-whole:
					if more {
						reordered.Add(1)
						answer(second)
					}
				case <-time.After(300 * time.Millisecond): // the load has ended: no second request comes
				}
				answer(first)
			}
		})
		in := http2.NewFramer(nil, c)
		in.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		bodies := map[uint32][]byte{}
		for {
			f, err := in.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.MetaHeadersFrame:
				if f.PseudoValue("path") != grpcPath {
					return
				}
			case *http2.DataFrame:
				bodies[f.StreamID] = append(bodies[f.StreamID], f.Data()...)
				mu.Lock()
				_ = out.framer.WriteWindowUpdate(0, f.Length)
				_ = out.framer.WriteWindowUpdate(f.StreamID, f.Length)
				flush()
				mu.Unlock()
				if f.StreamEnded() {
					whole <- question{f.StreamID, bodies[f.StreamID]}
					delete(bodies, f.StreamID)
				}
			}
		}
	}), reordered
}

func TestClosedLoopOverGRPC(t *testing.T) {
	// A large request does not fit into the window.
	for name, size := range map[string]int{"small": 100, "large": 600 << 10} {
		t.Run(name, func(t *testing.T) {
			addr, reordered := serveGRPC(t, 64<<10)
			frames := [][]byte{bytes.Repeat([]byte("a"), size), bytes.Repeat([]byte("b"), size)}
			checks := 0
			r, err := Run(t.Context(),
				Config{Wire: GRPC, Addr: addr, Frames: frames, Conns: 2, InFlight: 3,
					Duration: lasting(150 * time.Millisecond), Grace: time.Minute,
					CheckEvery: 3, Check: func(q, a []byte) error { checks++; return same(q, a) }})
			if err != nil {
				t.Fatal(err)
			}
			if r.Latency.Count() < 6 || r.Failed > 0 || r.Lost > 0 || checks < 2 || reordered.Load() == 0 {
				t.Errorf("%d latencies, failed %d, lost %d, %d checks, %d times out of order", r.Latency.Count(),
					r.Failed, r.Lost, checks, reordered.Load())
			}
			if least := r.Taken * 2 * int64(size); r.Wrote+r.Read < least {
				t.Errorf("%d answers with %d bytes, want %d at least", r.Taken, r.Wrote+r.Read, least)
			}
		})
	}
}

func TestClosedLoopOverHTTP(t *testing.T) {
	question, reply := []byte("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), []byte("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
	r, err := Run(t.Context(),
		Config{Wire: HTTP, Addr: serve(t, replies(len(question), reply)), Frames: [][]byte{question}, Conns: 3,
			Duration: 50 * time.Millisecond, Grace: time.Minute, Check: func(q, a []byte) error {
				return sameEnd(3, q, a)
			}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Latency.Count() < 3 || r.Lost != 0 || r.Wrote != r.Taken*int64(len(question)) ||
		r.Read != r.Taken*int64(len(reply)) {
		t.Errorf("%d latencies, lost %d, %d answers, wrote %d, read %d", r.Latency.Count(), r.Lost, r.Taken, r.Wrote,
			r.Read)
	}
	for _, c := range []Config{{Wire: HTTP, InFlight: 2}, {Wire: HTTP, Gather: true}, {Wire: GRPC, Gather: true},
		{Wire: 9}} {
		c.Addr, c.Frames = serve(t, echo), [][]byte{question}
		if _, err := Run(t.Context(), c); err == nil {
			t.Errorf("wire %d, %d in flight, gather %v: no error", c.Wire, c.InFlight, c.Gather)
		}
	}
}

// Each form's check accepts the tensor of its own request, and rejects another.
func TestForms(t *testing.T) {
	xs, err := Floats(2, tensor.Shape{2, 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range Forms {
		one, err := f.Frame("m", xs[0])
		if err != nil {
			t.Fatal(err)
		}
		two, err := f.Frame("m", xs[1])
		if err != nil {
			t.Fatal(err)
		}
		answerTo := func(request []byte) []byte {
			_, body, found := bytes.Cut(request, headEnd)
			if !found {
				return request
			}
			return bytes.ReplaceAll(body, []byte("inputs"), []byte("outputs"))
		}
		if err := f.Same(24, one, answerTo(one)); err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
		if f.Same(24, one, answerTo(two)) == nil || f.Same(24, one, nil) == nil {
			t.Errorf("%s: another tensor passes", f.Name)
		}
		if f.Name == "rest-json" && f.Same(24, one, bytes.ReplaceAll(answerTo(one), []byte(","), []byte(" ,"))) != nil {
			t.Error("the same numbers in another notation do not pass")
		}
	}
}
