// Package predict is the Predict Protocol V2 apart from its wires: what a client may ask, and
// what is answered, whether it came as HTTP or as gRPC.
//
//	server/rest, server/grpc --Question--> Door.Infer --> gate --> scheduler
//	                         <--Answer---
//	                         <-- metadata, config, statistics, index: structs with JSON names
//
// A door reads its wire into a Question, calls Infer, and writes the Answer; everything that must
// be the same for both (parameters, requested outputs, classification, cancelling, counting) is
// here. The error of any function is one that gate.StatusOf has a row for.
//
// Concurrency: everything may be called from any goroutine. Infer blocks until the request is
// answered.
//
// Memory: Infer owns a Question's inputs from the call on. An Answer's outputs live until its
// Release.
//
// Sources: the protocol's text (Predict Protocol, version 2), and for what it leaves open Triton's
// documentation of the extensions, which clients rely on.
package predict
