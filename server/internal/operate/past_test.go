package operate

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/shivad/shivad/server/admin"
)

// Only the last ten minutes are kept: rates and quantiles of the requests in each span, no value
// for a time at which a model did not exist, and nothing for a removed model.
func TestPast(t *testing.T) {
	p := &Past{}
	const first = 1_764_000_000
	for i := range 200 {
		n := uint64(100 * i)
		old := admin.Health{
			Name: "old", Version: "1", Requests: n, Judged: n, Failed: n / 10, InTime: n / 2, QueueRows: i,
			Durations: []admin.DurationClass{{Above: 0.001, UpTo: 0.004, Requests: n}},
		}
		if i > 0 { // a class appears with its first request
			old.Durations = append(old.Durations, admin.DurationClass{Above: 10, Requests: 1})
		}
		all := []admin.Health{old, {Name: "app"}}
		shares := map[string]float32{"old/1": 1}
		if i >= 150 {
			all = append(all, admin.Health{Name: "new", Version: "1"})
			shares = map[string]float32{"old/1": 0.25, "new/1": 0.75}
		}
		if i < 50 {
			all = append(all, admin.Health{Name: "gone", Version: "1"})
			shares["gone/1"] = 0
		}
		p.add(first+5*float64(i), all, map[string]map[string]float32{"app": shares})
	}
	past := p.Since(0)
	if n := len(past.Times); n != pastSamples || past.Times[0] != first+5*80 || past.Times[n-1] != first+5*199 {
		t.Fatalf("%d samples, %v", n, past.Times)
	}
	names := map[string]admin.PastModel{}
	for _, m := range past.Models {
		names[m.Name] = m
		for _, s := range []admin.Series{m.Requests, m.Failed, m.InTime, m.P50, m.P99, m.Waiting} {
			if len(s) != pastSamples {
				t.Errorf("%s: a series of %d values", m.Name, len(s))
			}
		}
	}
	near := func(got float32, want float64) bool {
		return math.Abs(float64(got)-want) < 1e-6*math.Max(1, math.Abs(want))
	}
	old := names["old"]
	if at := 7; !near(old.Requests[at], 20) || !near(old.Failed[at], 2) || !near(old.InTime[at], 0.5) ||
		!near(old.P50[at], 0.002) || !near(old.Waiting[at], 87) {
		t.Errorf("at %d: %v", at, old)
	}
	if s := names["new"].Waiting; !math.IsNaN(float64(s[69])) || s[70] != 0 || names["gone"].Name != "" ||
		len(names) != 3 {
		t.Errorf("new %v, gone %+v", s, names["gone"])
	}
	shares := past.Applications[0].Shares
	if len(past.Applications) != 1 || len(shares) != 2 || shares["old/1"][69] != 1 || shares["old/1"][70] != 0.25 ||
		!math.IsNaN(float64(shares["new/1"][69])) || shares["new/1"][70] != 0.75 {
		t.Errorf("shares %+v", past.Applications)
	}

	// A client is not sent samples that it has seen, and a model whose counters restart has no
	// rate.
	p.add(first+5*200, []admin.Health{{Name: "old", Version: "1", Requests: 3}}, nil)
	past = p.Since(first + 5*199)
	if text, err := json.Marshal(past); err != nil ||
		string(text) != fmt.Sprintf(`{"times":[%d],"models":[{"name":"old","version":"1","requests":[null],"failed":[null],"in_time":[null],"p50":[null],"p99":[null],"waiting":[0]}],"applications":[]}`,
			first+5*200) {
		t.Errorf("%s, %v", text, err)
	}
	if past := p.Since(first + 5*200); past.Times == nil || len(past.Times)+len(past.Models) > 0 {
		t.Errorf("nothing is new, and there is %+v", past)
	}
}

// The page computes the same from counts while it is open (history.js).
func TestQuantile(t *testing.T) {
	classes := []admin.DurationClass{{Above: 0, UpTo: 0.001, Requests: 10}, {Above: 0.001, UpTo: 0.01, Requests: 80},
		{Above: 0.01, Requests: 10}}
	got := []float32{quantile(classes, 0.05), quantile(classes, 0.5), quantile(classes, 0.99), quantile(nil, 0.5)}
	want := []float64{0.0005 * math.Sqrt2, 0.001 * math.Sqrt(10), 0.01, math.NaN()}
	if !slices.EqualFunc(got, want, func(a float32, b float64) bool {
		return math.Abs(float64(a)-b) < 1e-8 || math.IsNaN(float64(a)) && math.IsNaN(b)
	}) {
		t.Errorf("%v, expected %v", got, want)
	}
}

// TestShareInTime: requests that their client withdrew or got wrong are neither in time nor late.
func TestShareInTime(t *testing.T) {
	var m pastModel
	if v := m.since(admin.Health{Requests: 100, Judged: 10, InTime: 9}, 1)[measuredInTime]; v != 0.9 {
		t.Errorf("9 of 10 judged requests were in time, the share is %v", v)
	}
	if v := m.since(admin.Health{Requests: 90}, 1)[measuredInTime]; v == v {
		t.Errorf("no request was judged, and the share in time is %v", v)
	}
}
