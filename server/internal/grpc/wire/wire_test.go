package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// versions are those of grpc-go for which TestStream, the tests of the gRPC door and its bench (run
// -only doors) have passed. For another version run all three, and add it here.
var versions = []string{"1.85.0"}

func TestVersion(t *testing.T) {
	if !slices.Contains(versions, grpc.Version) {
		t.Errorf("grpc-go is %s, and package wire is known to hold for %q", grpc.Version, versions)
	}
}

func statusOf(err error) *status.Status { return status.New(codes.DataLoss, err.Error()) }

// within are bounds for messages of some kilobytes.
func within(pool *tensor.Pool, timeout time.Duration) func() Bounds {
	return func() Bounds {
		return Bounds{Bytes: 2_000_000, Setting: "limits.some", Text: 100, Timeout: timeout,
			Memory: &gate.Memory{Pool: pool}}
	}
}

// A handler reads messages of a grpc-go client, plain and compressed, larger than a frame of
// HTTP/2, and ends the call itself.
func TestStream(t *testing.T) {
	type call struct {
		body []byte
		err  error // of the message
		end  error // of the next message
	}
	got := make(chan call, 1)
	pool := tensor.NewPool(1 << 20)
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		var c call
		defer func() { got <- c }()
		s, err := Of(stream.Context(), statusOf)
		if err != nil {
			c.err = err
			return err
		}
		var value Bytes
		_, c.err = s.Receive(within(pool, time.Minute), false, func(m *Message) {
			m.Fields(func(number int) {
				if n, ok := m.Delimited(); ok && number == 1 {
					m.Append(&value, n)
				}
			})
		})
		c.body = bytes.Clone(value.Data())
		value.Release()
		_, c.end = s.Receive(within(pool, time.Minute), false, func(*Message) {})
		s.End(errors.New("as the handler says"))
		return nil
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
	for _, encoding := range []string{"", gzip.Name, "deflate"} {
		var options []grpc.CallOption
		if encoding != "" {
			options = append(options, grpc.UseCompressor(encoding))
		}
		err := c.Invoke(t.Context(), "/any/Call", wrapperspb.Bytes(want), new(wrapperspb.BytesValue), options...)
		if status.Code(err) != codes.DataLoss || status.Convert(err).Message() != "as the handler says" {
			t.Errorf("encoding %q: the call ended with %v", encoding, err)
		}
		if c := <-got; c.err != nil || c.end != io.EOF || !bytes.Equal(c.body, want) {
			t.Errorf("encoding %q: %d bytes, %v, then %v", encoding, len(c.body), c.err, c.end)
		}
	}
	if n := pool.InUse(); n != 0 {
		t.Errorf("%d bytes are still out", n)
	}
}

// A fake is a transport whose client sends data and then nothing more.
type fake struct {
	data  []byte
	ended chan struct{} // closed by WriteStatus; nil: the client ends the call after its data
	out   int           // buffers that are not freed
}

// sent returns a message with flags, whose header announces n bytes.
func sent(flags byte, n int, data ...byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(n)), data...)
}

func (f *fake) take(p []byte) error {
	if len(p) > len(f.data) && f.ended != nil {
		<-f.ended
		return errors.New("the call has ended")
	}
	if len(f.data) == 0 {
		return io.EOF
	}
	n := copy(p, f.data)
	f.data = f.data[n:]
	if n < len(p) {
		return io.ErrUnexpectedEOF
	}
	return nil
}

func (f *fake) ReadMessageHeader(header []byte) error { return f.take(header) }

func (f *fake) Read(n int) (mem.BufferSlice, error) {
	b := make([]byte, max(n, 2<<10))[:n] // grpc-go gives smaller ones back to no pool
	if err := f.take(b); err != nil {
		return nil, err
	}
	f.out++
	return mem.BufferSlice{mem.NewBuffer(&b, f)}, nil
}

func (f *fake) Get(n int) *[]byte { return nil }

func (f *fake) Put(*[]byte) { f.out-- }

func (f *fake) RecvCompress() string { return "" }

func (f *fake) WriteStatus(*status.Status) error {
	close(f.ended)
	return nil
}

// A fault of a message is found as early as possible: a wrong size when it is announced.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		data []byte
		err  error
		word string
	}{
		"too large":        {sent(0, 2_000_001), scheduler.ErrTooLarge, "2000001 bytes; limits.some is 2000000"},
		"flags":            {sent(2, 0), fault.ErrProtocol, "flags 0x2"},
		"no such encoding": {sent(1, 0), fault.ErrProtocol, "grpc-encoding"},
		"cut":              {sent(0, 10, 0x0a), fault.ErrProtocol, "before its announced length"},
		"a field beyond":   {sent(0, 2, 0x0a, 1), fault.ErrProtocol, "1 bytes where 0 are left"},
		"a number beyond":  {sent(0, 2, 0x08, 0x80), fault.ErrProtocol, "in the middle of a value"},
		"a number of 65 bits": {sent(0, 11, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2),
			fault.ErrProtocol, "64 bits"},
		"text beyond its part": {sent(0, 103, append([]byte{0x0a, 101}, make([]byte, 101)...)...),
			scheduler.ErrTooLarge, "at least 101 bytes"},
		"half a number": {sent(0, 5, 0x12, 3, 0, 0, 0), fault.ErrProtocol, "3 bytes in field 2, expected a multiple of 4"},
	} {
		f := &fake{data: c.data}
		var text string
		_, err := New(f, statusOf).Receive(within(nil, 0), false, func(m *Message) {
			m.Fields(func(number int) {
				switch number {
				case 1:
					m.String(&text)
				case 2:
					m.Fixed(4)
				}
			})
		})
		if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: %v, expected %v with %q", name, err, c.err, c.word)
		}
	}
}

// After a fault the rest of a message is skipped, so that the next one can be received; unread
// fields are skipped as well.
func TestResume(t *testing.T) {
	bad := append([]byte{0x0a, 9, 7}, make([]byte, 3*minPiece)...)
	good := slices.Concat([]byte{0x12, 3}, []byte("xyz"), []byte{0x1b, 0x20, 1, 0x1c}, []byte{0x08, 5})
	f := &fake{data: append(sent(0, len(bad), bad...), sent(0, len(good), good...)...)}
	s := New(f, statusOf)
	var v uint64
	read := func(m *Message) {
		m.Fields(func(number int) {
			if n, ok := m.Varint(); ok && number == 1 {
				v = n
			} else if number == 1 {
				m.Fixed(4)
			}
		})
	}
	if resumed, err := s.Receive(within(nil, 0), true, read); !resumed || !errors.Is(err, fault.ErrProtocol) {
		t.Errorf("resumed %v after %v", resumed, err)
	}
	if _, err := s.Receive(within(nil, 0), true, read); err != nil || v != 5 {
		t.Errorf("then %d, %v", v, err)
	}
	if _, err := s.Receive(within(nil, 0), true, read); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	if f.out != 0 {
		t.Errorf("%d buffers of the transport were not freed", f.out)
	}
}

// A message that does not arrive in time ends the call, and its memory is returned.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := tensor.NewPool(0)
		s := New(&fake{data: sent(0, 100_000, 0x0a, 0xa0, 0x8d, 0x06), ended: make(chan struct{})}, statusOf)
		began := time.Now()
		var value Bytes
		_, err := s.Receive(within(pool, time.Second), true, func(m *Message) {
			m.Fields(func(int) {
				n, _ := m.Delimited()
				m.Append(&value, n)
			})
		})
		if took := time.Since(began); !errors.Is(err, scheduler.ErrDeadlineExceeded) || took != 7*time.Second {
			t.Errorf("after %v: %v, expected it after 1 s and one for each 16 KiB", took, err)
		}
		value.Release()
	})
}
