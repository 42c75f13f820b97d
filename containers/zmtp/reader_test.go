package zmtp_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/containers/zmtp"
)

// TestSlowReader: a slow reader delays only itself: Send returns at once, the queue is bounded, and
// the write timeout ends it.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := containertest.Pipe()
		s, _ := open(t, a, b, zmtp.Config{Limits: zmtp.Limits{QueuedMessages: 8}, WriteTimeout: 100 * time.Millisecond})
		big := make([]byte, 4<<20)
		full := false
		for range 16 {
			var o zmtp.Outgoing
			o.Frame(big)
			if err := s.Send(&o); errors.Is(err, zmtp.ErrQueueFull) {
				full = true
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if !full {
			t.Error("the queue never said that it is full")
		}
		var m zmtp.Message
		if err := s.Receive(&m); !errors.Is(err, zmtp.ErrStalled) {
			t.Errorf("Receive: %v, expected ErrStalled", err)
		}
	})
}

// TestCrawlingReader: a peer that takes some bytes in each write timeout is not stuck, even if
// the socket stays full all the while.
func TestCrawlingReader(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			t.Parallel()
			for timeout := time.Second; !crawls(t, tr.pair, timeout); timeout *= 2 {
			}
		})
	}
}

// crawls reads a little ten times in each timeout. It returns false if this machine was too busy
// for that, and the peer was rightly taken for stuck.
func crawls(t *testing.T, pair func(testing.TB) (server, client net.Conn), timeout time.Duration) bool {
	a, b := pair(t)
	s, _ := open(t, a, b, zmtp.Config{WriteTimeout: timeout})
	var o zmtp.Outgoing
	o.Frame(make([]byte, 32<<20)) // more than the sockets' buffers hold
	if err := s.Send(&o); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		var m zmtp.Message
		failed <- s.Receive(&m)
	}()
	some := make([]byte, 30<<10)
	last, longest := time.Now(), time.Duration(0) // longest time without reading
	for range 15 {                                // half as long again as the timeout
		_, err := io.ReadFull(b, some)
		longest = max(longest, time.Since(last))
		last = time.Now()
		if err == nil {
			select {
			case err = <-failed:
			case <-time.After(timeout / 10):
				continue
			}
		}
		if longest > timeout/2 {
			return false
		}
		t.Fatalf("taken for stuck: %v", err)
	}
	// Now the peer is stuck: it reads nothing more.
	if err := <-failed; !errors.Is(err, zmtp.ErrStalled) {
		t.Errorf("then %v, expected ErrStalled", err)
	}
	return true
}
