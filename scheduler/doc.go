// Package scheduler gathers requests into batches for replicas of models, so that as many as
// possible are answered by their deadlines.
//
// It is a library without sockets. Front ends submit requests; workers (sessions of containers, or
// functions, see [Func]) are handed batches.
//
//	s, err := scheduler.New(scheduler.Config{})
//	rep, err := s.AddReplica(id, spec, scheduler.Func(predict), scheduler.ReplicaOptions{})
//	err = s.Infer(ctx, &scheduler.Request{Model: rep.Model(), Inputs: inputs, Rows: 1})
//
// # A request's states
//
//	          refused: limit, prediction, draining, no replica -------------------+
//	            |                                                                 |
//	Submit -> waiting -> executing -> answered with outputs                       v
//	            | ^          |                                                 answered
//	            | +----------+ replica lost or suspect: waits again, apart     with Err
//	            |            | batch failed: waits again, in smaller batches      ^
//	            +------------+- deadline, cancel, failed, no replica left, Close -+
//
// A request of many rows may wait and execute at the same time. Whatever happens, its owner's
// Complete is called exactly once.
//
// # A replica's states
//
//	AddReplica -> live -- no answer in ExecTimeout --> suspect -- nor to probes -> Silent
//	               |  <--- any answer -----------------+  |
//	             Drain -> draining ------------------+    |
//	               +- Remove, or Send fails -> gone <+----+
//
// Silent is the callback of [ReplicaOptions]; it has to end the replica.
//
// # Units and limits
//
// Everything is counted in rows, items along the batch dimension, not in requests. Outside, times
// are [time.Time] and [time.Duration]; inside, int64 nanoseconds since the scheduler was made.
// Queues are bounded by rows and bytes (see [ModelConfig]), and by 1,024 different shapes at
// once; a refusal names the limit, its value and what the request needed.
//
// Four mechanisms are kept apart. The objective sizes batches and ends nothing. The deadline is
// hard: a timer answers the request whatever the containers do. The execution timeout gives a batch
// up, and makes its replica suspect if the replica has answered nothing meanwhile. A caller that
// gives up cancels its request.
//
// # Invariants
//
// A batch never has more rows than the smaller of the configured and the declared maximum, and its
// rows agree in dtype and trailing shape. The rows of a batch whose replica is lost are tried again
// apart from others, in fewer and fewer requests at once: at most four replicas are lost with a
// row, and none after it was alone in the second one. The rows of a failed batch are tried again in
// smaller batches, each of which answers some rows or narrows down the bad one. No row is sent
// after its request was answered, or after its deadline. An idle replica and a row that it could
// answer never wait for each other, except during the configured delay. [Model.Check] verifies the
// invariants.
//
// # Concurrency
//
// Everything exported may be called from any goroutine. The scheduler has no goroutine of its
// own: it runs on those of its callers and of its timers, one per model. [Completer.Complete],
// [Worker.Send] and [Hooks] are called with no lock held, may call back into the scheduler, and
// must not block. A worker may answer before its Send returns.
//
// # Lifetimes
//
// The submitter's references to a request's inputs must last until Complete; a batch has
// references of its own until it is answered, so an early answer (deadline, cancel) does not free
// memory that a container is reading. Outputs given to [Batch.Complete] pass to the batch; each
// request gets views of them with a reference per output, which its owner releases. A Batch must
// not be touched after Complete or Fail, or after [Replica.Remove].
package scheduler
