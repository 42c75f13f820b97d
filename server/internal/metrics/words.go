package metrics

// An Outcome is how a request ended. The names are those in the table of errors in
// server/manual/errors.md, in the form of Prometheus labels.
type Outcome uint8

// The outcomes.
const (
	OK Outcome = iota
	Protocol
	TooLarge
	InvalidInput
	NotFound
	Overloaded
	Superseded
	DeadlineExceeded
	Unavailable
	ContainerFailed
	ContainerLost
	Unauthenticated
	PermissionDenied
	Draining
	Canceled
	Undelivered // executed, and the client had closed its connection by then
	Internal
	Default // the default of an application none of whose models answered in time
	outcomes
)

var outcomeNames = [outcomes]string{
	"ok", "protocol", "too_large", "invalid_input", "not_found", "overloaded", "superseded", "deadline_exceeded", "unavailable",
	"container_failed", "container_lost", "unauthenticated", "permission_denied", "draining", "canceled", "undelivered",
	"internal", "default",
}

// String returns the label.
func (o Outcome) String() string { return outcomeNames[o] }

// withdrawn reports whether the client did without the answer: it sent a newer frame, cancelled, or
// hung up.
func (o Outcome) withdrawn() bool { return o == Superseded || o == Canceled || o == Undelivered }

// judged reports whether a request with this outcome was in time or late. It was neither if its
// client did without the answer, or made a mistake that no server could answer with a result.
func (o Outcome) judged() bool {
	switch o {
	case Protocol, TooLarge, InvalidInput, NotFound, Unauthenticated, PermissionDenied:
		return false
	}
	return !o.withdrawn()
}

// A Closed is why a client's connection ended.
type Closed uint8

// The reasons.
const (
	ClosedByClient        Closed = iota // it closed the connection, or ended it in its protocol
	ClosedIdle                          // idle for idle_timeout, or a ping was not answered
	ClosedStalled                       // it did not read its answers for stall_timeout
	ClosedHandshake                     // its handshake failed, was slow, or made room for another
	ClosedMessageTimeout                // a message took longer than message_timeout
	ClosedProtocol                      // it violated the protocol
	ClosedCancels                       // it cancelled nearly all of its requests
	ClosedAddressLimit                  // its address had connections_per_address connections
	ClosedConnectionLimit               // the door or the process had no room for it
	ClosedQuota                         // its identity had as many connections as its quota allows
	ClosedMemory                        // its message was ended for want of memory
	ClosedDraining                      // the server shuts down
	ClosedError                         // the socket failed, or a bug
	closedReasons
)

var closedNames = [closedReasons]string{
	"client", "idle", "stalled", "handshake", "message_timeout", "protocol", "cancels", "address_limit",
	"connection_limit", "quota", "memory", "draining", "error",
}

// String returns the label.
func (c Closed) String() string { return closedNames[c] }

// A Feedback is what happened to feedback for an application.
type Feedback uint8

// What can happen to feedback.
const (
	Learned  Feedback = iota // the policy has learned from it
	Repeated                 // it had been learned before
	Failed                   // it was invalid, or the store could not be written
	feedbacks
)

var feedbackNames = [feedbacks]string{"learned", "repeated", "failed"}

// String returns the label.
func (f Feedback) String() string { return feedbackNames[f] }
