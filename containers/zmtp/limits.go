package zmtp

import (
	"errors"
	"fmt"
)

// Limits bounds the memory that a peer can make this side hold. Zero fields take the default.
type Limits struct {
	// MessageBytes is the largest message: the bytes of all its frames. Default 256 MiB.
	MessageBytes int64
	// Frames is the largest number of frames of one message. Default 8192.
	Frames int
	// QueuedMessages is how many messages may wait to be written before Send refuses more.
	// Default 64.
	QueuedMessages int
}

const (
	defaultMessageBytes   = 256 << 20
	defaultFrames         = 8192
	defaultQueuedMessages = 64

	maxReadyBytes   = 4096 // READY carries two short properties; an identity has at most 255 bytes
	maxCommandBytes = 512  // PING carries 2 + 16 bytes
	maxPingContext  = 16   // ZMTP 3.1, "Connection Heartbeating"
)

// WithDefaults returns l with its zero fields filled in.
func (l Limits) WithDefaults() Limits {
	if l.MessageBytes <= 0 {
		l.MessageBytes = defaultMessageBytes
	}
	if l.Frames <= 0 {
		l.Frames = defaultFrames
	}
	if l.QueuedMessages <= 0 {
		l.QueuedMessages = defaultQueuedMessages
	}
	return l
}

// Conditions that a caller may branch on. Everything else that Receive returns is the
// connection's own error or io.EOF (the peer closed between two messages).
var (
	// ErrProtocol: the peer does not speak ZMTP as this package understands it.
	ErrProtocol = errors.New("zmtp: protocol violation")
	// ErrTooLarge: the peer announced more than Limits allow.
	ErrTooLarge = errors.New("zmtp: message too large")
	// ErrQueueFull: the peer does not read, and QueuedMessages already wait for it.
	ErrQueueFull = errors.New("zmtp: send queue full")
	// ErrStalled: the peer took no byte for the write timeout.
	ErrStalled = errors.New("zmtp: peer does not read")
	// ErrClosed: Close was called on this side, or CloseWrite before Send.
	ErrClosed = errors.New("zmtp: connection closed")
)

// A PeerError is the reason that the peer gives, by ZMTP's ERROR, for ending the connection. It is
// an [ErrProtocol].
type PeerError struct{ Reason string }

func (e *PeerError) Error() string {
	return fmt.Sprintf("zmtp: the peer ended the connection: %q", e.Reason)
}

// Is makes the error an [ErrProtocol].
func (e *PeerError) Is(target error) bool { return target == ErrProtocol }

// peerError reads the body of ERROR: a length byte, then the text.
func peerError(body []byte) error {
	text := body[min(1, len(body)):]
	return &PeerError{string(text[:min(len(text), 255)])}
}

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}
