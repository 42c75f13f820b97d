package shivatest_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestServer: a fault that keeps the stream in step is answered and the connection kept, any other
// is answered and the connection closed; Close ends everything.
func TestServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n shivatest.Net
		l, err := n.Listen("a:1")
		if err != nil {
			t.Fatal(err)
		}
		s := shivatest.Serve(l, shivatest.Echo)
		defer s.Close()
		conn, err := n.Dial(t.Context(), "tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		x, _ := tensor.FromSlice(tensor.Shape{2}, []float32{1, 2})
		wire, err := shiva.AppendMessage(nil, &shiva.Message{Namespace: "n", Metadata: []byte(`{"bad":}`)})
		if err != nil {
			t.Fatal(err)
		}
		wire, _ = shiva.AppendMessage(wire, &shiva.Message{Namespace: "n", Tensors: []tensor.Tensor{x}})
		if _, err := conn.Write(append(wire, "GET / HTTP/1.1\r\n\r\n"...)); err != nil {
			t.Fatal(err)
		}
		d := shiva.NewDecoder(shiva.DecoderConfig{})
		var got []*shiva.Message
		block := make([]byte, 100)
		for {
			k, err := conn.Read(block)
			for p := block[:k]; len(p) > 0; {
				used, m, err := d.Push(p)
				if err != nil {
					t.Fatal(err)
				}
				if p = p[used:]; m != nil {
					got = append(got, shivatest.Clone(m))
					m.Release()
				}
			}
			if err != nil {
				break
			}
		}
		if len(got) != 3 || shiva.ParseError(got[0]) == nil || got[1].Namespace != "n" || len(got[1].Tensors) != 1 ||
			shiva.ParseError(got[2]) == nil || shiva.ParseError(got[2]).Type != shiva.Protocol {
			t.Errorf("answers %+v", got)
		}
		if len(s.Conns()) != 1 {
			t.Errorf("%d connections", len(s.Conns()))
		}
	})
}

func TestFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n shivatest.Net
		l, err := n.Listen("a:1")
		if err != nil {
			t.Fatal(err)
		}
		s := shivatest.Serve(l, shivatest.Fail(&shiva.RemoteError{Type: shiva.Internal}))
		defer s.Close()
		c, err := shiva.Dial(t.Context(), "a:1", shiva.WithDialer(n.Dial))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = c.Do(t.Context(), &shiva.Message{})
		if e, ok := errors.AsType[*shiva.RemoteError](err); !ok || e.Type != shiva.Internal {
			t.Error(err)
		}
	})
}
