package load

import (
	"fmt"
	"strings"
)

// Line formats r as one line of Go's benchmark format, for benchstat, with a newline. name
// follows "Benchmark", with its parameters as key=value ("TCP/server=shivad/size=64B").
//
// ns/op is the measured time per good answer, the inverse of the rate; latencies are in the
// quantiles. MB/s counts the requests' bytes, one way. The line of an open loop has the offered
// rate, too, and failures if there are any.
func (r *Result) Line(name string) string {
	perOp := 0.0
	if r.Answered > 0 {
		perOp = float64(r.Elapsed) / float64(r.Answered)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Benchmark%s\t%8d\t%10.1f ns/op\t%9.2f MB/s\t%9d p50-ns\t%9d p99-ns\t%9d p99.9-ns\t%9.0f req/s",
		name, r.Answered, perOp, float64(r.Bytes)/1e6/r.Elapsed.Seconds(),
		r.Latency.Quantile(0.5), r.Latency.Quantile(0.99), r.Latency.Quantile(0.999), r.Rate())
	if r.Offered > 0 {
		fmt.Fprintf(&b, "\t%9.0f offered/s", r.Offered)
	}
	if r.Failed > 0 || r.Lost > 0 {
		fmt.Fprintf(&b, "\t%d failed\t%d lost", r.Failed, r.Lost)
	}
	b.WriteByte('\n')
	return b.String()
}
