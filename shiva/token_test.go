package shiva_test

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/shivad/shivad/shiva"
)

// introduced answers on a listener, and has the first message of each connection.
type introduced struct {
	mu    sync.Mutex
	first []string
	known string
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
			block, begun := make([]byte, 4096), false
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
					answer := &shiva.Message{Namespace: m.Namespace}
					if !begun {
						begun = true
						s.mu.Lock()
						s.first = append(s.first, m.Namespace+string(m.Metadata))
						s.mu.Unlock()
						if s.known != "" && !strings.Contains(string(m.Metadata), s.known) {
							answer = shiva.ErrorMessage(&shiva.RemoteError{Type: shiva.Unauthenticated, Message: "none of this server's", Code: 401})
						}
					}
					m.Release()
					b, _ := shiva.AppendMessage(nil, answer)
					conn.Write(b)
				}
			}
		}()
	}
}

// A client shows its token in the first message of each connection, and an unknown one is an error
// of Dial; the token of the environment is read unless it is given.
func TestToken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := &introduced{known: "s3cret"}
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
	if e, ok := errors.AsType[*shiva.RemoteError](err); !ok || e.Type != shiva.Unauthenticated || strings.Contains(err.Error(), "unknown") {
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
