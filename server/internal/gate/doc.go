// Package gate is the one way in for all doors: it turns what a client asked into a request of the
// scheduler, and what the scheduler gave back into an answer.
//
//	door -Question-> Open -> Submit ... Owner.Complete -> door -AppendMetadata, Outputs-> client
//	                   \-> an error, or a control answer at once
//
// Behind a name may be an application instead of a model. What it makes of a call is a [Fanout] of
// its own. What a client says of its answer is no question: it is opened as [Feedback].
//
// Routes are one immutable table behind an atomic pointer, rebuilt whenever a model's replicas or
// declaration change; a request costs one map lookup and no lock.
//
// Concurrency: a Gate may be used from everywhere. A Call belongs to the door that opened it: from
// Submit until its Owner's Complete it is the gate's, and may only be cancelled.
//
// Memory: a Call refers to the question's tensors and metadata without copying them, so the
// door keeps the message alive until it has written the answer. The outputs of a completed Call
// carry references which Close gives back.
package gate
