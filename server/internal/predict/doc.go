// Package predict is the Predict Protocol V2 independent of its wires: the requests and answers,
// over HTTP as over gRPC.
//
//	server/internal/rest, server/internal/grpc --Question--> Door.Infer --> gate --> scheduler
//	                         <--Answer---
//	                         <-- metadata, config, statistics, index: structs with JSON names
//
// A door reads its wire into a Question, calls Infer, and writes the Answer. Everything common to
// both (parameters, requested outputs, classification, cancellation, counting) is here. Every error
// has a row in fault.Of.
//
// Concurrency: everything may be called from any goroutine. Infer blocks until the request is
// answered.
//
// Memory: Infer takes over a Question's inputs when it is called. An Answer's outputs live until
// its Release.
//
// Sources: the protocol's text (Predict Protocol, version 2), and where it is silent, Triton's
// documentation of the extensions, which clients rely on.
package predict
