package load

import (
	"testing"
	"time"
)

func TestLine(t *testing.T) {
	r := Result{Elapsed: 2 * time.Second, Answered: 4000, Bytes: 4_000_000}
	for range 100 {
		r.Latency.Add(50 * time.Nanosecond)
	}
	want := "BenchmarkTCP/size=1KB\t    4000\t  500000.0 ns/op\t     2.00 MB/s\t       50 p50-ns\t       50 p99-ns\t       50 p99.9-ns\t     2000 req/s"
	if got := r.Line("TCP/size=1KB"); got != want+"\n" {
		t.Errorf("got  %q\nwant %q", got, want+"\n")
	}
	r.Offered, r.Lost = 2500, 3
	if got := r.Line("TCP/size=1KB"); got != want+"\t     2500 offered/s\t0 failed\t3 lost\n" {
		t.Errorf("got %q", got)
	}
}
