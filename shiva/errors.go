package shiva

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shivad/shivad/shiva/jsonscan"
)

// A Kind names a fault of received bytes.
type Kind string

// The kinds of fault. The second group leaves the stream in step, see [DecodeError.Keep].
const (
	KindBadMagic             Kind = "bad_magic"
	KindBadCRC1              Kind = "bad_crc1"
	KindBadCRC2              Kind = "bad_crc2"
	KindNegativeMetadataSize Kind = "negative_metadata_size"
	KindUnknownDType         Kind = "unknown_dtype"
	KindNegativeDim          Kind = "negative_dim"
	KindSizeOverflow         Kind = "size_overflow" // the bytes of a tensor do not fit an int
	KindTooLarge             Kind = "too_large"     // one of the Limits
	KindTruncated            Kind = "truncated"     // the stream ended inside a message

	KindInvalidUTF8Namespace Kind = "invalid_utf8_namespace"
	KindInvalidUTF8Metadata  Kind = "invalid_utf8_metadata"
	KindInvalidJSON          Kind = "invalid_json"
	KindMetadataNotObject    Kind = "metadata_not_object"
	KindOverBudget           Kind = "over_budget" // the pool, or Grant, refused the memory
)

// A DecodeError reports a message that could not be decoded.
type DecodeError struct {
	Kind   Kind
	Field  string // the field being read, such as "crc1" or "tensor 3 dimension 0"
	Offset int64  // of the field, in bytes from the beginning of the message
	Limit  int64  // the value expected, or the limit exceeded; in the unit of the field
	Got    int64  // the value received
	// For KindTooLarge, a lower bound on the bytes of the message that are still to come.
	Rest   int64
	Detail string // the same in words
	Err    error  // the refusal of the pool or of Grant, for KindOverBudget

	// From the faulty message, as far as known; only when Keep is true.

	Namespace string
	ID        string // JSON text of the metadata's "id", quotes and all; "" if there is none
	Token     string // the same of "token"

	keep bool
}

// Keep reports whether the stream is still in step: the faulty message was consumed to its end
// and the next one can be decoded. If it is false, nothing that follows can be trusted.
func (e *DecodeError) Keep() bool { return e.keep }

func (e *DecodeError) Error() string {
	return fmt.Sprintf("shiva: %s: %s at byte %d: %s", strings.ReplaceAll(string(e.Kind), "_", " "), e.Field, e.Offset,
		e.Detail)
}

func (e *DecodeError) Unwrap() error { return e.Err }

// Types of the errors that shivad reports; see RemoteError.Type. A reference server puts the name
// of a Python exception class there instead.
const (
	Protocol         = "Protocol"
	TooLarge         = "TooLarge"
	InvalidInput     = "InvalidInput"
	NotFound         = "NotFound"
	Overloaded       = "Overloaded"
	Superseded       = "Superseded"
	DeadlineExceeded = "DeadlineExceeded"
	Canceled         = "Canceled"
	Unavailable      = "Unavailable"
	ContainerFailed  = "ContainerFailed"
	ContainerLost    = "ContainerLost"
	Unauthenticated  = "Unauthenticated"
	PermissionDenied = "PermissionDenied"
	Draining         = "Draining"
	Internal         = "Internal"
)

// A RemoteError is an error that the peer reported: a message of namespace "!error".
type RemoteError struct {
	Type      string // one of the constants, or a class name of a reference server
	Message   string
	Code      int    // HTTP status of the same condition; 0 if the peer sent none
	Retryable bool   // the same request may succeed later or on another server
	ID        string // JSON text of the request's "id", quotes and all; "" if it had none
	// Superseded: JSON text of the newer frame's "seq", else of its "id"; "" if it has neither.
	By string
	// The request named shared memory that could not be used, so it was not executed. It may
	// succeed with its tensors in the message.
	Unshared bool
}

func (e *RemoteError) Error() string {
	if sayingType(e.Message, e.Type) {
		return "shiva: peer reports " + e.Message
	}
	return "shiva: peer reports " + e.Type + ": " + e.Message
}

// sayingType reports whether a message begins with the words of a type: "invalid input: " for
// InvalidInput. Those of shivad do.
func sayingType(message, kind string) bool {
	head, _, ok := strings.Cut(message, ":")
	return ok && strings.EqualFold(strings.ReplaceAll(head, " ", ""), kind)
}

// AppendMetadata appends the metadata of the error's message: the keys type, message, code,
// retryable and, as far as they are set, id, by and "shared_memory": false, in this order. The
// first two are those of the reference.
func (e *RemoteError) AppendMetadata(dst []byte) []byte {
	dst = append(dst, `{"type":`...)
	dst = jsonscan.AppendString(dst, e.Type)
	dst = append(dst, `,"message":`...)
	dst = jsonscan.AppendString(dst, e.Message)
	dst = append(dst, `,"code":`...)
	dst = strconv.AppendInt(dst, int64(e.Code), 10)
	dst = append(dst, `,"retryable":`...)
	dst = strconv.AppendBool(dst, e.Retryable)
	if e.ID != "" {
		dst = append(dst, `,"id":`...)
		dst = append(dst, e.ID...)
	}
	if e.By != "" {
		dst = append(dst, `,"by":`...)
		dst = append(dst, e.By...)
	}
	if e.Unshared {
		dst = append(dst, `,"`+MemoryKey+`":false`...)
	}
	return append(dst, '}')
}

// ErrorMessage makes the message that reports e.
func ErrorMessage(e *RemoteError) *Message {
	return &Message{Namespace: ErrorNamespace, Metadata: e.AppendMetadata(nil)}
}

// ParseError returns the error that m reports, or nil if its namespace is not "!error". Keys that
// are missing or have an unexpected JSON type leave their field zero: a malformed report is still a
// report.
func ParseError(m *Message) *RemoteError {
	if m.Namespace != ErrorNamespace {
		return nil
	}
	e := new(RemoteError)
	for key, value := range jsonscan.Members(m.Metadata) {
		switch string(key) {
		case "type":
			e.Type, _ = jsonscan.Unquote(value)
		case "message":
			e.Message, _ = jsonscan.Unquote(value)
		case "code":
			e.Code, _ = strconv.Atoi(string(value))
		case "retryable":
			e.Retryable = string(value) == "true"
		case "id":
			e.ID = string(value)
		case "by":
			e.By = string(value)
		case MemoryKey:
			e.Unshared = string(value) == "false"
		}
	}
	return e
}
