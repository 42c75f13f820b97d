// Package wire reads the messages of the gRPC door while they arrive, and knows alone how grpc-go
// and protocol buffers lay them out.
//
//	grpc-go's transport ─frames─► Stream.Receive ─pieces, unpacked─► Message ─fields─► door
//
// grpc-go's own reading (RecvMsg) takes a whole message into memory before anybody sees it, so
// that no budget counts it; server/DESIGN.md says what was tried instead. Here a limit is noticed
// at a message's length, tensors go straight into the memory that they stay in, and that memory
// is taken as their bytes arrive.
//
// [Transport] is all that is used of grpc-go without its promise. TestVersion names the versions
// that it holds for.
package wire
