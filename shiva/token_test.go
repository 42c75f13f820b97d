package shiva_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shivad/shivad/shiva"
)

// introduced answers on a listener, and records the first message of each connection. It refuses
// every message of a connection that did not begin with a known token.
type introduced struct {
	mu      sync.Mutex
	first   []string
	known   []string
	refused func() // called at each refusal; may be nil
}

// verdict returns the answer to a message of a connection that began with first.
func (s *introduced) verdict(m *shiva.Message, first string) *shiva.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.known, func(known string) bool { return strings.Contains(first, known) }) {
		return &shiva.Message{Namespace: m.Namespace}
	}
	if s.refused != nil {
		s.refused()
	}
	return shiva.ErrorMessage(&shiva.RemoteError{Type: shiva.Unauthenticated, Message: "none of this server's",
		Code: 401})
}

func (s *introduced) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() { // ends with the connection
			defer conn.Close()
			d := shiva.NewDecoder(shiva.DecoderConfig{})
			defer d.Close()
			block, first := make([]byte, 4096), ""
			for {
				n, err := conn.Read(block)
				if err != nil {
					return
				}
				for p := block[:n]; len(p) > 0; {
					used, m, err := d.Push(p)
					if err != nil {
						return
					}
					if p = p[used:]; m == nil {
						continue
					}
					if first == "" {
						first = m.Namespace + string(m.Metadata)
						s.mu.Lock()
						s.first = append(s.first, first)
						s.mu.Unlock()
					}
					answer := s.verdict(m, first)
					m.Release()
					b, _ := shiva.AppendMessage(nil, answer)
					conn.Write(b)
				}
			}
		}()
	}
}

// A client shows its token in the first message of each connection, and an unknown token is an
// error of Dial; the token is that of the environment unless one is given.
func TestToken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := &introduced{known: []string{"s3cret"}}
	go s.serve(l) // until l is closed
	t.Setenv("SHIVA_TOKEN", "s3cret-of-the-environment")
	for _, options := range [][]shiva.Option{{shiva.WithToken("s3cret")}, {}} {
		c, err := shiva.Dial(t.Context(), l.Addr().String(), options...)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := c.Do(t.Context(), &shiva.Message{Namespace: "m"})
		if err != nil {
			t.Error(err)
		} else {
			answer.Release()
		}
		c.Close()
	}
	_, err = shiva.Dial(t.Context(), l.Addr().String(), shiva.WithToken("unknown"))
	if e, ok := errors.AsType[*shiva.RemoteError](err); !ok || e.Type != shiva.Unauthenticated ||
		strings.Contains(err.Error(), "unknown") {
		t.Errorf("an unknown token: %v", err)
	}
	c, err := shiva.Dial(t.Context(), l.Addr().String(), shiva.WithToken(""))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Do(t.Context(), &shiva.Message{Namespace: "m"}); err == nil {
		t.Error("no token is taken")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := strings.Join(s.first, " "); got != `!whoami{"token":"s3cret"} !whoami{"token":"s3cret-of-the-environment"} !whoami{"token":"unknown"} m` {
		t.Errorf("first messages: %s", got)
	}
}

// A renewal is a server that knows some tokens, and the file with a client's token.
type renewal struct {
	*introduced
	addr, file string
}

func newRenewal(t *testing.T) *renewal {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	r := &renewal{&introduced{}, l.Addr().String(), filepath.Join(t.TempDir(), "token")}
	t.Setenv("SHIVA_TOKEN", "")
	t.Setenv("SHIVA_TOKEN_FILE", r.file)
	r.knows("first")
	r.write(t, "first")
	go r.serve(l) // until l is closed
	return r
}

func (r *renewal) knows(tokens ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = tokens
}

func (r *renewal) write(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(r.file, []byte(text), 0o600); err != nil {
		t.Error(err)
	}
}

// connections returns how many connections were made.
func (r *renewal) connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.first)
}

func (r *renewal) ask(t *testing.T, c *shiva.Client) error {
	m, err := c.Do(t.Context(), &shiva.Message{Namespace: "m"})
	if err == nil {
		m.Release()
	}
	return err
}

// A token that is no longer accepted is read again from its file, and the request is sent again if
// there is another token; otherwise the connection is kept.
func TestTokenIsReadAgain(t *testing.T) {
	r := newRenewal(t)
	c, err := shiva.Dial(t.Context(), r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, step := range []struct {
		knows, writes string
		ok            bool
		connections   int
	}{
		{"first", "first", true, 1}, {"second", "second", true, 2}, {"third", "second", false, 2},
		{"third", "", false, 2}, {"third", "third", true, 3},
		{"fourth", "wrong", false, 4}, {"fourth", "fourth", true, 5},
	} {
		r.knows(step.knows)
		r.write(t, step.writes)
		if err := r.ask(t, c); (err == nil) != step.ok {
			t.Errorf("%+v: %v", step, err)
		} else if e, is := errors.AsType[*shiva.RemoteError](err); err != nil &&
			(!is || e.Type != shiva.Unauthenticated) {
			t.Errorf("%+v: %v", step, err)
		}
		if n := r.connections(); n != step.connections {
			t.Errorf("%+v: %d connections", step, n)
		}
	}
}

// When the token is refused, Dial reads the file again, as long as that has a new token.
func TestTokenIsReplacedDuringDial(t *testing.T) {
	r := newRenewal(t)
	r.knows("second")
	r.refused = func() { r.write(t, "second") }
	c, err := shiva.Dial(t.Context(), r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r.knows("third")
	if _, err := shiva.Dial(t.Context(), r.addr); err == nil || r.connections() != 3 {
		t.Errorf("%v after %d connections", err, r.connections())
	}
}

// No request in flight is lost when a token is replaced.
func TestTokenIsReplacedUnderLoad(t *testing.T) {
	r := newRenewal(t)
	c, err := shiva.Dial(t.Context(), r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var all sync.WaitGroup
	stop := make(chan struct{})
	for range 8 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := r.ask(t, c); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	before := "first"
	for n := range 7 {
		text := fmt.Sprint("after-", n)
		r.knows(before, text)
		r.write(t, text)
		r.knows(text)
		before = text
		for n := 0; n < 20 && r.ask(t, c) == nil; n++ { // alongside the others
		}
	}
	close(stop)
	all.Wait()
	if n := r.connections(); n < 8 {
		t.Errorf("%d connections", n)
	}
}

// The refused frame is lost; later ones are sent with the new token.
func TestStreamRenewsToken(t *testing.T) {
	r := newRenewal(t)
	c, err := shiva.Dial(t.Context(), r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := c.Stream(t.Context(), shiva.StreamConfig{Model: "m", Name: "s"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	frame := func() (err error) {
		if _, err := s.Push(t.Context(), shiva.Frame{}); err != nil {
			t.Fatal(err)
		}
		for a, fault := range s.Answers(t.Context()) {
			if err = fault; err == nil {
				a.Message.Release()
			}
			break
		}
		return err
	}
	if err := frame(); err != nil {
		t.Error(err)
	}
	r.write(t, "second")
	r.knows("second")
	if e, ok := errors.AsType[*shiva.RemoteError](frame()); !ok || e.Type != shiva.Unauthenticated {
		t.Errorf("%v", e)
	}
	if err := frame(); err != nil {
		t.Error(err)
	}
}
