package rest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

// A client that ends its sending side gets its answers, pipelined ones too, however late they are.
func TestHalfClosedClientGetsItsAnswers(t *testing.T) {
	for _, pause := range []bool{false, true} { // the first bytes are sent ahead, or not
		t.Run(fmt.Sprintf("late=%t", pause), func(t *testing.T) {
			r := newRig(t, nil)
			w := r.held("m")
			const n = 3
			var all strings.Builder
			for i := range n {
				body := fmt.Sprintf(`{"id":"%d","inputs":[{"name":"input0","datatype":"FP32","shape":[1,4],"data":[1,2,3,%d]}]}`, i, i)
				fmt.Fprintf(&all, "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s",
					len(body), body)
			}
			c := r.raw(all.String())
			if err := c.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			in := bufio.NewReader(c)
			for i := range n {
				if pause {
					one, err := in.Peek(2)
					if err != nil || string(one) != "HT" {
						t.Fatalf("before the answer %q, %v arrive", one, err)
					}
				}
				budgettest.Until(t, "the request", func() bool { return w.Answer() == nil })
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatalf("answer %d: %v", i, err)
				}
				text, err := io.ReadAll(resp.Body)
				if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(text), fmt.Sprintf(`"id":"%d"`, i)) {
					t.Errorf("answer %d is %d %s, %v", i, resp.StatusCode, text, err)
				}
			}
			if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
				t.Errorf("after the answers: %q, %v", rest, err)
			}
		})
	}
}

// So does one whose request has no body, which net/http serves while it already reads ahead.
func TestHalfClosedClientWithoutABody(t *testing.T) {
	r := newRig(t, nil)
	loads := make(chan struct{}) // the model takes as long to load
	r.repo.Loading = func(context.Context, string) error { <-loads; return nil }
	loaded := sync.OnceFunc(func() { close(loads) })
	defer loaded()
	c := r.raw("POST /v2/repository/models/managed/load HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	if one, err := in.Peek(2); err != nil || string(one) != "HT" {
		t.Fatalf("before the answer %q, %v arrive", one, err)
	}
	loaded()
	if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("the answer is %v, %v", resp, err)
	}
}

// The request of a client that has closed its connection leaves the queue.
func TestClosedClientLeavesTheQueue(t *testing.T) {
	r := newRig(t, nil)
	w := r.held("m")
	body := `{"inputs":[{"name":"input0","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}`
	ask := fmt.Sprintf("POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	c := r.raw(ask)
	budgettest.Until(t, "the request to begin", func() bool { return r.Metrics.Door("rest").InFlight() == 1 })
	c.Close()
	budgettest.Until(t, "the request to end", func() bool { return r.Metrics.Door("rest").InFlight() == 0 })
	for w.Answer() == nil {
	}
}
