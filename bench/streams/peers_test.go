package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// Each frame is posted when it is due, a refusal is a fault, and a frame that still waits at the
// end has no answer.
func TestPost(t *testing.T) {
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/ready" {
			return
		}
		if body, err := io.ReadAll(q.Body); err != nil || len(body) < frameBytes || q.Header.Get("Inference-Header-Content-Length") == "" {
			t.Errorf("%d bytes, %v", len(body), err)
		}
		switch n.Add(1) {
		case 1:
			<-q.Context().Done()
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer s.Close()
	f, err := post(t.Context(), s.URL, 2, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.executed(0, forever); n.Load() != 6 || len(f.shown) != 5 || len(got) != 4 || f.faults("") != 1 {
		t.Errorf("%d frames, %d answers, %d of them good", n.Load(), len(f.shown), len(got))
	}
	for _, a := range f.shown {
		if due := time.Duration(a.Seq)*time.Second/fps + time.Duration(a.Stream)*time.Second/(2*fps); a.Due != due || a.Age != a.At-due || a.At < due {
			t.Errorf("%+v, due %v", a, due)
		}
	}
}
