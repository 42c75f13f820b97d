package load

import (
	"fmt"
	"io"
)

// Wire is a protocol that servers of tensors speak.
type Wire uint8

// Shiva's answers come in the order of the requests, and so do HTTP's; gRPC's have the streams
// of HTTP/2.
const (
	Shiva Wire = iota
	HTTP
	GRPC
)

// A wire is one connection as its protocol sees it: where the next request may begin, and where
// answers end.
type wire interface {
	// ready is called when a request is to be written next, with its bytes, in which it may
	// write. It gives what has to leave before; ok is false if the server takes no more until
	// something has been read.
	ready(frame []byte) (ahead []byte, ok bool)
	// read consumes bytes of p, at most up to the end of one answer. With gather, the next
	// answer that begins is kept.
	read(p []byte, gather bool) (a answer, n int, err error)
	// failure is what the answer says that was read last, which was an error; empty if that is
	// not known.
	failure() string
}

// An answer is what a wire's read came to.
type answer struct {
	done  bool // it is complete; nothing else holds before
	place int  // of its request among those in flight, 0 for the oldest
	fault bool
	whole []byte // if it was kept: all of it, until the next read
}

// A greeter is a wire that has to agree with the server on something before the first request.
type greeter interface {
	greet(nc io.ReadWriter) error
}

// newWire makes a connection's wire, and the bytes of its request.
func newWire(w Wire, frame []byte) (wire, []byte, error) {
	switch w {
	case Shiva:
		return &shivaWire{}, frame, nil
	case HTTP:
		return &httpWire{}, frame, nil
	case GRPC:
		g := newGRPCWire(frame)
		return g, g.frame, nil
	default:
		return nil, nil, fmt.Errorf("load: there is no wire %d", w)
	}
}

// A shivaWire keeps what answers passes over.
type shivaWire struct {
	answers
	keeping bool
	kept    []byte
	last    []byte // the answer that was read last, if it came in one piece
}

func (s *shivaWire) ready([]byte) ([]byte, bool) { return nil, true }

func (s *shivaWire) read(p []byte, gather bool) (a answer, n int, err error) {
	begins := s.stage == atStart
	if begins && gather {
		s.keeping, s.kept = true, s.kept[:0]
	}
	n, a.done, err = s.next(p)
	if s.keeping {
		s.kept = append(s.kept, p[:n]...)
	}
	if !a.done {
		return a, n, err
	}
	if s.last = nil; begins {
		s.last = p[:n]
	}
	a.fault = s.fault
	if s.keeping && !a.fault {
		a.whole = s.kept
	}
	s.keeping = false
	return a, n, err
}

// failure is the metadata of an "!error", which has no tensors before it.
func (s *shivaWire) failure() string {
	if s.last == nil || s.last[8] != 0 {
		return ""
	}
	return string(s.last[headerSize : headerSize+s.metadata])
}
