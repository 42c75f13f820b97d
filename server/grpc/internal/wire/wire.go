// Package wire is all of grpc-go that the gRPC door uses without its promise: what grpc-go itself reads
// messages from. grpc-go's own reading (RecvMsg) takes a whole message into memory before anybody sees it;
// see server/DESIGN.md for what was tried instead.
package wire

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// A Stream is a call's side of the transport. Its methods are those of a type internal to grpc-go, in
// the versions that the test of this package names.
type Stream interface {
	ReadMessageHeader(header []byte) error // all of header, or io.EOF where no message begins
	Read(n int) (mem.BufferSlice, error)   // n bytes, which the caller frees
	RecvCompress() string                  // grpc-encoding
	WriteStatus(*status.Status) error      // ends the call, and whoever waits in Read
}

// Of gives the stream of a call that a server's handler has, by the handler's context. It fails with a
// version of grpc-go whose type lacks a method.
func Of(ctx context.Context) (Stream, error) {
	if s, ok := grpc.ServerTransportStreamFromContext(ctx).(Stream); ok {
		return s, nil
	}
	return nil, fmt.Errorf("wire: grpc-go %s does not let messages be read in pieces", grpc.Version)
}
