package zmtp_test

import (
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"reflect"
	"testing"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/containers/zmtp"
)

// TestGoldenSessions replays the bytes that reference containers (pyzmq 24.0.1, libzmq 4.3.4)
// sent, whole and cut at every offset, and checks that the right messages come out and that our
// own bytes are the ones that their ROUTER sent.
func TestGoldenSessions(t *testing.T) {
	text, err := os.ReadFile("testdata/zmtp_sessions.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Sessions map[string][]struct{ Direction, Bytes string }
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	want := map[string][][]string{
		"gen1": {{"", "m", "1", "3"}, {"", "\x00\x00\x00\x00", "\x00\x00\x80@"}},
		"gen2": {{"", "\x02\x00\x00\x00"}, {"", "\x00\x00\x00\x00", "m", "1", "3"},
			{"", "\x01\x00\x00\x00", "\x00\x00\x00\x00", "\x01\x00\x00\x00\x03\x00\x00\x004.0"}},
		"gen3": {{"", "\x02\x00\x00\x00"}, {"", "\x00\x00\x00\x00", "m", "1", "3", "\x03\x00\x00\x00"},
			{"", "\x01\x00\x00\x00", "\x00\x00\x00\x00", "\x10\x00\x00\x00\x00\x00\x00\x00",
				"\x01\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00", "4.0"}},
	}
	for name, messages := range want {
		t.Run(name, func(t *testing.T) {
			var from, to []byte
			for _, piece := range file.Sessions[name] {
				b, err := hex.DecodeString(piece.Bytes)
				if err != nil {
					t.Fatal(err)
				}
				if piece.Direction == "container->clipper" {
					from = append(from, b...)
				} else {
					to = append(to, b...)
				}
			}
			if len(from) < 100 || len(to) < 100 {
				t.Fatalf("%d and %d bytes in the file", len(from), len(to))
			}
			for cut := range len(from) {
				got, sent := replay(t, from, cut)
				if !reflect.DeepEqual(got, messages) {
					t.Fatalf("cut at %d: %q, expected %q", cut, got, messages)
				}
				// libzmq's ROUTER sends the same greeting, except for a byte of padding, and a
				// READY of the same length.
				sent[8] = to[8]
				if string(sent[:64]) != string(to[:64]) {
					t.Fatalf("greeting %x, expected %x", sent[:64], to[:64])
				}
				if len(sent) != 64+43 {
					t.Fatalf("READY has %d bytes, expected 43", len(sent)-64)
				}
			}
		})
	}
}

// replay feeds a container's bytes to a server in two pieces.
func replay(t *testing.T, from []byte, cut int) (messages [][]string, sent []byte) {
	t.Helper()
	a, b := containertest.Pipe()
	b.Write(from[:cut])
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		b.Write(from[cut:])
		b.(interface{ CloseWrite() error }).CloseWrite()
	}()
	s, err := zmtp.Server(a, zmtp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for {
		var m zmtp.Message
		if err := s.Receive(&m); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		var frames []string
		for _, f := range m.Frames {
			frames = append(frames, string(f.Data))
		}
		messages = append(messages, frames)
		m.Release()
	}
	<-rest
	s.Close()
	sent, err = io.ReadAll(b)
	if err != nil {
		t.Fatal(err)
	}
	return messages, sent
}
