// Package grpc is the door for clients that speak the Predict Protocol V2 over gRPC, with
// Triton's extensions.
//
//	connection ─HTTP/2─► grpc-go ─frames─► internal/wire ─fields─► request ─► predict.Door.Infer
//	           ◄───────── grpc-go ◄─codec── reply ◄───────────────answer─────
//
// grpc-go does the wire up to messages. Messages of the Predict Protocol are read by package wire,
// piece by piece as they arrive. Answers point at the outputs' memory. Everything but inference
// goes through the generated code.
//
// Concurrency: grpc-go runs each call in a goroutine of its own, and a stream's requests get
// one each.
//
// Memory: a request's tensors are the request's until Infer has them. An answer's outputs are
// referenced once for the handler that sends it and once for the connection until the bytes
// have left; see conn.
//
// Sources: the protocol's text (Predict Protocol, version 2); pb/*.proto; gRPC over HTTP/2; the
// protocol buffers' encoding.
package grpc
