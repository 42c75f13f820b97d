package server

import (
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/server/config"
)

// TestLookedAtWhileItStarts: the admin door is open before the others, and may be asked what they do.
func TestLookedAtWhileItStarts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	stop := make(chan struct{})
	var looking sync.WaitGroup
	for _, path := range []string{"/v1/status", "/metrics", "/readyz"} {
		looking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if resp, err := http.Get("http://" + addr + path); err == nil {
					resp.Body.Close()
				}
			}
		})
	}
	start(t, func(c *config.Config) { c.Admin.Listen = addr })
	time.Sleep(20 * time.Millisecond)
	close(stop)
	looking.Wait()
}
