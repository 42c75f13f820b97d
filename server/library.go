package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Request asks a model or an application for the outputs of some rows.
type Request struct {
	// Name is the name of an application or, if there is none, of a model.
	Name string
	// Version is a version of the model; "" means its default. An application has none.
	Version string
	// Inputs are matched by name, or by position if none has a name. The leading -1 of a declared
	// shape counts rows; a tensor without that dimension is one row, whose answer has no row
	// dimension either. A model that is not batched takes shapes as they are. The tensors belong to
	// the caller, which may change and release them when Infer has returned: those with a Buf are
	// retained, and others are copied into memory that counts against limits.payload_bytes.
	Inputs []tensor.Tensor
	// Outputs are the names of the outputs wanted, in the order of the response; nil means all.
	Outputs []string

	// ID names the request for feedback, for ten minutes; "" if there will be no feedback.
	ID string
	// User is the user whose request it is, for whom applications learn; "" is no particular user.
	User string
	// Candidates are the models that an application may choose among for this request, as "name"
	// or "name/version". It must link to each of them. nil means all.
	Candidates []string
	// NoCache requires an answer that is computed for this request; the answer is not cached
	// either.
	NoCache bool
	// Salt is part of a cache's key: requests with different salts do not share answers.
	Salt string

	// Timeout counts from the call to Infer and is 24 hours at most; 0 means the application's SLO,
	// or else the model's deadline. The context's deadline applies as well.
	Timeout time.Duration
	// Priority is 1 for the highest to 10 for the lowest; 0 is the default, 6.
	Priority int
	// Parameters is a JSON object, as in requests over HTTP; nil means none. The server uses the
	// members listed in server/manual/parameters.md, and the container gets all others with the
	// rows. A field above that is set overrides the member of the same meaning.
	Parameters []byte
}

// A Response is the answer to a Request. Release it once, when its outputs are no longer needed.
type Response struct {
	// Model and Version name the model that answered; if several did, the one that contributed most
	// to the answer.
	Model, Version string
	// Outputs have names, and as many rows as the inputs. Their memory is valid until Release.
	Outputs []tensor.Tensor
	// Timing tells how the time was spent; it is zero for an answer from a cache.
	Timing scheduler.Timing
	// Choice tells how an application answered; nil for a model.
	Choice *Choice
	// Frame is set for a frame of a stream (parameters stream, seq, captured_at and keep).
	Frame *Frame

	answer *predict.Answer
}

// Release returns the memory of the outputs.
func (r *Response) Release() {
	if r.answer != nil {
		r.answer.Release()
		r.answer, r.Outputs = nil, nil
	}
}

// A Frame is the part of a response to a frame of a stream other than its outputs.
type Frame struct {
	Seq     int64         // the client's number of the frame; negative: none
	Age     time.Duration // when it was answered: since captured_at, else since the request arrived
	Skipped int           // frames of the stream superseded since the last one that was executed

	// Captured is when the frame was taken or else arrived, in an answer of Latest; else zero.
	Captured time.Time
}

// A Choice tells how an application answered a request.
type Choice struct {
	// Confidence is how much the models agree, 0 to 1.
	Confidence float64
	// Missing maps the models ("name/version") that were chosen but have no part in the answer to
	// the reasons.
	Missing map[string]string
	// Default reports that the outputs are the application's default; Explanation says why.
	Default     bool
	Explanation string
}

// Infer answers a request as a door does, from checking the inputs to the caches, the application's
// policy and the queue, but without a socket. It returns when the answer is complete, by the
// deadline at the latest. If ctx ends first, the request is cancelled. Any goroutine may call it,
// from Start until Shutdown.
//
// The error wraps one of scheduler's: ErrInvalidInput, ErrNotFound, ErrOverloaded, ErrSuperseded,
// ErrDeadlineExceeded, ErrUnavailable, ErrContainerFailed, ErrContainerLost, ErrDraining,
// ErrCanceled, ErrTooLarge. Any other is a bug.
func (s *Server) Infer(ctx context.Context, r *Request) (*Response, error) {
	request, err := s.request(r)
	if err != nil {
		return nil, err
	}
	for _, name := range r.Outputs {
		request.Outputs = append(request.Outputs, gate.Output{Name: name})
	}
	return s.infer(ctx, request)
}

// infer sends a request through the library's door.
func (s *Server) infer(ctx context.Context, request *gate.Request) (*Response, error) {
	result, err := s.library().Infer(ctx, request, nil)
	if err != nil {
		return nil, err
	}
	a := &Response{Model: result.Model, Version: result.Version, Outputs: result.Outputs, Timing: result.Timing,
		answer: result}
	if f := result.Frame; f != nil {
		a.Frame = &Frame{f.Seq, f.Age, f.Skipped, f.Captured}
	}
	if c := result.Choice; c != nil {
		a.Model, a.Version, _ = strings.Cut(result.Version, "/")
		a.Choice = &Choice{Confidence: c.Confidence, Default: c.Default, Explanation: c.Explanation,
			Missing: make(map[string]string, len(c.Missing))}
		for _, m := range c.Missing {
			a.Choice.Missing[m.Model] = m.Why
		}
	}
	return a, nil
}

// request converts r into a request of all doors, with its own references to the inputs.
func (s *Server) request(r *Request) (*gate.Request, error) {
	if *s.phase.Load() == admin.Starting {
		return nil, fmt.Errorf("%w: this server has not been started", scheduler.ErrUnavailable)
	}
	request := &gate.Request{Model: r.Name, Version: r.Version, Arrived: time.Now()}
	request.SetID(r.ID)
	if err := parameters(r, request, s.settings.Now().Limits.JSONDepth); err != nil {
		return nil, err
	}
	var err error
	for _, t := range r.Inputs {
		if err = t.Check(); err != nil {
			err = fmt.Errorf("%w: input %q: %w", scheduler.ErrInvalidInput, t.Name, err)
		} else if t, err = own(t, s.pool); err == nil {
			request.Inputs = append(request.Inputs, t)
		}
		if err != nil {
			predict.Release(request)
			return nil, err
		}
	}
	return request, nil
}

// parameters reads the parameters of a request. Those for the container stay as they are.
func parameters(r *Request, request *gate.Request, depth int) error {
	v := &request.Values
	if len(r.Parameters) > 0 {
		if r.Parameters[0] != '{' || !jsonscan.Valid(r.Parameters, depth) {
			return fmt.Errorf("%w: parameters: expected a JSON object without space before it",
				scheduler.ErrInvalidInput)
		}
		var forward []byte
		err := parameter.Library.Members(v, r.Parameters, func(key, value []byte) {
			forward = jsonscan.AppendMember(forward, key, value)
		})
		if err != nil {
			return err
		}
		if len(forward) > 0 {
			request.Parameters = append(forward, '}')
		}
	}
	v.User = cmp.Or(r.User, v.User)
	v.Salt = cmp.Or(r.Salt, v.Salt)
	v.Fresh = r.NoCache || v.Fresh
	if r.Timeout != 0 {
		v.Timeout = min(r.Timeout, parameter.MaxTimeout)
	}
	if r.Priority > 0 {
		v.SetPriority(uint64(r.Priority))
	}
	if r.Candidates != nil {
		return parameter.Library.Keys()[parameter.CandidateModels].Read(v, parameter.Typed(r.Candidates))
	}
	return nil
}

// own returns a copy of t whose memory stays unchanged when the caller reuses that of t: a
// container may still read it after the server has stopped waiting for its answer.
func own(t tensor.Tensor, pool *tensor.Pool) (tensor.Tensor, error) {
	t.Shape = slices.Clone(t.Shape)
	if t.Buf != nil {
		t.Retain()
		return t, nil
	}
	buf, err := pool.Get(len(t.Data))
	if err != nil {
		return t, fmt.Errorf("%w: input %q: %w", scheduler.ErrOverloaded, t.Name, err)
	}
	copy(buf.Bytes(), t.Data)
	t.Buf, t.Data = buf, buf.Bytes()
	return t, nil
}

// Feedback tells an application how good the answer to a request was, by exactly one of Label,
// Loss, Reward and Losses.
type Feedback struct {
	// Application is the name of the application that answered.
	Application string
	// ID and User are those of the request. Without an ID, or with an ID that this server no longer
	// knows, the models execute Inputs, the inputs of the request, again. Candidates, unless nil,
	// limits which models do.
	ID, User   string
	Inputs     []tensor.Tensor // as in Request
	Candidates []string        // as in Request

	// Label is the correct answer: a number or a text, a list of these, or a map of these by
	// output.
	Label any
	// Loss is 0 (perfect) to 1, and Reward is 1 - Loss.
	Loss, Reward *float64
	// Losses are the losses of single models, by "name/version".
	Losses map[string]float64
}

// Learn passes feedback to an application's policy. learned is false if the same feedback was
// learned before; rounds is how many feedbacks the policy has learned from for this user. The
// errors are those of Infer; ErrUnavailable also means that the state store cannot be reached. Any
// goroutine may call it. It waits for the store.
func (s *Server) Learn(ctx context.Context, f *Feedback) (learned bool, rounds uint64, err error) {
	r, err := s.request(&Request{Name: f.Application, User: f.User, ID: f.ID, Inputs: f.Inputs,
		Candidates: f.Candidates})
	if err != nil {
		return false, 0, err
	}
	verdict := gate.Verdict{Loss: clone(f.Loss), Reward: clone(f.Reward), Losses: f.Losses}
	if f.Label != nil {
		if verdict.Label, err = json.Marshal(f.Label); err != nil {
			predict.Release(r)
			return false, 0, fmt.Errorf("%w: feedback: %w", scheduler.ErrInvalidInput, err)
		}
	}
	l, err := s.library().Feedback(ctx, r, &verdict)
	return l.Learned, l.Rounds, err
}

// clone returns a copy of a number, which lessons to models keep; nil stays nil.
func clone(f *float64) *float64 {
	if f == nil {
		return nil
	}
	return new(*f)
}

// An Application is a name for several models, among which a policy chooses.
type Application struct {
	Name string
	// Models are "name", which follows the default version, "name/version", or "name/*" for all
	// that have a live replica.
	Models []string
	// Policy is one of selection.Names; "" means single. Params are its parameters.
	Policy string
	Params map[string]any
	// SLO is the deadline of requests without one; 0 means the model's.
	SLO time.Duration
	// Keep is how many frames of a stream may wait, for requests that do not specify it; 0 means
	// the setting of the models.
	Keep setting.Keep
	// Default is the answer when no model has answered in time: one row of each output, by name;
	// nil means that the request then fails.
	Default map[string]any
}

// SetApplication creates an application, or replaces the one of that name. When it returns nil, the
// application is in the state store and answers. The error wraps scheduler.ErrInvalidInput and
// lists all faults, or wraps ErrUnavailable if the store cannot be reached.
func (s *Server) SetApplication(ctx context.Context, a Application) error {
	r, err := s.store.Registry()
	if err != nil {
		return err
	}
	d := apps.Definition{Name: a.Name, Models: a.Models, Policy: a.Policy, Params: a.Params, SLO: a.SLO.String(),
		Keep: a.Keep}
	if a.Default != nil {
		if d.Default, err = json.Marshal(a.Default); err != nil {
			return fmt.Errorf("%w: application %q: default: %w", scheduler.ErrInvalidInput, a.Name, err)
		}
	}
	if _, err = r.Put(ctx, d); err == nil {
		s.history.Changed(program, "application", a.Name, "set")
		s.trail.Add(access.Entry{Source: byProgram, Action: "set", What: "application", Name: a.Name,
			After: access.AuditText(d)})
	}
	return err
}

// DeleteApplication deletes an application and its policy's learned state. The error for an unknown
// name wraps scheduler.ErrNotFound.
func (s *Server) DeleteApplication(ctx context.Context, name string) error {
	r, err := s.store.Registry()
	if err != nil {
		return err
	}
	if err = r.Delete(ctx, name); err == nil {
		s.history.Changed(program, "application", name, "deleted")
		s.trail.Add(access.Entry{Source: byProgram, Action: "delete", What: "application", Name: name})
	}
	return err
}

// program is the author, in the history, of changes made by the methods of a Server.
const program = "the program"

// byProgram is the source of such changes in the audit trail, also of a reload by a signal.
var byProgram = access.Source{Door: "program"}
