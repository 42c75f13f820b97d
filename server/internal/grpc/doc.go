// Package grpc is the door for clients that speak the Predict Protocol V2 over gRPC, with
// Triton's extensions.
//
//	connection ─HTTP/2─► grpc-go ─frames─► internal/wire ─fields─► request ─► predict.Door.Infer
//	           ◄───────── grpc-go ◄─codec── reply ◄───────────────answer─────
//
// grpc-go handles the wire up to messages. Package wire reads messages of the Predict Protocol
// piece by piece as they arrive. Answers reference the outputs' memory instead of copying it.
// Everything but inference goes through the generated code.
//
// Concurrency: grpc-go runs each call in a goroutine of its own, and each request of a stream gets
// one as well.
//
// Memory: a request owns its tensors until Infer takes them over. An answer's outputs have one
// reference for the handler that sends them, and one for the connection until the bytes have left;
// see conn.
//
// Sources: the protocol's text (Predict Protocol, version 2); pb/*.proto; gRPC over HTTP/2; the
// protocol buffers' encoding.
package grpc
