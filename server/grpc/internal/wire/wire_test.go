package wire

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// versions are those of grpc-go that TestStream has held for, the tests of the gRPC door and its bench
// with it (run -only doors). Whoever takes another runs all three and adds it here.
var versions = []string{"1.85.0"}

func TestVersion(t *testing.T) {
	if !slices.Contains(versions, grpc.Version) {
		t.Errorf("grpc-go is %s, and package wire is known to hold for %q", grpc.Version, versions)
	}
}

// A handler reads a message piece by piece, larger than a frame of HTTP/2, and ends the call by itself.
func TestStream(t *testing.T) {
	type message struct {
		packed   bool
		encoding string
		body     []byte
		end      error
	}
	got := make(chan message, 1)
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		w, err := Of(stream.Context())
		if err != nil {
			t.Error(err)
			return err
		}
		var m message
		defer func() { got <- m }()
		var header [5]byte
		if err := w.ReadMessageHeader(header[:]); err != nil {
			t.Error(err)
			return err
		}
		m.packed, m.encoding = header[0] == 1, w.RecvCompress()
		for left := int(binary.BigEndian.Uint32(header[1:])); left > 0; {
			piece, err := w.Read(min(left, 5000))
			if err != nil {
				t.Error(err)
				return err
			}
			left -= piece.Len()
			m.body = append(m.body, piece.Materialize()...)
			piece.Free()
		}
		m.end = w.ReadMessageHeader(header[:])
		return w.WriteStatus(status.New(codes.DataLoss, "said by the handler"))
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	c, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := bytes.Repeat([]byte("shiva"), 20_000)
	for _, encoding := range []string{"", gzip.Name} {
		var options []grpc.CallOption
		if encoding != "" {
			options = append(options, grpc.UseCompressor(encoding))
		}
		err := c.Invoke(t.Context(), "/any/Call", wrapperspb.Bytes(want), new(wrapperspb.BytesValue), options...)
		if status.Code(err) != codes.DataLoss || status.Convert(err).Message() != "said by the handler" {
			t.Errorf("encoding %q: the call ended with %v", encoding, err)
		}
		m := <-got
		if m.packed != (encoding != "") || m.encoding != encoding || m.end != io.EOF {
			t.Errorf("encoding %q: packed %v, encoding %q, then %v", encoding, m.packed, m.encoding, m.end)
		}
		if encoding == "" && !bytes.HasSuffix(m.body, want) || len(m.body) == 0 {
			t.Errorf("encoding %q: %d bytes came", encoding, len(m.body))
		}
	}
}
