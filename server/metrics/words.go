package metrics

// An Outcome is how a request ended. The words are those of the table of errors in
// shiva/README.md, in the form Prometheus labels have.
type Outcome uint8

// The outcomes there are.
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
	Internal
	Default // the models of an application could not answer, or not in time, and its default did
	outcomes
)

var outcomeNames = [outcomes]string{
	"ok", "protocol", "too_large", "invalid_input", "not_found", "overloaded", "superseded", "deadline_exceeded", "unavailable",
	"container_failed", "container_lost", "unauthenticated", "permission_denied", "draining", "canceled", "internal", "default",
}

// String is the label.
func (o Outcome) String() string { return outcomeNames[o] }

// A Closed is why a connection of a client ended.
type Closed uint8

// The reasons there are.
const (
	ClosedByClient        Closed = iota // it hung up, or ended the connection in its protocol
	ClosedIdle                          // idle for idle_timeout, or a ping was not answered
	ClosedStalled                       // it did not read its answers for the door's stall_timeout
	ClosedHandshake                     // its handshake failed, was slow, or made room for another
	ClosedMessageTimeout                // a message took longer than the door's message_timeout
	ClosedProtocol                      // what it sent cannot be trusted
	ClosedCancels                       // it cancelled nearly all of its requests
	ClosedAddressLimit                  // its address had as many as connections_per_address
	ClosedConnectionLimit               // the door was full, or no descriptor was left
	ClosedQuota                         // its identity has as many connections as its quota allows
	ClosedDraining                      // the server shuts down
	ClosedError                         // the socket failed, or a bug
	closedReasons
)

var closedNames = [closedReasons]string{
	"client", "idle", "stalled", "handshake", "message_timeout", "protocol", "cancels", "address_limit", "connection_limit", "quota", "draining", "error",
}

// String is the label.
func (c Closed) String() string { return closedNames[c] }

// A Feedback is what became of feedback for an application.
type Feedback uint8

// What can become of it.
const (
	Learned  Feedback = iota // the policy learned it
	Repeated                 // it had been learned before
	Failed                   // it was not learned: it was wrong, or the store could not be written
	feedbacks
)

var feedbackNames = [feedbacks]string{"learned", "repeated", "failed"}

// String is the label.
func (f Feedback) String() string { return feedbackNames[f] }
