package frigate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/tensor"
)

// frames returns a message's frames on the wire.
func frames(parts ...string) (wire []byte) {
	for i, p := range parts {
		flags := byte(2) // a length of 8 bytes
		if i < len(parts)-1 {
			flags |= 1
		}
		wire = binary.BigEndian.AppendUint64(append(wire, flags), uint64(len(p)))
		wire = append(wire, p...)
	}
	return wire
}

// series returns the text of /metrics.
func (r *rig) series() string {
	w := httptest.NewRecorder()
	r.Metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

// ends returns how many connections ended for a reason.
func (r *rig) ends(why metrics.Closed) (n int) {
	prefix := fmt.Sprintf(`shivad_connections_closed_total{door="frigate",reason=%q} `, why.String())
	for line := range strings.Lines(r.series()) {
		if text, ok := strings.CutPrefix(line, prefix); ok {
			fmt.Sscan(text, &n)
		}
	}
	return n
}

// Each faulty message is answered with its fault, on the same connection, which goes on.
func TestRubbish(t *testing.T) {
	play(t, nil, func(r *rig) {
		r.model("yolo", []tensor.Spec{rows}, 0, one)
		r.model("odd", []tensor.Spec{{Name: "scores", DType: tensor.Float32, Shape: tensor.Shape{-1, 10}}}, 0, one)
		d, other := r.detector("10.2.0.1:1"), r.detector("10.2.0.2:1")
		defer d.conn.Close()
		defer other.conn.Close()
		other.about("yolo.onnx")
		head := func(shape, dtype string) string {
			return fmt.Sprintf(`{"shape": %s, "dtype": %q, "model_type": "ssd"}`, shape, dtype)
		}
		for _, tt := range []struct {
			name   string
			file   string
			frames []string
			kind   string
			says   string
		}{
			{"no JSON", "", []string{"rubbish", "x"}, "Protocol", "the header: "},
			{"binary", "", []string{"\x00\xff\xfe", "x"}, "Protocol", "the header: "},
			{"a list", "", []string{"[]", "x"}, "Protocol", "the header: "},
			{"nothing", "", []string{""}, "Protocol", "the header: "},
			{"a name twice", "", []string{`{"dtype": "uint8", "shape": [1, 2, 2, 3], "dtype": "int8"}`, pixels(1)},
				"Protocol", `"dtype" at byte 41 is a duplicate name`},
			{"nested too deep", "", []string{`{"other": ` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + `}`, "x"},
				"Protocol", "the header: "},
			{"a name in capitals", "", []string{`{"DTYPE": "uint8", "shape": [1, 2, 2, 3]}`, pixels(1)}, "InvalidInput",
				"expected a name of numpy"},
			{"one frame", "", []string{header24}, "Protocol", "got the header alone"},
			{"three frames", "", []string{header24, "x", "y"}, "Protocol", "got 3 frames"},
			{"a shape of texts", "", []string{`{"shape": ["a"], "dtype": "uint8"}`, "x"}, "Protocol", "the header: "},
			{"halves", "", []string{head("[1, 2.5]", "uint8"), "x"}, "Protocol", "the header: "},
			{"a long header", "", []string{`{"shape": [1` + strings.Repeat(" ", 4<<10) + `]}`, "x"}, "TooLarge", "limits.metadata_bytes is 4096"},
			{"a short image", "", []string{header24, "short"}, "InvalidInput", "takes 12 x 1 bytes, got 5"},
			{"a long image", "", []string{header24, strings.Repeat("x", 13)}, "InvalidInput", "takes 12 x 1 bytes, got 13"},
			{"another size", "", []string{head("[1, 1, 4, 3]", "uint8"), pixels(1)}, "InvalidInput", `input "image": expected uint8`},
			{"another dtype", "", []string{head("[1, 1, 1, 3]", "float32"), pixels(1)}, "InvalidInput", `input "image": expected uint8`},
			{"no dtype", "", []string{head("[1, 2, 2, 3]", "object"), pixels(1)}, "InvalidInput", "expected a name of numpy"},
			{"a negative size", "", []string{head("[1, -2, -2, 3]", "uint8"), pixels(1)}, "InvalidInput", "negative dimension"},
			{"a huge size", "", []string{head("[1, 4294967296, 4294967296, 3]", "uint8"), pixels(1)}, "InvalidInput", "too many elements"},
			{"many dimensions", "", []string{head("[1, 1, 1, 1, 1, 1, 1, 2, 2, 3]", "uint8"), pixels(1)}, "TooLarge", "limits.rank is 8"},
			{"two images", "", []string{head("[2, 2, 2, 3]", "uint8"), pixels(1) + pixels(1)}, "InvalidInput", "expected that of one image"},
			{"no shape", "", []string{`{"dtype": "uint8"}`, "x"}, "InvalidInput", "expected that of one image"},
			{"another model", "odd.onnx", []string{header24, pixels(1)}, "InvalidInput", `does not answer with detections`},
			{"two kinds", "", []string{`{"model_request": true, "model_data": true, "model_name": "x"}`}, "", "expected one of them"},
			{"a request with data", "", []string{`{"model_request": true, "model_name": "x"}`, "x"}, "", "in one frame"},
			{"a file without data", "", []string{`{"model_data": true, "model_name": "x"}`}, "", "got the header alone"},
			{"a request for nothing", "", []string{`{"model_request": true}`}, "", "1 to 128 bytes, got 0"},
		} {
			if tt.file == "" {
				tt.file = "yolo.onnx"
			}
			d.about(tt.file)
			answer := d.ask(tt.frames...)
			if tt.kind != "" {
				found := d.rows(answer)
				if found.kind != tt.kind || len(found.rows) > 0 || !strings.Contains(found.error, tt.says) {
					t.Errorf("%s: %+v", tt.name, found)
				}
			} else if s := d.status(answer); s.Loaded || s.is(s.Available) || s.is(s.Saved) ||
				!strings.Contains(s.Message, tt.says) {
				t.Errorf("%s: %+v", tt.name, s)
			}
			if got := other.detects(9); len(got.rows) != 1 {
				t.Errorf("%s: the other detector got %+v", tt.name, got)
			}
		}
	})
}

// Broken frames end their own connection, and no other.
func TestFramesThatCannotBeTrusted(t *testing.T) {
	play(t, nil, func(r *rig) {
		r.model("yolo", []tensor.Spec{rows}, 0, one)
		other := r.detector("10.2.0.2:1")
		defer other.conn.Close()
		other.about("yolo.onnx")
		before := 0
		for name, wire := range map[string][]byte{
			"reserved flags":    {0xf0, 1, 'x'},
			"without delimiter": frames(header24, pixels(1)),
			"empty":             {},
			"a huge frame":      append(frames("")[:0], 3, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
			"above the limit": append(frames("", header24)[:0],
				append([]byte{1, 0}, 2, 0, 0, 0, 0, 0, 0x20, 0, 0)...),
			"endless":             bytes.Repeat([]byte{1, 0}, 200),
			"a command inside":    append([]byte{1, 0}, 4, 5, 4, 'P', 'I', 'N', 'G'),
			"a greeting again":    append([]byte{0xff}, make([]byte, 63)...),
			"an error of its own": append([]byte{4, 6, 5}, "ERROR"...),
		} {
			d := r.detector("10.2.0.1:1")
			if len(wire) == 0 { // the detector disconnects instead
				_, _ = d.link.Write([]byte{1})
				d.conn.Close()
				synctest.Wait()
				continue
			}
			_, _ = d.link.Write(wire)
			d.closed()
			synctest.Wait()
			if n := r.ends(metrics.ClosedProtocol); n != before+1 {
				t.Errorf("%s: %d connections ended for their protocol, and %d before", name, n, before)
			} else {
				before = n
			}
			if got := other.detects(9); len(got.rows) != 1 {
				t.Errorf("%s: the other detector got %+v", name, got)
			}
		}
	})
}

// Other sockets, and programs that speak another protocol, do not get past the handshake.
func TestOthersThanDetectors(t *testing.T) {
	play(t, nil, func(r *rig) {
		link, err := r.net.DialFrom(r.T.Context(), "10.2.0.1:1", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := zmtp.Client(link, zmtp.Config{}); err == nil {
			// The DEALER may learn of it in its handshake or after it: either side may be first.
			_, _ = link.Read(make([]byte, 1))
		}
		web, err := r.net.DialFrom(r.T.Context(), "10.2.0.1:2", addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = web.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		silent, err := r.net.DialFrom(r.T.Context(), "10.2.0.1:3", addr)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		if n := r.ends(metrics.ClosedHandshake); n != 3 {
			t.Errorf("%d handshakes failed", n)
		}
		web.Close()
		silent.Close()
		link.Close()
	})
}

// The connection of a detector that stops in the middle of an image, or reads nothing of its
// answers, is closed, and its memory returned. Another detector notices nothing.
func TestDetectorsThatDisappear(t *testing.T) {
	play(t, func(c *Config) { c.MessageTimeout, c.Limits.MessageBytes = time.Second, 8<<20 }, func(r *rig) {
		r.model("yolo", []tensor.Spec{rows}, 50*time.Millisecond, one)
		other := r.detector("10.2.0.2:1")
		defer other.conn.Close()
		other.about("yolo.onnx")
		served := func(while string) {
			t.Helper()
			if got := other.detects(9); len(got.rows) != 1 {
				t.Errorf("beside one that %s another detector got %+v", while, got)
			}
		}
		part := frames("", header24, strings.Repeat("x", 200<<10))
		still := r.detector("10.2.0.1:1")
		_, _ = still.link.Write(part[:len(part)-100<<10])
		cut := r.detector("10.2.0.1:2")
		_, _ = cut.link.Write(part[:len(part)-10])
		cut.link.Cut()
		synctest.Wait()
		if n := r.Metrics.Door("frigate").Connections(); n != 2 {
			t.Errorf("%d connections", n)
		}
		served("is cut in the middle of an image")
		time.Sleep(9 * time.Second) // a second, and one for each 16 KiB of 100
		if n := r.ends(metrics.ClosedMessageTimeout); n != 1 || r.Pool.InUse() != 0 {
			t.Errorf("%d timeouts, %d bytes", n, r.Pool.InUse())
		}
		still.conn.Close()

		gone := r.detector("10.2.0.1:3")
		gone.about("yolo.onnx")
		gone.send(header24, pixels(1))
		synctest.Wait()
		gone.link.Cut()
		synctest.Wait()
		served("is gone")
		if text := r.series(); !strings.Contains(text, `shivad_door_requests_total{door="frigate",outcome="canceled"} 1`) {
			t.Errorf("the image is still to be answered:\n%s", text)
		}

		// This detector asks and never reads.
		deaf := r.detector("10.2.0.1:4")
		deaf.about("yolo.onnx")
		deaf.link.Stall(false, true)
		go func() {
			for range 1000 {
				if _, err := deaf.link.Write(frames("", header24, "x")); err != nil {
					return
				}
			}
		}()
		time.Sleep(time.Second)
		served("reads nothing")
		time.Sleep(time.Minute)
		if n := r.ends(metrics.ClosedStalled); n != 1 {
			t.Errorf("%d connections ended because their detector does not read", n)
		}
		deaf.conn.Close()
	})
}

func TestConnectionLimits(t *testing.T) {
	play(t, func(c *Config) { c.Connections, c.ConnectionsPerAddress = 3, 2 }, func(r *rig) {
		for i := range 2 {
			d := r.detector(fmt.Sprintf("10.2.0.1:%d", i+1))
			defer d.conn.Close()
		}
		link, err := r.net.DialFrom(r.T.Context(), "10.2.0.1:9", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = zmtp.Client(link, zmtp.Config{Client: zmtp.Req}); err == nil || !strings.Contains(err.Error(), "frigate.connections_per_address = 2") {
			t.Errorf("a third connection of one address: %v", err)
		}
		d := r.detector("10.2.0.2:1")
		defer d.conn.Close()
		if link, err = r.net.DialFrom(r.T.Context(), "10.2.0.3:1", addr); err != nil {
			t.Fatal(err)
		}
		if _, err = zmtp.Client(link, zmtp.Config{Client: zmtp.Req}); err == nil || !strings.Contains(err.Error(), "frigate.connections = 3") {
			t.Errorf("a fourth connection: %v", err)
		}
		time.Sleep(2 * time.Second) // while refused clients may read why
	})
}
