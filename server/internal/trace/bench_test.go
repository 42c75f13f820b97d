package trace

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
)

// BenchmarkRequest measures what tracing adds to a request, including everything for the collector
// except the socket: with one in so many requests traced, and with tracing off.
func BenchmarkRequest(b *testing.B) {
	for _, oneIn := range []int{0, 1 << 30, 100, 1} {
		name := fmt.Sprint("one_in=", oneIn)
		var tracer *Tracer
		if oneIn == 0 {
			name = "off"
		} else {
			tracer = New(Config{Endpoint: "http://collector", OneIn: oneIn})
			tracer.exporter.client.Transport = transport(func(*http.Request) (int, error) { return http.StatusOK, nil })
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			c, _ := Parse(parent)
			batch, now, gap := []scheduler.Parent{c.Parent, c.Parent}, time.Now(), new(Gap)
			for b.Loop() {
				follow(tracer, batch, now, gap)
			}
		})
		tracer.Close()
	}
}

// follow traces a request that one model answers, in a batch with two other traced requests.
func follow(tracer *Tracer, batch []scheduler.Parent, now time.Time, gap *Gap) {
	t := tracer.Begin(new(Context), "", "tcp", now, gap)
	if t == nil {
		return
	}
	a := t.Ask(scheduler.ModelID{Name: "m", Version: "1"})
	a.Submitted(now)
	a.Sent, a.Batch = true, batch
	a.Done(&scheduler.Request{Rows: 1})
	t.Answered()
	t.End("m", "ok", nil)
}
