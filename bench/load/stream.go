package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/shivad/shivad/shiva"
)

// Streams makes each connection of a run a camera: its requests are the frames of a stream, with
// their number (seq) and the time at which they were due (captured_at).
type Streams struct {
	Name string // of the streams: connection 2 has Name-2
	Keep string // "all", "latest" or a number; empty: as the server is configured
	// Each, if set, is called with what comes of each frame, in the order of the answers, by the
	// thread of the connection's loop.
	Each func(Shown)
}

// A Shown is the answer to a frame.
type Shown struct {
	Stream  int           // the number of its connection
	Seq     int64         // of the frame, from 0
	Due, At time.Duration // when it was captured, and when the answer was there: since the beginning of the run
	Age     time.Duration // when the answer left, as the server says
	Skipped int           // frames superseded since the one that was executed before it
	Fault   string        // the type of the error; empty: the frame was executed
}

// The metadata of a frame ends in two numbers, blanks before them, which each frame has others of.
const (
	seqDigits      = 19
	capturedDigits = 13
)

var frameNumbers = fmt.Sprintf(`"seq":%*d,"captured_at":%*d}`, seqDigits, 0, capturedDigits, 0)

// A streamWire is Shiva with frames of a stream for requests.
type streamWire struct {
	shivaWire
	streams  *Streams
	seq      int64 // of the next request
	answered int64 // likewise of the next answer: those of a connection are in order
	numbers  int   // where frameNumbers begin in the request
	shown    Shown // the last answer
}

// newStreamWire makes the wire of a connection, and its request.
func newStreamWire(s *Streams, number int, request []byte) (*streamWire, []byte, error) {
	m, err := decode(request)
	if err != nil {
		return nil, nil, fmt.Errorf("load: a frame of a stream: %w", err)
	}
	defer m.Release()
	members := map[string]any{}
	if len(m.Metadata) > 0 {
		if err := json.Unmarshal(m.Metadata, &members); err != nil {
			return nil, nil, fmt.Errorf("load: the metadata of a frame: %w", err)
		}
	}
	delete(members, "seq")
	delete(members, "captured_at")
	members["stream"] = fmt.Sprintf("%s-%d", s.Name, number)
	if n, err := strconv.Atoi(s.Keep); err == nil {
		members["keep"] = n
	} else if s.Keep != "" {
		members["keep"] = s.Keep
	}
	text, err := json.Marshal(members)
	if err != nil {
		return nil, nil, fmt.Errorf("load: the metadata of a frame: %w", err)
	}
	text[len(text)-1] = ','
	m.Metadata = append(text, frameNumbers...)
	frame, err := shiva.AppendMessage(nil, m)
	if err != nil {
		return nil, nil, fmt.Errorf("load: a frame of a stream: %w", err)
	}
	w := &streamWire{streams: s, numbers: len(frame) - len(m.Namespace) - len(frameNumbers), shown: Shown{Stream: number}}
	return w, frame, nil
}

// stamp numbers the request in frame, which was due at a time.
func (w *streamWire) stamp(frame []byte, due time.Time) {
	p := frame[w.numbers+len(`"seq":`):]
	putNumber(p[:seqDigits], w.seq)
	w.seq++
	putNumber(p[seqDigits+len(`,"captured_at":`):][:capturedDigits], due.UnixMilli())
}

// putNumber writes n at the end of p, and blanks before it.
func putNumber(p []byte, n int64) {
	for i := len(p) - 1; i >= 0; i-- {
		p[i] = ' '
		if n > 0 || i == len(p)-1 {
			p[i] = byte('0' + n%10)
			n /= 10
		}
	}
}

// read collects each answer, since what it says of its frame stands at the end.
func (w *streamWire) read(p []byte, gather bool) (a answer, n int, err error) {
	if a, n, err = w.shivaWire.read(p, true); err != nil || !a.done {
		return a, n, err
	}
	if !gather {
		a.whole = nil
	}
	end := len(w.kept) - w.namespace
	var said struct {
		Type    string  `json:"type"`
		Seq     *int64  `json:"seq"`
		AgeMS   float64 `json:"age_ms"`
		Skipped int     `json:"skipped"`
	}
	if err := json.Unmarshal(w.kept[end-w.metadata:end], &said); err != nil {
		return a, n, fmt.Errorf("load: the metadata of an answer: %w", err)
	}
	w.shown = Shown{Stream: w.shown.Stream, Seq: w.answered, Age: time.Duration(said.AgeMS * 1e6), Skipped: said.Skipped}
	w.answered++
	switch {
	case a.fault:
		w.shown.Fault = said.Type
		a.superseded = said.Type == shiva.Superseded
	case said.Seq == nil:
		return a, n, errors.New("load: the answer to a frame has no seq: the server knows no streams")
	case *said.Seq != w.shown.Seq:
		return a, n, fmt.Errorf("%w: frame %d of stream %d was answered as %d", errOutOfStep, w.shown.Seq, w.shown.Stream, *said.Seq)
	}
	return a, n, nil
}

// show hands on the last answer.
func (w *streamWire) show(due, now time.Duration) {
	if w.streams.Each != nil {
		w.shown.Due, w.shown.At = due, now
		w.streams.Each(w.shown)
	}
}
