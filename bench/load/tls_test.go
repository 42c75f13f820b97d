package load

import (
	"crypto/tls"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/certtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// Over TLS, answers are found and checked as over plain sockets: of small requests, of many at
// once, and of requests that no socket takes in one write.
func TestLoadOverTLS(t *testing.T) {
	authority := certtest.New(t, "authority")
	l, err := tls.Listen("tcp", "127.0.0.1:0",
		&tls.Config{Certificates: []tls.Certificate{authority.Server(nil).Pair(t)}})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer l.Close()
	serving.Go(func() { // until the listener is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { // until the client hangs up
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	for name, c := range map[string]struct {
		shape tensor.Shape
		Config
	}{
		"many small":   {tensor.Shape{16}, Config{Conns: 3, InFlight: 16}},
		"gathered":     {tensor.Shape{16}, Config{Conns: 2, InFlight: 16, Gather: true}},
		"large":        {tensor.Shape{3 << 20}, Config{Conns: 2, InFlight: 2}},
		"an open loop": {tensor.Shape{100_000}, Config{Conns: 2, Rate: 200}},
	} {
		c.Addr, c.TLS = l.Addr().String(), &tls.Config{RootCAs: authority.Pool()}
		c.Duration, c.Grace, c.Check, c.CheckEvery = lasting(50*time.Millisecond), time.Minute, SameTensors, 1
		if c.Frames, err = Frames(c.Conns, "m", tensor.Uint8, c.shape); err != nil {
			t.Fatal(err)
		}
		r, err := Run(t.Context(), c.Config)
		if err != nil || r.Taken == 0 || r.Lost+r.Failed > 0 || r.Wrote != r.Read {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	c := Config{Addr: l.Addr().String(), TLS: new(tls.Config), Frames: [][]byte{{0}},
		Deadlines: []time.Duration{time.Second}}
	if _, err := Run(t.Context(), c); err == nil {
		t.Error("deadlines are measured over TLS")
	}
}
