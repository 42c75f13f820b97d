// Package wire provides the messages of RPC v4, the container protocol that containers/DESIGN.md
// documents, for both sides and for tests: kinds, the JSON of registration (encoding/json, once per
// session), and the headers of batches and results, which are encoded and parsed without reflection
// and without allocations.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// Version is the protocol's number in hello and welcome.
const Version = 4

// The kinds, frame 0 of every message.
const (
	Hello     = "hello"     // C->S | JSON
	Welcome   = "welcome"   // S->C | JSON
	Refused   = "refused"   // S->C | JSON
	Wait      = "wait"      // S->C | JSON
	Heartbeat = "heartbeat" // both
	Batch     = "batch"     // S->C | id | JSON | a frame for each input
	Result    = "result"    // C->S | id | JSON | a frame for each output
	Draining  = "draining"  // C->S
	Goodbye   = "goodbye"   // S->C | JSON
	Feedback  = "feedback"  // S->C | JSON | a frame for each input, output and truth
	Arena     = "arena"     // both | JSON
	Grant     = "grant"     // C->S | JSON
	Offer     = "offer"     // S->C | JSON
)

// IDSize is the size of a batch id, a little-endian number.
const IDSize = 8

// HelloMessage registers a container.
type HelloMessage struct {
	Protocol    int            `json:"protocol"`
	Model       string         `json:"model"`
	Version     string         `json:"version"`
	Platform    string         `json:"platform,omitempty"`
	Inputs      TensorMessages `json:"inputs"`
	Outputs     TensorMessages `json:"outputs"`
	Batched     *bool          `json:"batched,omitempty"` // nil: the shapes decide
	MaxBatch    int            `json:"max_batch,omitempty"`
	Concurrency int            `json:"concurrency,omitempty"`
	Slots       int            `json:"slots,omitempty"`
	Announce    bool           `json:"announce,omitempty"`
	// The container may be alive and yet answer no PING while it computes.
	Pauses     bool            `json:"pauses,omitempty"`
	Grants     bool            `json:"grants,omitempty"`   // it grants batches to several servers
	Arena      bool            `json:"arena,omitempty"`    // it takes tensors in shared memory
	Opens      bool            `json:"opens,omitempty"`    // it hands pictures on, and takes them
	User       bool            `json:"user,omitempty"`     // it wants the user of each request
	Metadata   bool            `json:"metadata,omitempty"` // it wants the metadata of each request
	Feedback   bool            `json:"feedback,omitempty"` // it wants feedback on its answers
	Waits      bool            `json:"waits,omitempty"`    // it may be told to wait for its place
	Again      *bool           `json:"again,omitempty"`    // it was registered before, or nil
	Parameters json.RawMessage `json:"parameters,omitempty"`
	Instance   string          `json:"instance,omitempty"`
	Subset     *SubsetMessage  `json:"subset,omitempty"` // nil: it has sessions with all servers
	// Shows who the container is; "": none.
	Token string `json:"token,omitempty"`
}

// SubsetMessage says that a container has sessions with size of the servers that it knows, and
// wants to be told how many its model has.
type SubsetMessage struct {
	Size    int `json:"size"`
	Servers int `json:"servers"`
}

// CountMessage is the second frame of a heartbeat to a container that chooses among servers.
type CountMessage struct {
	// Replicas is the number of sessions of the model that the server has, including this one.
	Replicas int `json:"replicas"`
}

// AppendComing appends the second frame of a heartbeat that announces a message of that many bytes.
func AppendComing(b []byte, bytes int) []byte {
	return append(strconv.AppendInt(append(b, `{"coming_bytes":`...), int64(bytes), 10), '}')
}

// Pauses reports whether the second frame of a heartbeat announces that the container may be silent
// until the next one. Servers ignore what they do not understand there.
func Pauses(b []byte) bool {
	var m struct {
		Pause bool `json:"pause"`
	}
	return json.Unmarshal(b, &m) == nil && m.Pause
}

// TensorMessage is a declared input or output.
type TensorMessage struct {
	Name     string     `json:"name"`
	Datatype string     `json:"datatype"`
	Shape    Dimensions `json:"shape"`
	Optional bool       `json:"optional,omitempty"` // an input that a batch may lack
	Ragged   string     `json:"ragged,omitempty"`   // the output with this one's values per row
	Format   string     `json:"format,omitempty"`   // order of image dimensions of an input
	Image    *Image     `json:"image,omitempty"`    // an input takes image files, too
	Labels   Labels     `json:"labels,omitempty"`   // the names of an output's classes
}

// Image is [tensor.Image].
type Image struct {
	Channels string `json:"channels"`
	Resize   string `json:"resize,omitempty"`
	Height   int    `json:"height,omitempty"`
	Width    int    `json:"width,omitempty"`
	Regions  bool   `json:"regions,omitempty"`
}

// TensorMessages are at most MaxTensors, Dimensions at most MaxRank, and Labels at most
// MaxLabels. Longer lists are refused before they are decoded: in memory an element takes many
// times its bytes in the text, and any peer may send one.
type (
	TensorMessages []TensorMessage
	Dimensions     []int
	Labels         []string
)

// UnmarshalJSON implements json.Unmarshaler.
func (l *TensorMessages) UnmarshalJSON(b []byte) error {
	return unmarshal(b, (*[]TensorMessage)(l), MaxTensors, "%d inputs or outputs declared, expected at most %d")
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *Dimensions) UnmarshalJSON(b []byte) error {
	return unmarshal(b, (*[]int)(d), MaxRank, "shape of %d dimensions, limit %d")
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *Labels) UnmarshalJSON(b []byte) error {
	return unmarshal(b, (*[]string)(l), MaxLabels, "%d labels of one output, limit %d")
}

// unmarshal counts the elements of a list before it makes any.
func unmarshal[T any](b []byte, list *[]T, most int, tooMany string) error {
	s := newScanner(b)
	if s.Peek() == '[' {
		n := 0
		for range s.Elements {
			s.Raw()
			n++
		}
		if err := s.Err(); err != nil {
			return err
		}
		if n > most {
			return fmt.Errorf(tooMany, n, most)
		}
	}
	return json.Unmarshal(b, list)
}

// Declare converts specs to their wire form.
func Declare(specs []tensor.Spec) []TensorMessage {
	list := make([]TensorMessage, len(specs))
	for i, s := range specs {
		list[i] = TensorMessage{Name: s.Name, Datatype: s.DType.V2(), Shape: append([]int{}, s.Shape...),
			Optional: s.Optional, Ragged: s.Ragged,
			Format: s.Format, Image: (*Image)(s.Image), Labels: s.Labels}
	}
	return list
}

// WelcomeMessage answers a hello that was accepted. Sizes are in bytes, times in milliseconds.
type WelcomeMessage struct {
	Protocol        int    `json:"protocol"`
	Server          string `json:"server"`
	HeartbeatMS     int64  `json:"heartbeat_ms"`
	DeadAfterMS     int64  `json:"dead_after_ms"`
	MaxMessageBytes int64  `json:"max_message_bytes"`

	// Batched is how the server understood the declaration. It is absent from servers that do not
	// know the key.
	Batched *bool `json:"batched,omitempty"`
	// Notes are hints to the author of the model about its declaration.
	Notes []string `json:"notes,omitempty"`
	// Images says that the server takes image files for inputs that are images. It is absent from
	// servers that do not know the key, whose clients have to send pixels.
	Images bool `json:"images,omitempty"`
	// Regions says that the server sends regions of pictures for inputs that have some. It is
	// absent from servers that do not know the key.
	Regions bool `json:"regions,omitempty"`
	// Replicas is that of CountMessage, for a container that chooses among servers. It is absent
	// from servers that do not know the key.
	Replicas int `json:"replicas,omitempty"`
	// Arena offers the first segment of shared memory.
	Arena *ArenaMessage `json:"arena,omitempty"`
	// Grants says that the server waits for grants when it is told to. It is absent from servers
	// that do not know the key.
	Grants bool `json:"grants,omitempty"`
}

// GrantMessage says whether batches need grants from now on, or grants one.
type GrantMessage struct {
	Each      *bool  `json:"each,omitempty"`      // each batch needs a grant; nil: this is one
	Grant     uint64 `json:"grant,omitempty"`     // its number, from 1
	Here      int    `json:"here,omitempty"`      // rows that wait in the server, as it last said
	Elsewhere int    `json:"elsewhere,omitempty"` // rows that wait in other servers
	Target    int    `json:"target,omitempty"`    // rows of the execution, for every server
}

// OfferMessage says how many rows wait in a server, or gives a grant back.
type OfferMessage struct {
	Pass  uint64  `json:"pass,omitempty"`   // the grant given back; 0: rows wait
	Rows  int     `json:"rows,omitempty"`   // waiting rows; of a pass: rows that come again
	DueMS float64 `json:"due_ms,omitempty"` // until their most urgent deadline; 0: there is none
	AgeMS float64 `json:"age_ms,omitempty"` // how long that row has waited
}

// ArenaMessage is an offer of shared memory by the server, the container's answer to it, or the end
// of a segment.
type ArenaMessage struct {
	Segment int64  `json:"segment,omitempty"`
	Use     string `json:"use,omitempty"`   // of an offer: UseInputs or UseOutputs
	Path    string `json:"path,omitempty"`  // of an offer
	Bytes   int64  `json:"bytes,omitempty"` // of an offer
	Token   string `json:"token,omitempty"` // of an offer; hexadecimal
	Error   string `json:"error,omitempty"` // of an answer: the container does not map it

	Unmap    int64 `json:"unmap,omitempty"`    // from the server: no later batch names this segment
	Unmapped int64 `json:"unmapped,omitempty"` // from the container
}

// The uses of a segment.
const (
	UseInputs  = "inputs"  // containers read it
	UseOutputs = "outputs" // one container writes it
)

// RefusedMessage answers a hello that was refused.
type RefusedMessage struct {
	Error string `json:"error"`
}

// WaitMessage answers a hello that another container's declaration keeps from being accepted.
type WaitMessage struct {
	Error       string `json:"error"`
	HeartbeatMS int64  `json:"heartbeat_ms"` // as in welcome
	DeadAfterMS int64  `json:"dead_after_ms"`
}

// GoodbyeMessage ends a session.
type GoodbyeMessage struct {
	Reason    string `json:"reason"`
	Reconnect bool   `json:"reconnect"`
}

// A TensorHeader describes one tensor frame of a batch or a result.
type TensorHeader struct {
	Name  []byte // shares the header's memory
	DType tensor.DType
	Shape tensor.Shape // shares the header's memory; nil when it has no dimensions
	// At is the place of the bytes, if they are in shared memory and not in the frame: three
	// numbers for each piece, which are segment, offset and size. It shares the header's memory.
	At    []int
	lo    int
	at    int
	given seen
}

// A BatchHeader is the JSON frame of a batch. Parse may be called on it repeatedly.
type BatchHeader struct {
	Rows       int
	Inputs     []TensorHeader
	Timeout    float64  // milliseconds left; 0: none
	Requests   []int    // rows of each request; nil: each has one
	Parameters [][]byte // JSON of each request, or nil; nil: no request has any
	Metadata   [][]byte // the same; members that Parameters lacks
	Priority   []int    // of each request; nil: all 0
	Traces     [][]byte // traceparent of each request, or nil; nil: none is followed
	States     [][]byte // tracestate of each request, or nil; nil: none has one
	// Pictures is about the inputs whose rows are regions of pictures, in any order.
	Pictures []PictureHeader
	GrantUse
	numbers numbers
}

// A GrantUse is the part of a batch for a container that several servers share.
type GrantUse struct {
	Grant uint64 // the grant that the batch uses; 0: none
	Best  int    // best number of rows of the execution, as the server sees it; 0: unknown
	Left  int    // rows that still wait in the server
}

// A ResultHeader is the JSON frame of a result. Parse may be called on it repeatedly.
type ResultHeader struct {
	Outputs []TensorHeader
	Errors  []RowError
	Failed  bool   // the whole batch failed
	Error   []byte // its reason
	// Together is the number of rows executed together, those of other servers included; 0: only
	// the batch's. Queued is how long the batch waited for an earlier execution, in milliseconds.
	Together int
	Queued   float64
	// Prepared is how long the container prepared the inputs, in milliseconds, if it does that
	// while it executes; 0: it does not.
	Prepared float64
	Opened   []OpenedHeader // the pictures that the container hands on
	Looked   []OpenedHeader // those that were handed on to it
	numbers  numbers
}

// A RowError is the error of one row of a batch.
type RowError struct {
	Row     int
	Message []byte // shares the header's memory
	Invalid bool   // the row was wrong, not the container
}

// A FeedbackHeader is the JSON frame of feedback. Parse may be called on it repeatedly.
type FeedbackHeader struct {
	Application, User []byte // share the header's memory
	Rows              int    // of the request
	// Inputs, Outputs and Truth describe the frames, in this order.
	Inputs, Outputs, Truth []TensorHeader
	Label                  []byte // JSON; nil: none
	Loss                   float64
	Lost                   bool // Loss is present
	numbers                numbers
}

// numbers holds the memory of the tensors of a header.
type numbers struct{ dims, at []int }

func (n numbers) reuse() numbers { return numbers{n.dims[:0], n.at[:0]} }

// A scanner reads the headers. Strings may have halves of surrogate pairs, which Python writes for
// bytes of a file name that are not UTF-8: an error text that has one is still an error.
type scanner struct{ jsonscan.Scanner }

func newScanner(b []byte) scanner {
	const depth = 64 // of nested values in the contents of a header
	return scanner{jsonscan.Scanner{Text: b, Depth: depth, Rules: jsonscan.LoneSurrogates}}
}

// seen is the set of keys of an object read so far.
type seen uint8

const (
	seenName seen = 1 << iota
	seenDatatype
	seenShape
	seenRow
	seenMessage
)

// Parse reads the JSON of a batch. Unknown keys are skipped.
func (h *BatchHeader) Parse(b []byte) error {
	*h = BatchHeader{Rows: -1, Inputs: h.Inputs[:0], numbers: h.numbers.reuse(), Requests: h.Requests[:0],
		Parameters: h.Parameters[:0], Metadata: h.Metadata[:0], Priority: h.Priority[:0], Traces: h.Traces[:0],
		States: h.States[:0], Pictures: h.Pictures[:0]}
	s := newScanner(b)
	for key := range s.Members {
		switch string(key) {
		case "rows":
			h.Rows = s.Int()
		case "inputs":
			h.numbers = h.numbers.reuse()
			h.Inputs = s.tensors(h.Inputs[:0], &h.numbers, MaxPieces)
		case "timeout_ms":
			h.Timeout = s.Float()
		case "requests":
			h.Requests = s.integers(h.Requests[:0], math.MaxInt)
		case "priority":
			h.Priority = s.integers(h.Priority[:0], math.MaxInt)
		case "parameters":
			h.Parameters = s.values(h.Parameters[:0])
		case "metadata":
			h.Metadata = s.values(h.Metadata[:0])
		case "traces":
			h.Traces = s.texts(h.Traces[:0])
		case "trace_states":
			h.States = s.texts(h.States[:0])
		case "pictures":
			h.Pictures = s.pictures(h.Pictures[:0])
		case "grant":
			h.Grant = uint64(max(0, s.Int()))
		case "best":
			h.Best = max(0, s.Int())
		case "left":
			h.Left = max(0, s.Int())
		default:
			s.Raw()
		}
	}
	if err := s.End(); err != nil {
		return fmt.Errorf("batch header: %w", err)
	}
	if h.Rows < 1 {
		return fmt.Errorf("batch header: rows is %d", h.Rows)
	}
	requests, rows := h.Rows, h.Rows
	if len(h.Requests) > 0 {
		requests, rows = len(h.Requests), 0
		for _, n := range h.Requests {
			if n < 1 || n > h.Rows-rows {
				return fmt.Errorf("batch header: requests of %v rows in a batch of %d", h.Requests, h.Rows)
			}
			rows += n
		}
	}
	if rows != h.Rows {
		return fmt.Errorf("batch header: requests have %d rows in total, the batch has %d", rows, h.Rows)
	}
	if n := len(h.Parameters); n > 0 && n != requests {
		return fmt.Errorf("batch header: %d parameters for %d requests", n, requests)
	}
	if n := len(h.Metadata); n > 0 && n != requests {
		return fmt.Errorf("batch header: metadata of %d requests for %d", n, requests)
	}
	if n := len(h.Priority); n > 0 && n != requests {
		return fmt.Errorf("batch header: %d priorities for %d requests", n, requests)
	}
	if n := len(h.Traces); n > 0 && n != requests {
		return fmt.Errorf("batch header: %d traces for %d requests", n, requests)
	}
	if n := len(h.States); n > 0 && n != requests {
		return fmt.Errorf("batch header: %d trace_states for %d requests", n, requests)
	}
	for i := range h.Pictures {
		if err := h.Pictures[i].check(h.Rows); err != nil {
			return fmt.Errorf("batch header: pictures of input %.64q: %w", h.Pictures[i].Input, err)
		}
	}
	return nil
}

// values appends the elements of a list as they are written, nil for null.
func (s *scanner) values(to [][]byte) [][]byte {
	for range s.Elements {
		value := s.Raw()
		if string(value) == "null" {
			value = nil
		}
		to = append(to, value)
	}
	return to
}

// texts appends the elements of a list, nil for an element that is not a text. Nearly all are null,
// and are skipped many at once.
func (s *scanner) texts(to [][]byte) [][]byte {
	const none, many = "null,", "null,null,null,null,null,null,null,null,"
	var missing [len(many) / len(none)][]byte
	for range s.Elements {
		for s.skip(many) {
			to = append(to, missing[:]...)
		}
		for s.skip(none) {
			to = append(to, nil)
		}
		var text []byte
		if s.Peek() == '"' {
			text = s.Str()
		} else {
			s.Raw()
		}
		to = append(to, text)
	}
	return to
}

// skip passes over a text, if it is next.
func (s *scanner) skip(text string) bool {
	next := s.Text[s.At:]
	if len(next) < len(text) || string(next[:len(text)]) != text {
		return false
	}
	s.At += len(text)
	return true
}

// Parse reads the JSON of feedback. Unknown keys are skipped.
func (h *FeedbackHeader) Parse(b []byte) error {
	*h = FeedbackHeader{Inputs: h.Inputs[:0], Outputs: h.Outputs[:0], Truth: h.Truth[:0], numbers: h.numbers.reuse()}
	s := newScanner(b)
	for key := range s.Members {
		switch string(key) {
		case "application":
			h.Application = s.Str()
		case "user":
			h.User = s.Str()
		case "rows":
			h.Rows = s.Int()
		case "inputs":
			h.Inputs = s.tensors(h.Inputs[:0], &h.numbers, 0)
		case "outputs":
			h.Outputs = s.tensors(h.Outputs[:0], &h.numbers, 0)
		case "truth":
			h.Truth = s.tensors(h.Truth[:0], &h.numbers, 0)
		case "label":
			h.Label = s.Raw()
		case "loss":
			h.Loss, h.Lost = s.Float(), true
		default:
			s.Raw()
		}
	}
	if err := s.End(); err != nil {
		return fmt.Errorf("feedback header: %w", err)
	}
	if h.Rows < 1 {
		return fmt.Errorf("feedback header: rows is %d", h.Rows)
	}
	return nil
}

// Parse reads the JSON of a result to a batch of the given number of rows. Unknown keys are
// skipped. The length of the JSON is bounded by that of a message only, but the memory taken is
// bounded by MaxTensors, MaxRank, and an error for each row.
func (h *ResultHeader) Parse(b []byte, rows int) error {
	*h = ResultHeader{Outputs: h.Outputs[:0], Errors: h.Errors[:0], Opened: h.Opened[:0], Looked: h.Looked[:0],
		numbers: h.numbers.reuse()}
	s := newScanner(b)
	for key := range s.Members {
		switch string(key) {
		case "outputs":
			h.numbers = h.numbers.reuse()
			h.Outputs = s.tensors(h.Outputs[:0], &h.numbers, 1)
		case "errors":
			h.Errors = h.Errors[:0]
			for m := range s.Elements {
				if m == rows {
					s.Fail(fmt.Errorf("more errors than the %d rows of the batch", rows))
				}
				h.Errors = append(h.Errors, s.rowError())
			}
		case "error":
			h.Failed, h.Error = true, s.Str()
		case "together":
			h.Together = s.Int()
		case "queued_ms":
			h.Queued = s.Float()
		case "prepared_ms":
			h.Prepared = s.Float()
		case "opened":
			h.Opened = s.opened(h.Opened[:0], rows)
		case "looked":
			h.Looked = s.opened(h.Looked[:0], rows)
		default:
			s.Raw()
		}
	}
	if err := s.End(); err != nil {
		return fmt.Errorf("result header: %w", err)
	}
	return nil
}

func (s *scanner) rowError() (e RowError) {
	var given seen
	for key := range s.Members {
		switch string(key) {
		case "row":
			e.Row = s.Int()
			given |= seenRow
		case "message":
			e.Message = s.Str()
			given |= seenMessage
		case "invalid":
			e.Invalid = s.Bool()
		default:
			s.Raw()
		}
	}
	if given != seenRow|seenMessage {
		s.Fail(errors.New("row error without row or message"))
	}
	return e
}

// tensors reads a list of tensor descriptions with at most the given number of pieces each.
func (s *scanner) tensors(list []TensorHeader, m *numbers, pieces int) []TensorHeader {
	first := len(list)
	for n := range s.Elements {
		if n == MaxTensors {
			s.Fail(fmt.Errorf("more than %d tensors", MaxTensors))
		}
		t := TensorHeader{lo: len(m.dims), at: len(m.at)}
		for key := range s.Members {
			switch string(key) {
			case "name":
				t.Name = s.Str()
				t.given |= seenName
			case "datatype":
				name := s.Str()
				var known bool
				if t.DType, known = tensor.FromV2(string(name)); !known {
					s.Fail(fmt.Errorf("unknown datatype %.32q", name))
				}
				t.given |= seenDatatype
			case "shape":
				m.dims = s.integers(m.dims[:t.lo], MaxRank)
				t.given |= seenShape
			case "at":
				m.at = s.integers(m.at[:t.at], 3*pieces)
				if (len(m.at)-t.at)%3 != 0 {
					s.Fail(errors.New("\"at\" must have three numbers for each piece"))
				}
			default:
				s.Raw()
			}
		}
		if t.given != seenName|seenDatatype|seenShape {
			s.Fail(errors.New("tensor without name, datatype or shape"))
		}
		list = append(list, t)
	}
	if s.Err() != nil {
		return list
	}
	// The numbers do not move from here on.
	dims, at := len(m.dims), len(m.at)
	for i := len(list) - 1; i >= first; i-- {
		t := &list[i]
		t.Shape = tensor.Shape(m.dims[t.lo:dims:dims])
		t.At = m.at[t.at:at:at]
		dims, at = t.lo, t.at
	}
	return list
}

// integers appends a list of at most the given number of integers.
func (s *scanner) integers(list []int, most int) []int {
	for n := range s.Elements {
		if n == most {
			s.Fail(fmt.Errorf("more than %d numbers", most))
		}
		list = append(list, s.Int())
	}
	return list
}

// Limits of the texts and lists of a hello, in bytes or elements.
const (
	MaxName       = 128       // of a model, version, input or output
	MaxInstance   = 128       // of the free label
	MaxPlatform   = 64        // of the platform
	MaxParameters = 64 << 10  // of the free parameters
	MaxHello      = 256 << 10 // of the whole hello
	MaxTensors    = 255       // inputs or outputs, as Shiva's
	MaxRank       = 64
	MaxPieces     = 65536 // of a tensor in shared memory
	MaxLabels     = 65536 // of one output
	MaxLabel      = 256   // of one of its labels
)
