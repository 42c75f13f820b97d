package server

import (
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
)

// Each door reads a client over its rate at intervals.
func TestReadInTurns(t *testing.T) {
	const turn = 10 * time.Millisecond
	s, _ := loaded(t, new(logged), func(c *config.Config) {
		payer := declared("payer", "infer")
		payer.Quota = quotaOf(access.RequestsPerSecond, 1)
		payer.Quota.Burst = 4 * turn
		c.Identities = []config.Identity{payer}
	})
	withSlow(t, s)
	for _, d := range payingDoors {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			c := d.dial(t, s, tokenOf("payer"), "127.0.0.1")
			ask := func(n int) (refused int) {
				for range n {
					if refusedBy(t, c.ask(t.Context(), "echo", fewRows)) != "" {
						refused++
					}
				}
				return refused
			}
			ask(20)
			const turns = 12
			began := time.Now()
			refused := ask(turns)
			if took := time.Since(began); refused < turns-1 || took < (turns-2)*turn {
				t.Errorf("it was read %d times in %v, and refused %d times", turns, took, refused)
			}
		})
	}
}

// Large messages of a client over its rate, or of a stranger over that of its address, are read at
// about that rate, and another client is served meanwhile.
func TestLargeMessagesAreReadAtTheRate(t *testing.T) {
	t.Parallel() // it waits
	const rate, size, most = 4 << 20, 1 << 20, 200
	for _, token := range []string{tokenOf("payer"), ""} {
		s, _ := loaded(t, new(logged), func(c *config.Config) {
			c.Server.LimitLoopback = true
			payer := declared("payer", "infer")
			payer.Quota = quotaOf(access.BytesPerSecond, rate)
			c.Identities, c.Limits.PerAddress = []config.Identity{payer, declared("other", "infer")}, payer.Quota.Quota
		})
		withSlow(t, s)
		dial := from("127.0.0.1", s.Addrs().TCP[0])
		c := payShiva(t, token, dial).(*shivaPayer)
		if err := c.ask(t.Context(), "echo", fewRows); (err == nil) != (token != "") {
			t.Fatal(err)
		}
		other := payShiva(t, tokenOf("other"), dial)
		question, began := c.message("unknown", size/8), time.Now()
		var flood sync.WaitGroup
		flood.Go(func() {
			for n := 0; n < most && time.Since(began) < 2*time.Second; n++ {
				if _, err := c.Write(question); err != nil {
					t.Error(err)
				}
			}
			_ = c.Conn.(*net.TCPConn).CloseWrite()
		})
		flood.Go(func() { _, _ = io.Copy(io.Discard, c) })
		for range 50 {
			if err := other.ask(t.Context(), "echo", fewRows); err != nil {
				t.Fatal("another client: ", err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		flood.Wait()
		took, n := time.Since(began).Seconds(), receivedOver(t, s, "tcp")
		if n < size || n > 3*rate*took+4*size {
			t.Errorf("with the token %q: %.0f KiB were read in %.1f s, at %d KiB/s", token, n/1024, took, rate>>10)
		}
	}
}

// receivedOver returns how many bytes a door has read.
func receivedOver(t *testing.T, s *Server, door string) (n float64) {
	w := httptest.NewRecorder()
	s.metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	_, value, _ := strings.Cut(w.Body.String(), fmt.Sprintf("shivad_received_bytes_total{door=%q} ", door))
	if _, err := fmt.Sscan(value, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
