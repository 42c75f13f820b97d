package load

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva"
)

// A frame that a client of streams sends.
type sentFrame struct {
	Stream     string
	Seq        int64
	CapturedAt int64 `json:"captured_at"`
	Keep       any
	ID         string
}

// frames answers each frame with what reply says.
func frames(reply func(sentFrame) (namespace, metadata string)) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close()
		d := shiva.NewDecoder(shiva.DecoderConfig{})
		p := make([]byte, 64<<10)
		for {
			n, err := c.Read(p)
			if err != nil {
				return
			}
			for at := 0; at < n; {
				k, m, err := d.Push(p[at:n])
				if err != nil {
					return
				}
				at += k
				if m == nil {
					continue
				}
				var f sentFrame
				if err := json.Unmarshal(m.Metadata, &f); err != nil {
					return
				}
				namespace, metadata := reply(f)
				if _, err := c.Write(message(metadata, namespace)); err != nil {
					return
				}
			}
		}
	}
}

func TestStreams(t *testing.T) {
	began := time.Now()
	addr := serve(t, frames(func(f sentFrame) (string, string) {
		if late := time.Since(time.UnixMilli(f.CapturedAt)); f.Keep != 2.0 || f.ID != "x" || late < 0 || late > time.Since(began)+time.Millisecond {
			return "!error", fmt.Sprintf(`{"type":"Wrong","message":"%+v"}`, f)
		}
		if f.Seq%3 > 0 {
			return "!error", `{"type":"Superseded","message":"by another"}`
		}
		return f.Stream, fmt.Sprintf(`{"seq":%d,"age_ms":1.5,"skipped":2}`, f.Seq)
	}))
	next := map[int]int64{}
	r, err := Run(t.Context(), Config{Addr: addr, Frames: [][]byte{message(`{"id":"x","seq":77}`, "m")}, Conns: 3, Rate: 600, Even: true,
		Duration: 200 * time.Millisecond, Grace: time.Minute, Streams: &Streams{Name: "cam", Keep: "2", Each: func(s Shown) {
			if s.Seq != next[s.Stream] || s.At < s.Due || s.Due > 200*time.Millisecond {
				t.Errorf("%+v, want frame %d", s, next[s.Stream])
			}
			if good := s.Fault == "" && s.Age == 1500*time.Microsecond && s.Skipped == 2; good != (s.Seq%3 == 0) || !good && s.Fault != "Superseded" {
				t.Errorf("%+v", s)
			}
			next[s.Stream]++
		}}})
	if err != nil {
		t.Fatal(err)
	}
	// 40 frames of each, but that which is due at the end.
	if len(next) != 3 || next[0] < 39 || next[1] < 39 || next[2] < 39 || r.Lost != 0 || r.Refusal.Count() != 0 {
		t.Errorf("frames of streams: %v, lost %d, refused %d (%s)", next, r.Lost, r.Refusal.Count(), r.Failure)
	}
	if r.Failed != r.Superseded || r.Failed == 0 || r.Latency.Count() != (next[0]+2)/3+(next[1]+2)/3+(next[2]+2)/3 {
		t.Errorf("%d executed, failed %d, superseded %d", r.Latency.Count(), r.Failed, r.Superseded)
	}
}

func TestStreamsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		answer string
		want   string
	}{
		"another frame's answer": {Config{}, `{"seq":5}`, "frame 0 of stream 0 was answered as 5"},
		"no streams":             {Config{}, `{}`, "knows no streams"},
		"no metadata":            {Config{}, `[]`, "metadata of an answer"},
		"over HTTP":              {Config{Wire: HTTP}, ``, "over Shiva"},
		"gathered":               {Config{Gather: true}, ``, "not gathered"},
		"no message":             {Config{Frames: [][]byte{[]byte("x")}}, ``, "a frame of a stream"},
		"no object":              {Config{Frames: [][]byte{message(`[1]`, "m")}}, ``, "a frame"},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.Addr, c.config.Streams, c.config.Duration = serve(t, frames(func(sentFrame) (string, string) { return "m", c.answer })), &Streams{Name: "cam"}, 50*time.Millisecond
			if c.config.Frames == nil {
				c.config.Frames = [][]byte{small}
			}
			if _, err := Run(t.Context(), c.config); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
}

// Numbers of any length stand right of blanks, which JSON allows.
func TestPutNumber(t *testing.T) {
	for n, want := range map[int64]string{0: "   0", 7: "   7", 9999: "9999", 120: " 120"} {
		p := []byte("xxxx")
		if putNumber(p, n); string(p) != want {
			t.Errorf("%d: %q, want %q", n, p, want)
		}
	}
}
