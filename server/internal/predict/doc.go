// Package predict is the Predict Protocol V2 independent of its wires: the requests and answers,
// over HTTP as over gRPC.
//
//	a door --gate.Request--> Door.Infer --> gate --> scheduler
//	       <--Answer--------
//	       <-- metadata, config, statistics, index: structs with JSON names
//
// A door reads its wire into a request, calls Infer, and writes the Answer. Everything common to
// both (parameters, requested outputs, classification, cancellation, counting) is here. Every error
// has a row in fault.Of.
//
// Concurrency: everything may be called from any goroutine. Infer blocks until the request is
// answered.
//
// Memory: Infer takes over the inputs of a request when it is called. An Answer's outputs live
// until its Release.
//
// Sources: the protocol's text (Predict Protocol, version 2), and where it is silent, Triton's
// documentation of the extensions, which clients rely on.
//
// # Descriptions of models and readiness
//
//   - Only internal/predict describes models, over Shiva, too. A second description in the gate
//     lacked properties, listed no versions for an application with its model's name, and gave the
//     reason why a server is not ready as reason where HTTP has error. !live, !ready and !models
//     exist in Shiva only, and stay in the gate.
//   - Ready means that all models that should serve can, as the Predict Protocol says, and "all"
//     are those of [[container]] and the required ones (internal/operate/ready.go). A model whose
//     container connects by itself is not among them unless it is required: one that left for good
//     would take the server out of every balancer for ever. If a [[container]] does not name its
//     model, readiness waits for the model that its process registers; the kernel tells the process
//     by the socket's other end.
//   - A server whose Redis is unreachable is ready. It serves with its last known state; if it were
//     not ready, all servers that share the Redis would leave the balancer at once. /readyz and the
//     status name the fault, in degraded and state.
//   - An unknown name is Unavailable until the store has been read once. It may be an
//     application's, and NotFound tells clients not to retry.
package predict
