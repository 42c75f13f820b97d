// Package wire reads the messages of the gRPC door while they arrive. It alone knows how grpc-go
// and protocol buffers lay them out.
//
//	grpc-go's transport -frames-> Stream.Receive -pieces, unpacked-> Message -fields-> door
//
// grpc-go's own RecvMsg takes a whole message into memory before the door sees it, so no budget
// counts that memory; the documentation of package grpc says what else was tried. Here a limit
// applies as soon as a message's length is known, tensors go straight into the memory that they
// stay in, and that memory is taken as their bytes arrive.
//
// [Transport] is all that is used of grpc-go beyond its public API. TestVersion lists the versions
// for which it holds.
package wire
