package grpc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/shivad/shivad/server/internal/doortest"
	"github.com/shivad/shivad/shiva/budgettest"
)

// A caller is a client at the level of HTTP/2 frames, since a library would hide how a call ends:
// grpc-go's client reports DEADLINE_EXCEEDED for each call that ends after its deadline, and gRPC's
// C core only if its own clock agrees.
type caller struct {
	t      testing.TB
	conn   net.Conn
	framer *http2.Framer
	header bytes.Buffer
	enc    *hpack.Encoder
}

func (r *rig) caller(settings ...http2.Setting) *caller {
	r.T.Helper()
	conn, err := r.connect(r.T.Context(), r.door.Addrs()[0].String())
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { conn.Close() })
	// The kernel reads for a client that does not: with buffers that it may grow to megabytes.
	if t, ok := conn.(*net.TCPConn); ok {
		if err := t.SetReadBuffer(64 << 10); err != nil {
			r.T.Fatal(err)
		}
	}
	if err := conn.SetDeadline(time.Now().Add(doortest.Patience)); err != nil {
		r.T.Fatal(err)
	}
	c := &caller{t: r.T, conn: conn, framer: http2.NewFramer(conn, conn)}
	c.enc = hpack.NewEncoder(&c.header)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		r.T.Fatal(err)
	}
	c.must(c.framer.WriteSettings(settings...))
	return c
}

func (c *caller) must(err error) {
	if err != nil {
		c.t.Helper() // the most expensive line here
		c.t.Fatal(err)
	}
}

// callHeaders returns the headers of a call without a deadline.
func callHeaders(method string) (fields []hpack.HeaderField) {
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"},
		{":path", "/inference.GRPCInferenceService/" + method}, {":authority", "test"},
		{"content-type", "application/grpc"}, {"te", "trailers"}} {
		fields = append(fields, hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	return fields
}

// call begins a call with one message, or with none if message is nil.
func (c *caller) call(stream uint32, method string, timeout time.Duration, message proto.Message, last bool) {
	c.t.Helper()
	c.header.Reset()
	for _, h := range append(callHeaders(method),
		hpack.HeaderField{Name: "grpc-timeout", Value: fmt.Sprintf("%du", timeout.Microseconds())}) {
		c.must(c.enc.WriteField(h))
	}
	c.must(
		c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.header.Bytes(),
			EndHeaders: true}))
	if message == nil {
		return
	}
	body, err := proto.Marshal(message)
	c.must(err)
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))
	c.must(c.framer.WriteData(stream, last, append(frame, body...)))
}

// ends counts how calls end, until a PING is answered that is sent after the given time.
func (c *caller) ends(after time.Duration) map[string]int {
	c.t.Helper()
	ends := map[string]int{}
	time.Sleep(after)
	c.must(c.framer.WritePing(false, [8]byte{1}))
	for {
		frame, err := c.framer.ReadFrame()
		c.must(err)
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			for _, h := range f.Fields {
				if h.Name == "grpc-status" {
					ends[h.Value]++
				}
			}
		case *http2.RSTStreamFrame:
			// A reset follows the status if the client has not ended its side.
			if f.ErrCode != http2.ErrCodeNo {
				ends[f.ErrCode.String()]++
			}
		case *http2.SettingsFrame:
			if !f.IsAck() {
				c.must(c.framer.WriteSettingsAck())
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				c.must(c.framer.WritePing(true, f.Data))
			} else if f.Data == [8]byte{1} {
				return ends
			}
		}
	}
}

// A call whose deadline passes ends with DEADLINE_EXCEEDED, or with nothing, so that the client's
// own clock ends it, wherever the call is: in the queue, in the middle of its message, on a stream
// that waits. Some clients took the transport's RST_STREAM with CANCEL for CANCELLED.
func TestExpiredCalls(t *testing.T) {
	r := newRig(t, func(c *Config, _ *int64) { c.Streams = 1000 })
	w := r.held("m")
	want := fmt.Sprint(int(codes.DeadlineExceeded))
	const n = 100
	for _, tc := range []struct {
		name string
		call func(c *caller, stream uint32, timeout time.Duration)
	}{
		{"in the queue", func(c *caller, stream uint32, timeout time.Duration) {
			c.call(stream, "ModelInfer", timeout, floats("m", 1), true)
		}},
		{"no message yet", func(c *caller, stream uint32, timeout time.Duration) {
			c.call(stream, "ModelInfer", timeout, nil, false)
		}},
		{"half a message", func(c *caller, stream uint32, timeout time.Duration) {
			c.call(stream, "ModelInfer", timeout, nil, false)
			c.must(c.framer.WriteData(stream, false, []byte{0, 0, 0, 0, 9, 10}))
		}},
		{"a stream that waits for an answer", func(c *caller, stream uint32, timeout time.Duration) {
			c.call(stream, "ModelStreamInfer", timeout, floats("m", 1), false)
		}},
		{"a stream that waits for a request", func(c *caller, stream uint32, timeout time.Duration) {
			c.call(stream, "ModelStreamInfer", timeout, nil, false)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			statuses := 0
			// If the handlers get no processor, all calls may end without an answer.
			for round := 0; statuses == 0 && round < 20; round++ {
				c := r.caller()
				for i := range n {
					tc.call(c, uint32(2*i+1), time.Duration(40+i)*time.Millisecond)
				}
				ends := c.ends((40 + n + 50) * time.Millisecond)
				statuses = ends[want]
				if delete(ends, want); len(ends) > 0 {
					t.Errorf("%d of %d calls end with status %s, others with %v", statuses, n, want, ends)
				}
			}
			if statuses == 0 {
				t.Errorf("of 20 times %d calls none ends with status %s", n, want)
			}
			budgettest.Until(r.T, "the requests to leave", func() bool { return r.inside() == 0 })
		})
	}
	if n, ok := findMetric(r, `shivad_requests_total{door="grpc",model="m",outcome="canceled",version="1"} `); ok &&
		n > 0 {
		t.Errorf("%d requests count as canceled", n)
	}
	if n, ok := findMetric(r, `shivad_requests_total{door="grpc",model="",outcome="canceled",version=""} `); ok &&
		n > 0 {
		t.Errorf("%d messages count as canceled", n)
	}
	for range 200 {
		w.Answer()
	}
}

// However writes cut the frames, all bytes pass except the resets with CANCEL.
func TestUncanceled(t *testing.T) {
	var all, want bytes.Buffer
	framer, wanted := http2.NewFramer(&all, nil), http2.NewFramer(&want, nil)
	for _, f := range []*http2.Framer{framer, wanted} {
		for stream := range uint32(4) {
			id := 2*stream + 1
			if err := errors.Join(f.WriteData(id, false, []byte("\x03\x00\x00\x00\x08")[:stream]),
				f.WriteRSTStream(id, http2.ErrCodeNo)); err != nil {
				t.Fatal(err)
			}
			if f == framer {
				if err := errors.Join(f.WriteRSTStream(id, http2.ErrCodeCancel),
					f.WriteRSTStream(id+2, http2.ErrCodeCancel)); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.WriteWindowUpdate(id, uint32(http2.ErrCodeCancel)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for size := 1; size <= all.Len(); size++ {
		got := new(sink)
		u := &cancelFilter{Conn: got}
		for chunk := range slices.Chunk(all.Bytes(), size) {
			if n, err := u.Write(chunk); n != len(chunk) || err != nil {
				t.Fatalf("in writes of %d: %d %v", size, n, err)
			}
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Fatalf("in writes of %d:\n%x, want\n%x", size, got.Bytes(), want.Bytes())
		}
	}
}

// A sink is a connection that keeps what is written to it.
type sink struct {
	net.Conn
	bytes.Buffer
}

func (s *sink) Write(b []byte) (int, error) { return s.Buffer.Write(b) }
func (s *sink) Read(b []byte) (int, error)  { return s.Buffer.Read(b) }
