package server

import (
	"context"
	"time"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/latest"
	"github.com/shivad/shivad/server/internal/parameter"
)

// A LatestRequest asks for the newest answer of a stream.
type LatestRequest struct {
	// Name is the model or application that the stream's frames are sent to.
	Name string
	// Version is the version of the model that answered; "" means any.
	Version string
	// Stream is the stream's name; "" means the only one that the model has.
	Stream string
	// User is the user of the stream's frames; "" means any.
	User string

	// After is the Frame of the last answer that the caller has: only a newer answer will do. nil
	// means any.
	After *Frame
	// MaxAge is the age of the oldest answer that will do; 0 means any.
	MaxAge time.Duration
	// Wait waits for an answer that will do, if there is none yet. Without After and MaxAge that is
	// the answer to the first frame that arrives from now on.
	Wait bool
	// Timeout is how long Latest waits at most; 0 means the model's deadline. The context's
	// deadline applies as well.
	Timeout time.Duration
}

// Latest returns the newest answer of a stream, of any client: see server/manual/latest.md for what
// is kept. Its errors are those of Infer: ErrNotFound for a stream that has no answer,
// ErrUnavailable for one that is too old or not newer than After, and ErrDeadlineExceeded if none
// came in time. Any goroutine may call it, from Start until Shutdown.
func (s *Server) Latest(ctx context.Context, q *LatestRequest) (*Response, error) {
	request, err := s.request(&Request{Name: q.Name, Version: q.Version, User: q.User, Timeout: q.Timeout})
	if err != nil {
		return nil, err
	}
	request.Stream = q.Stream
	n := request.AskNewest()
	n.Wait = q.Wait
	if q.MaxAge != 0 { // below 0, where a caller's time is over, no answer will do
		n.MaxAge = max(1, min(q.MaxAge, parameter.MaxTimeout))
	}
	if q.After != nil {
		n.After = q.After.Seq
	}
	return s.infer(ctx, request)
}

// mayWait returns an error if whoever asks for the newest answer of a name has lost the right to.
func (s *Server) mayWait(name string, q *latest.Question) error {
	if q.Any && q.Client == "" {
		return nil // this program
	}
	return s.identities.Named(q.Identity).Check(access.Infer, name)
}
