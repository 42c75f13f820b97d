// Package gate is the one entrance for all doors: it turns a client's request into one to the
// scheduler, and the scheduler's result into an answer.
//
//	door -Question-> Open -> Submit ... Owner.Complete -> door -AppendMetadata, Outputs-> client
//	                   \-> an error, or a control answer at once
//
// A name may belong to an application instead of a model. Such a call becomes a [Fanout]. A
// client's judgement of an answer is not a request; it is opened as [Feedback].
//
// Routes are one immutable table behind an atomic pointer, rebuilt whenever a model's replicas or
// declaration change. A request costs one map lookup and no lock.
//
// Concurrency: a Gate may be used from any goroutine. A Call belongs to the door that opened it;
// from Submit until its Owner's Complete it belongs to the gate, and may only be cancelled.
//
// Memory: a Call refers to the request's tensors and metadata without copying them, so the door
// keeps the message alive until it has written the answer. A completed Call holds references to its
// outputs, which Close releases.
package gate
