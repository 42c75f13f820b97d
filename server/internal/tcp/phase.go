package tcp

import (
	"fmt"
	"slices"

	"github.com/shivad/shivad/shiva/tensor"
)

// How far sessions and their calls have come. Each step is in one of the two tables below; the
// invariants build ends the process at any other.

// A sessionPhase is how far a session has come. A later phase has a higher number.
//
//	         refusal, shutdown,            answers
//	         the peer's end                have left
//	reading ---------------------> leaving ---------> lingering ---> ending ---> gone
//	                                  |                                ^
//	                  the peer's end  +--> hungUp ---------------------+
//
// A timeout or a fault leads from each of them to ending, and the end of the transport to gone.
type sessionPhase uint8

const (
	reading   sessionPhase = iota
	leaving                // input is discarded; the session ends when its answers have left
	hungUp                 // as leaving, and the peer has ended its direction
	lingering              // the server's direction has ended; input is still discarded
	ending                 // the server has closed the transport; closed was not called yet
	gone                   // the transport is closed; completed calls are only freed
	sessionPhases
)

func (p sessionPhase) String() string {
	return [...]string{"reading", "leaving", "hung up", "lingering", "ending", "gone"}[p]
}

// sessionSteps lists the phases that may follow each.
var sessionSteps = [sessionPhases][]sessionPhase{
	reading:   {leaving, ending, gone},
	leaving:   {hungUp, lingering, ending, gone},
	hungUp:    {ending, gone},
	lingering: {ending, gone},
	ending:    {gone},
}

// A callPhase is how far a call has come.
//
//	free ---> opening ----------------------------------> answered ---> free
//	           |  |  |                                     ^    ^
//	           |  |  +--> fetching ---> held --------------+    |
//	           |  +---------------------^ |                     |
//	           +--------------------------+---> inFlight -------+
//
// A call whose client is gone is freed as soon as nobody else has it.
type callPhase uint8

const (
	free     callPhase = iota // in loop.calls
	opening                   // its message is being turned into a call; or it ended in a panic
	fetching                  // inputs are being read from shared memory; then the call opens
	held                      // it waits for room for its answer
	inFlight                  // submitted, or about to be, and not yet complete
	answered                  // the answer is complete and may leave when it is first in the line
	callPhases
)

func (p callPhase) String() string {
	return [...]string{"free", "opening", "fetching", "held", "in flight", "answered"}[p]
}

// callSteps lists the phases that may follow each.
var callSteps = [callPhases][]callPhase{
	free:     {opening},
	opening:  {fetching, held, inFlight, answered, free},
	fetching: {held},
	held:     {inFlight, answered, free},
	inFlight: {answered, free},
	answered: {free},
}

func (s *session) enter(p sessionPhase) {
	if tensor.Invariants && !slices.Contains(sessionSteps[s.phase], p) {
		panic(tensor.Violation(fmt.Sprintf("tcp: a session that is %v would be %v", s.phase, p)))
	}
	s.phase = p
}

func (c *call) enter(p callPhase) {
	if tensor.Invariants && !slices.Contains(callSteps[c.phase], p) {
		panic(tensor.Violation(fmt.Sprintf("tcp: a call that is %v would be %v", c.phase, p)))
	}
	c.phase = p
}

// waits reports whether the call has a place in the line, but is not submitted.
func (c *call) waits() bool { return c.phase == fetching || c.phase == held }
