package server

import (
	"net/http"
	"sync"
	"testing"
	"time"
)

// TestLookedAtWhileItStarts: the admin door is open before the others. That the server lives can be asked at once; what it has is shown when
// it is there.
func TestLookedAtWhileItStarts(t *testing.T) {
	s := start(t, nil)
	get := func(path string) chan int {
		status := make(chan int, 1)
		go func() {
			resp, err := http.Get("http://" + s.admin.Addr().String() + path)
			if err != nil {
				status <- 0
				return
			}
			resp.Body.Close()
			status <- resp.StatusCode
		}()
		return status
	}
	s.opening.Lock()
	unlock := sync.OnceFunc(s.opening.Unlock)
	defer unlock()
	shown := get("/v1/status")
	if got := <-get("/livez"); got != http.StatusOK {
		t.Errorf("/livez: %d", got)
	}
	select {
	case <-shown:
		t.Fatal("/v1/status was answered from what is being made")
	case <-time.After(50 * time.Millisecond):
	}
	unlock()
	if got := <-shown; got != http.StatusOK {
		t.Errorf("/v1/status: %d", got)
	}
}
