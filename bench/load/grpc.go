package load

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"golang.org/x/net/http2/hpack"
)

// A grpcWire is an HTTP/2 connection on which every stream is one ModelInfer. Two requests differ
// only in their stream numbers, so the frames of one are made beforehand, and the numbers are
// written into them.
//
// It respects the server's flow control, and gives the server the largest windows possible.
// Unlike a real client, it causes the server no more work than the protocol requires.
type grpcWire struct {
	// HEADERS of the first request, which fills the HPACK table, and of all further ones.
	first, headers []byte

	marks  []int    // offsets of the frames in the request that is to be sent: HEADERS, DATA
	allow  int      // how many of those frames the server's windows have admitted
	stream uint32   // of the next request
	line   []uint32 // streams without an answer, in the order of their requests

	// The server's windows: of the connection, of the stream whose request is being sent, and of a
	// new stream.
	window, streamWindow, initial int64
	greeted                       bool // its settings have arrived
	unreturned                    int  // bytes received and not yet returned to the server's window
	ahead                         []byte

	head    [frameHead]byte // of the current frame
	have    int             // bytes of head
	left    int             // bytes of the frame after them
	payload []byte          // of a frame other than DATA
	keeping uint32          // the stream whose answer is collected
	body    []byte

	fields          *hpack.Decoder
	status, message string // of the last trailers
}

// Frames, flags and settings of HTTP/2 (RFC 9113).
const (
	frameHead = 9

	frameData, frameHeaders, frameReset, frameSettings = 0, 1, 3, 4
	framePing, frameGoAway, frameWindow                = 6, 7, 8

	flagEndStream, flagAck, flagEndHeaders, flagPadded, flagPriority = 0x1, 0x1, 0x4, 0x8, 0x20

	settingPush, settingWindow = 2, 4

	maxFrame      = 16 << 10 // the default of a peer, which grpc-go's servers never raise
	initialWindow = 1<<16 - 1
	messageHead   = 5                      // compression flag and length
	firstPart     = maxFrame - messageHead // bytes of a message in its first frame
	preface       = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	grpcPath      = "/inference.GRPCInferenceService/ModelInfer"
)

// GRPCHeaders are the headers of a ModelInfer.
var GRPCHeaders = []hpack.HeaderField{
	{Name: ":method", Value: "POST"},
	{Name: ":scheme", Value: "http"},
	{Name: ":path", Value: grpcPath},
	{Name: ":authority", Value: "localhost"},
	{Name: "content-type", Value: "application/grpc"},
	{Name: "user-agent", Value: "shivaload"},
	{Name: "te", Value: "trailers"},
}

// newGRPCWire makes the wire of a connection, which sends the token unless that is "".
func newGRPCWire(token string) *grpcWire {
	g := &grpcWire{stream: 1, window: initialWindow, initial: initialWindow}
	g.fields = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		switch f.Name {
		case "grpc-status":
			g.status = f.Value
		case "grpc-message":
			g.message = f.Value
		}
	})
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	fields := GRPCHeaders
	if token != "" {
		fields = append(slices.Clip(fields), hpack.HeaderField{Name: "authorization", Value: "Bearer " + token})
	}
	headers := func() []byte {
		block.Reset()
		for _, f := range fields {
			_ = e.WriteField(f) // into memory
		}
		return appendFrame(nil, frameHeaders, flagEndHeaders, block.Bytes())
	}
	g.first, g.headers = headers(), headers()
	return g
}

// encode makes the frames of a ModelInferRequest. They are modified in any case, as each has the
// number of its stream.
func (g *grpcWire) encode(dst, message []byte, _ bool) []byte {
	g.marks = append(g.marks[:0], len(dst))
	dst = append(dst, g.headers...)
	size := len(message)
	room := firstPart
	for first := true; first || len(message) > 0; first = false {
		part, flags := message[:min(len(message), room)], byte(0)
		if message = message[len(part):]; len(message) == 0 {
			flags = flagEndStream
		}
		g.marks = append(g.marks, len(dst))
		if first {
			dst = appendFrameHead(dst, frameData, flags, messageHead+len(part))
			dst = binary.BigEndian.AppendUint32(append(dst, 0), uint32(size))
		} else {
			dst = appendFrameHead(dst, frameData, flags, len(part))
		}
		dst, room = append(dst, part...), maxFrame
	}
	return dst
}

// at takes places in the first DATA frame.
func (g *grpcWire) at(place int) int { return g.marks[1] + frameHead + messageHead + place }

// appendFrame appends a frame of stream 0.
func appendFrame(b []byte, kind, flags byte, payload []byte) []byte {
	return append(appendFrameHead(b, kind, flags, len(payload)), payload...)
}

func appendFrameHead(b []byte, kind, flags byte, n int) []byte {
	return append(b, byte(n>>16), byte(n>>8), byte(n), kind, flags, 0, 0, 0, 0)
}

func appendSetting(b []byte, setting uint16, value uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, setting), value)
}

// greet exchanges settings and sends a first request.
func (g *grpcWire) greet(nc io.ReadWriter, frame []byte) error {
	hello := appendFrame([]byte(preface), frameSettings, 0,
		appendSetting(appendSetting(nil, settingPush, 0), settingWindow, math.MaxInt32))
	hello = appendFrame(hello, frameWindow, 0, binary.BigEndian.AppendUint32(nil, math.MaxInt32-initialWindow))
	if _, err := nc.Write(hello); err != nil {
		return err
	}
	buf := make([]byte, readSize)
	read := func() error {
		n, err := nc.Read(buf)
		for p := buf[:n]; err == nil && len(p) > 0; {
			_, n, err = g.read(p, false) // an error is an answer, too: the run counts further ones
			p = p[n:]
		}
		return err
	}
	for !g.greeted {
		if err := read(); err != nil {
			return err
		}
	}
	ahead := g.ready(frame)
	number(g.first, g.line[0])
	if _, err := nc.Write(append(ahead, g.first...)); err != nil {
		return err
	}
	for sent := g.marks[1]; len(g.line) > 0; {
		most := g.admitted(frame)
		if _, err := nc.Write(append(g.pending(), frame[sent:most]...)); err != nil {
			return err
		}
		if sent = most; len(g.line) > 0 {
			if err := read(); err != nil {
				return err
			}
		}
	}
	return nil
}

// number sets the stream of a frame.
func number(frame []byte, stream uint32) { binary.BigEndian.PutUint32(frame[5:], stream) }

func (g *grpcWire) ready(frame []byte) (ahead []byte) {
	for _, at := range g.marks {
		number(frame[at:], g.stream)
	}
	g.allow, g.streamWindow = 1, g.initial
	g.line = append(g.line, g.stream)
	g.stream += 2
	return g.pending()
}

func (g *grpcWire) pending() (ahead []byte) {
	ahead, g.ahead = g.ahead, nil
	return ahead
}

// admitted ends at the end of an HTTP/2 frame, behind which another frame may be written.
func (g *grpcWire) admitted(frame []byte) int {
	for ; g.allow < len(g.marks); g.allow++ {
		at := g.marks[g.allow]
		n := int64(frame[at])<<16 | int64(frame[at+1])<<8 | int64(frame[at+2])
		if n > g.window || n > g.streamWindow {
			return at
		}
		g.window -= n
		g.streamWindow -= n
	}
	return len(frame)
}

func (g *grpcWire) read(p []byte, gather bool) (a answer, n int, err error) {
	for n < len(p) {
		if g.have < frameHead {
			k := copy(g.head[g.have:], p[n:])
			n += k
			if g.have += k; g.have < frameHead {
				break
			}
			g.left = int(g.head[0])<<16 | int(g.head[1])<<8 | int(g.head[2])
			g.payload = g.payload[:0]
			if g.left > maxFrame {
				return a, n, fmt.Errorf("%w: a frame of HTTP/2 with %d bytes, and %d may be", errOutOfStep, g.left,
					maxFrame)
			}
		}
		kind := g.head[3]
		part := p[n : n+min(g.left, len(p)-n)]
		switch {
		case kind != frameData:
			g.payload = append(g.payload, part...)
		case g.keeping != 0 && g.keeping == g.ofStream():
			g.body = append(g.body, part...)
		}
		n += len(part)
		if g.left -= len(part); g.left > 0 {
			break
		}
		g.have = 0
		if a, err = g.end(kind, gather); a.done || err != nil {
			return a, n, err
		}
	}
	return a, n, nil
}

// ofStream is the stream number of the current frame.
func (g *grpcWire) ofStream() uint32 { return binary.BigEndian.Uint32(g.head[5:]) & math.MaxInt32 }

// end handles a complete frame.
func (g *grpcWire) end(kind byte, gather bool) (answer, error) {
	flags, stream := g.head[4], g.ofStream()
	switch {
	case kind == frameData:
		g.unreturned += int(g.head[0])<<16 | int(g.head[1])<<8 | int(g.head[2])
		if g.unreturned > math.MaxInt32/2 {
			g.ahead = appendFrame(g.ahead, frameWindow, 0, binary.BigEndian.AppendUint32(nil, uint32(g.unreturned)))
			g.unreturned = 0
		}
	case kind == frameHeaders:
		if flags&(flagEndHeaders|flagPadded|flagPriority) != flagEndHeaders {
			return answer{}, fmt.Errorf("%w: HEADERS with flags %#x: none that are cut, padded or with a priority are expected",
				errOutOfStep, flags)
		}
		g.status, g.message = "", ""
		if _, err := g.fields.Write(g.payload); err != nil {
			return answer{}, fmt.Errorf("%w: %w", errOutOfStep, err)
		}
		if err := g.fields.Close(); err != nil {
			return answer{}, fmt.Errorf("%w: %w", errOutOfStep, err)
		}
		if flags&flagEndStream != 0 {
			return g.answered(stream)
		}
		if gather && g.keeping == 0 {
			g.keeping, g.body = stream, g.body[:0]
		}
	case kind == frameReset && slices.Contains(g.line, stream):
		// A reset after the answer is no failure: the stream is no longer in the line.
		g.status, g.message = "reset", fmt.Sprintf("% x", g.payload)
		return g.answered(stream)
	case kind == frameSettings && flags&flagAck == 0:
		for s := g.payload; len(s) >= 6; s = s[6:] {
			if binary.BigEndian.Uint16(s) == settingWindow {
				window := int64(binary.BigEndian.Uint32(s[2:]))
				g.streamWindow += window - g.initial
				g.initial = window
			}
		}
		g.greeted = true
		g.ahead = appendFrame(g.ahead, frameSettings, flagAck, nil)
	case kind == framePing && flags&flagAck == 0:
		g.ahead = appendFrame(g.ahead, framePing, flagAck, g.payload)
	case kind == frameGoAway:
		return answer{}, fmt.Errorf("load: the server goes away: %q", g.payload)
	case kind == frameWindow && len(g.payload) == 4:
		switch stream {
		case 0:
			g.window += int64(binary.BigEndian.Uint32(g.payload))
		case g.stream - 2: // the last request's: only that may wait for a window
			g.streamWindow += int64(binary.BigEndian.Uint32(g.payload))
		}
	}
	return answer{}, nil
}

// answered removes a stream that has ended from the line.
func (g *grpcWire) answered(stream uint32) (answer, error) {
	place := slices.Index(g.line, stream)
	if place < 0 {
		return answer{}, fmt.Errorf("%w: an answer on stream %d, on which nothing was asked", errOutOfStep, stream)
	}
	g.line = slices.Delete(g.line, place, place+1)
	if stream == g.stream-2 {
		// The window does not hold back the rest of a request that is answered.
		g.streamWindow = math.MaxInt32
	}
	a := answer{done: true, place: place, fault: g.status != "0"}
	if stream == g.keeping {
		g.keeping = 0
		switch {
		case a.fault:
		case len(g.body) < messageHead || g.body[0] != 0 ||
			int(binary.BigEndian.Uint32(g.body[1:])) != len(g.body)-messageHead:
			return answer{}, fmt.Errorf("%w: expected one message in %d bytes of DATA", errOutOfStep, len(g.body))
		default:
			a.whole = g.body[messageHead:]
		}
	}
	return a, nil
}

// failure is the name of the status and its message.
func (g *grpcWire) failure() (kind, text string) {
	if code, err := strconv.Atoi(g.status); err == nil && code > 0 && code < len(grpcCodes) {
		return grpcCodes[code], g.message
	}
	return "grpc-status " + g.status, g.message
}

func (g *grpcWire) superseded(kind string) bool { return kind == "ABORTED" }

// grpcCodes are the names of the statuses.
var grpcCodes = [...]string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
	"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
	"INTERNAL", "UNAVAILABLE",
	"DATA_LOSS", "UNAUTHENTICATED"}
