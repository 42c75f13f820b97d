package zmtp_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A script is a connection on which the peer sends its bytes, a few at a time, and closes.
type script struct {
	net.Conn
	in    []byte
	piece int
	gave  int
	check func(gave int) // called before each read: checks the memory after the bytes so far
}

func (s *script) Read(p []byte) (int, error) {
	if s.check != nil {
		s.check(s.gave)
	}
	if len(s.in) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.in[:min(s.piece, len(s.in))])
	s.in = s.in[n:]
	s.gave += n
	return n, nil
}

func (s *script) Write(p []byte) (int, error)      { return len(p), nil }
func (s *script) Close() error                     { return nil }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }
func (s *script) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (s *script) RemoteAddr() net.Addr             { return &net.TCPAddr{} }

// FuzzReceive: whatever bytes follow the handshake, there is no panic, no memory beyond what
// arrived, all memory is released, and the messages are the same however the bytes are cut.
func FuzzReceive(f *testing.F) {
	for _, s := range []string{"0100010402000000", "01000401300000", "0407045047494e470000", "020000000000000400",
		"03ffffffffffffffff", "0507", "0005"} {
		b, _ := hex.DecodeString(s)
		f.Add(b, uint16(0), byte(3))
	}
	f.Add(long(0, 5000), uint16(6000), byte(0))
	f.Add(append([]byte{1, 1, 'x'}, long(1, 40_000)...), uint16(50_000), byte(255))
	// Zeros after the input fill the bodies that it announces: long inputs would only slow the
	// fuzzer down.
	f.Fuzz(func(t *testing.T, in []byte, zeros uint16, piece byte) {
		budgettest.Input(t)
		in = append(in[:len(in):len(in)], make([]byte, zeros)...)
		whole, err := run(t, in, len(in)+1)
		cut, cutErr := run(t, in, int(piece)+1)
		if !bytes.Equal(whole, cut) || (err == io.EOF) != (cutErr == io.EOF) {
			t.Fatalf("whole: %x, %v; in pieces of %d: %x, %v", whole, err, int(piece)+1, cut, cutErr)
		}
	})
}

// run feeds the bytes and returns everything received, in a line.
func run(t *testing.T, in []byte, piece int) (all []byte, err error) {
	pool := tensor.NewPool(1 << 30)
	// The oracle: eight times the bytes that have arrived and 16 KiB, plus a quarter for size
	// classes and an arena.
	check := func(gave int) {
		if held := pool.InUse(); held > int64(10*gave+24<<10) {
			t.Fatalf("%d bytes held for %d received", held, gave)
		}
	}
	all = append(append(all, greeting()...), ready("DEALER")...)
	c, err := zmtp.Server(&script{in: append(all, in...), piece: piece, check: check}, zmtp.Config{
		Pool: pool, Limits: zmtp.Limits{MessageBytes: 64 << 20, Frames: 50},
	})
	all = nil
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var m zmtp.Message
	for {
		if err = c.Receive(&m); err != nil {
			if !errors.Is(err, zmtp.ErrProtocol) && !errors.Is(err, zmtp.ErrTooLarge) && err != io.EOF &&
				err != io.ErrUnexpectedEOF {
				t.Fatalf("unnamed error %v", err)
			}
			break
		}
		for _, f := range m.Frames {
			all = append(append(all, f.Data...), '|')
		}
		all = append(all, '\n')
		m.Release()
	}
	if n := pool.InUse(); n != 0 {
		t.Fatalf("%d bytes not given back", n)
	}
	return all, err
}

// FuzzHandshake: whatever bytes a peer begins with, no panic escapes and its claims take no memory.
func FuzzHandshake(f *testing.F) {
	f.Add(append(greeting(), ready("DEALER")...))
	f.Add(append(greeting(), long(4, 1<<40)...))
	f.Add(append(greeting(), command("READY", property("Socket-Type", "STREAM"))...))
	f.Add(append(greeting(), command("READY", "\xff")...))
	f.Add([]byte("GET / HTTP/1.0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		budgettest.Input(t)
		if c, err := zmtp.Server(&script{in: in, piece: 7}, zmtp.Config{}); err == nil {
			if c.Peer().Minor != in[11] {
				t.Fatal("wrong peer")
			}
			c.Close()
		}
	})
}
