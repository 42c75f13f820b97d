package load

import (
	"fmt"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
)

// Wire is a protocol that servers of tensors speak.
type Wire uint8

// Answers of Shiva and HTTP are in the order of the requests; those of gRPC have stream numbers.
const (
	Shiva Wire = iota
	HTTP
	GRPC
)

// A wire is the protocol of one connection: when the next request may be sent, and where answers
// end.
type wire interface {
	// ready is called before a request is written, with its bytes, which it may modify. It returns
	// bytes to be written before the request.
	ready(frame []byte) (ahead []byte)
	// admitted returns how many bytes of the request that was ready the server's flow control
	// admits so far.
	admitted(frame []byte) int
	// pending returns bytes to be written where admitted has ended.
	pending() (ahead []byte)
	// read consumes bytes of p, at most up to the end of one answer. With gather, it collects the
	// next answer that begins.
	read(p []byte, gather bool) (a answer, n int, err error)
	// failure is the kind and the text of the last answer, which was an error.
	failure() (kind, text string)
	// superseded reports whether a kind of error means that a frame was superseded.
	superseded(kind string) bool
	// encode returns the bytes to send for a request, as Config.Frames has them. They may be the
	// request itself, unless own is set: then they are appended to dst, which may be modified.
	encode(dst, request []byte, own bool) []byte
	// at turns a place in a request into one in encode's result for it.
	at(place int) int
}

// plain is a wire whose requests are sent as they are.
type plain struct{}

func (plain) ready([]byte) []byte       { return nil }
func (plain) admitted(frame []byte) int { return len(frame) }
func (plain) pending() []byte           { return nil }
func (plain) at(place int) int          { return place }

func (plain) encode(dst, request []byte, own bool) []byte {
	if own {
		return append(dst, request...)
	}
	return request
}

// An answer is the result of a wire's read.
type answer struct {
	done  bool // it is complete; the other fields are set only then
	place int  // of its request among those in flight, 0 for the oldest
	fault bool
	whole []byte // all of it, if it was collected; valid until the next read
}

// newWire makes a connection's wire. The token is for gRPC.
func newWire(w Wire, token string) (wire, error) {
	switch w {
	case Shiva:
		return &shivaWire{}, nil
	case HTTP:
		return &httpWire{}, nil
	case GRPC:
		return newGRPCWire(token), nil
	default:
		return nil, fmt.Errorf("load: there is no wire %d", w)
	}
}

// A shivaWire collects the bodies that answers skips.
type shivaWire struct {
	plain
	answers
	keeping bool   // collect all of it, for Check
	errors  bool   // collect it as long as it may be an error
	body    []byte // of the answer that is collected
	last    []byte // the last answer, if it is an error
}

// maxError bounds the answers that are collected in pieces because they may be errors.
const maxError = 8 << 10

func (s *shivaWire) read(p []byte, gather bool) (a answer, n int, err error) {
	begins := s.stage == atStart
	if begins {
		s.keeping, s.errors, s.body = gather, false, s.body[:0]
	}
	n, a.done, err = s.next(p)
	if begins && !a.done {
		s.errors = true
	}
	if s.errors && len(s.body)+n > maxError {
		s.errors = false
	}
	if s.keeping || s.errors {
		s.body = append(s.body, p[:n]...)
	}
	if !a.done {
		return a, n, err
	}
	a.fault = s.fault
	switch {
	case a.fault && begins:
		s.last = p[:n]
	case a.fault && (s.keeping || s.errors):
		s.last = s.body
	case a.fault:
		s.last = nil
	case s.keeping:
		a.whole = s.body
	}
	return a, n, err
}

// failure reads the metadata of an "!error", which has no tensors before it.
func (s *shivaWire) failure() (kind, text string) {
	if len(s.last) < headerSize+s.metadata || s.last[8] != 0 {
		return "", ""
	}
	metadata := s.last[headerSize : headerSize+s.metadata]
	kind, _ = jsonscan.Unquote(jsonscan.Field(metadata, "type"))
	text, ok := jsonscan.Unquote(jsonscan.Field(metadata, "message"))
	if !ok {
		text = string(metadata)
	}
	return kind, text
}

func (s *shivaWire) superseded(kind string) bool { return kind == shiva.Superseded }
