package metrics

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/shivad/shivad/scheduler"
)

// scrape returns what Prometheus reads, one map entry per series.
func scrape(t *testing.T, m *Metrics) map[string]string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, _ := io.ReadAll(w.Body)
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, body)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(body)) {
		if series, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(line, "#") {
			if end := strings.LastIndexByte(line, '}'); end >= 0 { // labels may hold spaces
				series, value = line[:end+1], strings.TrimSpace(line[end+1:])
			}
			out[series] = value
		}
	}
	return out
}

func expect(t *testing.T, m *Metrics, want map[string]string) {
	t.Helper()
	got := scrape(t, m)
	for series, value := range want {
		if got[series] != value {
			t.Errorf("%s is %q, want %q", series, got[series], value)
		}
	}
}

func TestDoorsAndRequests(t *testing.T) {
	m := New("1.2.3")
	tcp := m.Door("tcp")
	a := m.Model("a", "1")
	if m.Door("tcp") != tcp || m.Model("a", "1") != a {
		t.Error("asked twice, not the same")
	}
	for range 3 {
		tcp.Opened()
	}
	tcp.Closed(ClosedStalled)
	tally := tcp.Tally()
	tally.Received(100)
	tally.Sent(50)
	for range 4 {
		tally.Began()
	}
	tally.Waited(a, 10*time.Microsecond, time.Millisecond)
	tally.Answered(a, OK, 3*time.Millisecond)
	tally.Answered(a, Overloaded, 5*time.Microsecond)
	tally.Answered(m.Unrouted(), NotFound, 0)
	if tcp.InFlight() != 0 {
		t.Error("seen before it was flushed")
	}
	tally.Flush()
	tally.Flush() // adds nothing again
	rest := m.Door("rest").Tally()
	rest.Began()
	rest.Flush()

	expect(t, m, map[string]string{
		`shivad_connections{door="tcp"}`:                                                            "2",
		`shivad_connections_opened_total{door="tcp"}`:                                               "3",
		`shivad_connections_closed_total{door="tcp",reason="stalled"}`:                              "1",
		`shivad_connections_closed_total{door="tcp",reason="idle"}`:                                 "0",
		`shivad_received_bytes_total{door="tcp"}`:                                                   "100",
		`shivad_sent_bytes_total{door="tcp"}`:                                                       "50",
		`shivad_requests_in_flight{door="tcp"}`:                                                     "1",
		`shivad_requests_in_flight{door="rest"}`:                                                    "1",
		`shivad_requests_total{door="tcp",model="a",outcome="ok",version="1"}`:                      "1",
		`shivad_requests_total{door="tcp",model="a",outcome="overloaded",version="1"}`:              "1",
		`shivad_requests_total{door="tcp",model="",outcome="not_found",version=""}`:                 "1",
		`shivad_request_duration_seconds_count{door="tcp",model="a",version="1"}`:                   "2",
		`shivad_request_duration_seconds_sum{door="tcp",model="a",version="1"}`:                     "0.003005",
		`shivad_request_duration_seconds_bucket{door="tcp",model="a",version="1",le="8.192e-06"}`:   "1",
		`shivad_request_duration_seconds_bucket{door="tcp",model="a",version="1",le="0.004194304"}`: "2",
		`shivad_queue_wait_seconds_bucket{model="a",version="1",le="1.6384e-05"}`:                   "1",
		`shivad_queue_wait_seconds_bucket{model="a",version="1",le="8.192e-06"}`:                    "0",
	})
	for series := range scrape(t, m) {
		if strings.HasPrefix(series, "shivad_queue_wait_seconds") && strings.Contains(series, `model=""`) {
			t.Errorf("no model, but %s", series)
		}
	}
}

func TestHooks(t *testing.T) {
	m := New("1.2.3")
	h := m.Hooks()
	id := scheduler.ModelID{Name: "a", Version: "1"}
	h.BatchClosed(id, 1, scheduler.CloseIdle, time.Millisecond)
	h.BatchClosed(id, 64, scheduler.CloseFull, time.Millisecond)
	h.BatchDone(id, 64, 5*time.Millisecond, 4*time.Millisecond, nil)
	h.BatchDone(id, 64, 5*time.Millisecond, 6*time.Millisecond, nil)
	h.BatchDone(id, 64, 5*time.Millisecond, 0, nil)
	h.BatchDone(id, 1, time.Second, 0, errors.New("lost"))
	h.RowsWasted(id, 7)
	h.Answered(&scheduler.Request{}, scheduler.OutcomeNotFound) // without a model
	h.Answered(&scheduler.Request{}, scheduler.OutcomeOK)
	expect(t, m, map[string]string{
		`shivad_batch_rows_count{model="a",version="1"}`:                        "2",
		`shivad_batch_rows_sum{model="a",version="1"}`:                          "65",
		`shivad_batch_rows_bucket{model="a",version="1",le="1"}`:                "1",
		`shivad_batch_rows_bucket{model="a",version="1",le="32"}`:               "1",
		`shivad_batch_rows_bucket{model="a",version="1",le="64"}`:               "2",
		`shivad_batches_total{model="a",reason="idle",version="1"}`:             "1",
		`shivad_batches_total{model="a",reason="full",version="1"}`:             "1",
		`shivad_batches_total{model="a",reason="shape",version="1"}`:            "0",
		`shivad_batch_execution_seconds_count{model="a",version="1"}`:           "3",
		`shivad_batch_predicted_seconds_count{model="a",version="1"}`:           "2",
		`shivad_batch_predicted_seconds_sum{model="a",version="1"}`:             "0.01",
		`shivad_batch_failures_total{model="a",version="1"}`:                    "1",
		`shivad_batch_surprises_total{model="a",version="1"}`:                   "1",
		`shivad_wasted_rows_total{model="a",version="1"}`:                       "7",
		`shivad_drops_total{model="",reason="not_found",version=""}`:            "1",
		`shivad_drops_total{model="a",reason="predicted",version="1"}`:          "0",
		`shivad_drops_total{model="a",reason="deadline_sent_late",version="1"}`: "0",
	})
}

func TestCaches(t *testing.T) {
	m := New("1.2.3")
	m.Model("plain", "1")
	c := m.Model("a", "1").Cache()
	c.Hits.Add(3)
	c.Misses.Add(2)
	c.Shared.Add(1)
	c.NotKept.Add(4)
	for range 5 {
		c.Stored(100)
	}
	c.Removed(CacheFull, 100)
	c.Removed(CacheExpired, 100)
	c.Removed(CacheCleared, 100)
	if n := c.Counts(); n != (CacheCounts{Hits: 3, Misses: 2, Shared: 1, NotKept: 4, Evicted: 1, Expired: 1, Entries: 2,
		Bytes: 200}) {
		t.Errorf("counts %+v", n)
	}
	expect(t, m, map[string]string{
		`shivad_cache_requests_total{model="a",result="hit",version="1"}`:     "3",
		`shivad_cache_requests_total{model="a",result="miss",version="1"}`:    "2",
		`shivad_cache_requests_total{model="a",result="shared",version="1"}`:  "1",
		`shivad_cache_removals_total{model="a",reason="full",version="1"}`:    "1",
		`shivad_cache_removals_total{model="a",reason="expired",version="1"}`: "1",
		`shivad_cache_removals_total{model="a",reason="cleared",version="1"}`: "1",
		`shivad_cache_not_kept_total{model="a",version="1"}`:                  "4",
		`shivad_cache_entries{model="a",version="1"}`:                         "2",
		`shivad_cache_bytes{model="a",version="1"}`:                           "200",
	})
	for series := range scrape(t, m) {
		if strings.HasPrefix(series, "shivad_cache") && strings.Contains(series, "plain") {
			t.Errorf("a model that never had a cache shows %s", series)
		}
	}
}

func TestSources(t *testing.T) {
	m := New("1.2.3")
	m.Model("a", "1")
	m.Attach(Sources{
		Models: func() []scheduler.Stats {
			return []scheduler.Stats{{ID: scheduler.ModelID{Name: "a", Version: "1"}, Live: 2, Failing: 1,
				Need: scheduler.Need{Replicas: 3, Load: 2.5}, Pending: 4, QueueRows: 30, QueueBytes: 400,
				OldestWait: 1500 * time.Millisecond, OldestBatch: 2 * time.Second,
				Replicas: []scheduler.ReplicaStats{
					{Label: "gpu", Batches: 5, Busy: 1500 * time.Millisecond, Failed: 1},
					{Label: "gpu", Batches: 2, Busy: time.Second}, // containers choose their labels
					{Label: "cpu\xff", Batches: 1},
				}}}
		},
		Server: func() ServerGauges {
			return ServerGauges{PayloadBytes: 5, PayloadLimit: 6, PayloadIdle: 8, ArenaBytes: 11, ArenaUsed: 13,
				Replaced: 14, Readable: 12, Outputs: 15, Unpacked: 9, UnpackLimit: 10, Sessions: 7, StateUp: true,
				Regions: 16, RegionBytes: 17, RegionsMade: 19, NoRegions: map[string]uint64{"full": 18}}
		},
		Learned: func() []LearnedGauges { return []LearnedGauges{{"app", 8, 9}} },
	})
	expect(t, m, map[string]string{
		`shivad_replicas{model="a",version="1"}`:           "2",
		`shivad_failing_replicas{model="a",version="1"}`:   "1",
		`shivad_oldest_row_seconds{model="a",version="1"}`: "1.5",
		`shivad_replicas_needed{model="a",version="1"}`:    "3",
		`shivad_replicas_load{model="a",version="1"}`:      "2.5",

		`shivad_replica_batches_total{model="a",replica="gpu",version="1"}`:             "7",
		`shivad_replica_execution_seconds_total{model="a",replica="gpu",version="1"}`:   "2.5",
		`shivad_replica_failures_total{model="a",replica="gpu",version="1"}`:            "1",
		"shivad_replica_batches_total{model=\"a\",replica=\"cpu\uFFFD\",version=\"1\"}": "1",

		`shivad_oldest_batch_seconds{model="a",version="1"}`: "2",
		`shivad_queue_rows{model="a",version="1"}`:           "30",
		`shivad_queue_bytes{model="a",version="1"}`:          "400",
		"shivad_payload_bytes":                               "5",
		"shivad_payload_limit_bytes":                         "6",
		"shivad_payload_idle_bytes":                          "8",
		"shivad_arena_bytes":                                 "11",
		"shivad_regions":                                     "16",
		"shivad_region_bytes":                                "17",
		"shivad_region_made_bytes":                           "19",
		`shivad_region_refusals_total{reason="full"}`:        "18",
		"shivad_arena_used_bytes":                            "13",
		"shivad_arena_replaced_bytes":                        "14",
		"shivad_container_readable_bytes":                    "12",
		"shivad_container_output_bytes":                      "15",
		"shivad_unpacked_bytes":                              "9",
		"shivad_unpacked_limit_bytes":                        "10",
		"shivad_container_sessions":                          "7",
		"shivad_state_up":                                    "1",

		`shivad_policy_users{application="app"}`:                 "8",
		`shivad_policy_users_forgotten_total{application="app"}`: "9",
	})
	got := scrape(t, m)
	for _, name := range []string{"go_goroutines", "process_open_fds"} {
		if got[name] == "" {
			t.Errorf("%s is missing", name)
		}
	}
	for series, value := range got {
		if strings.HasPrefix(series, `shivad_build_info{`) && strings.Contains(series, `version="1.2.3"`) && value == "1" {
			return
		}
	}
	t.Error("no build_info")
}

func TestCardinalityIsBounded(t *testing.T) {
	m := New("")
	m.Door("tcp")
	for i := range MaxModels + 10 {
		m.Model(fmt.Sprint("m", i), "1")
	}
	if n := len(*m.models.Load()); n != MaxModels+2 { // plus the model without a name, and _other
		t.Errorf("%d models", n)
	}
	if m.Model("yet", "another") != m.Model("and", "one more") {
		t.Error("past the bound models do not share")
	}
	m.Attach(Sources{Models: func() []scheduler.Stats {
		return []scheduler.Stats{{ID: scheduler.ModelID{Name: "m5", Version: "1"}, Live: 1},
			{ID: scheduler.ModelID{Name: "yet", Version: "another"}, Live: 1}}
	}})
	got := scrape(t, m)
	if got[`shivad_replicas{model="m5",version="1"}`] != "1" || got[`shivad_replicas{model="_other",version=""}`] != "" {
		t.Error("gauges past the bound")
	}
}

// A container names itself, and Prometheus takes UTF-8 only.
func TestNamesAreMadeSafe(t *testing.T) {
	m := New("")
	m.Door("tcp")
	m.Model("a\xff", "1").wasted.Add(1)
	m.Model("a\xfe", "1").wasted.Add(1)
	m.Model("a\"b\\\n", "1")
	if got := scrape(t, m)["shivad_wasted_rows_total{model=\"a\uFFFD\",version=\"1\"}"]; got != "2" {
		t.Errorf("got %q", got)
	}
}

func TestHistogram(t *testing.T) {
	for v, bucket := range map[int64]int{-5: 0, 0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 5: 3, 8: 3, 9: 4, 1 << 23: 23,
		1<<23 + 1: 24, math.MaxInt64: 24} {
		var h histogram
		h.observe(v, lowestRows)
		if h.buckets[bucket].Load() != 1 || h.sum.Load() != max(v, 0) {
			t.Errorf("%d is not in bucket %d", v, bucket)
		}
	}
	for d, bucket := range map[time.Duration]int{0: 0, 8192: 0, 8193: 1, 16384: 1, 16385: 2, time.Hour: 24} {
		var h histogram
		h.observeDuration(d)
		if h.buckets[bucket].Load() != 1 {
			t.Errorf("%v is not in bucket %d", d, bucket)
		}
	}
}

func TestEveryLabelHasAName(t *testing.T) {
	seen := map[string]bool{}
	word := regexp.MustCompile(`^[a-z_]+$`)
	for o := range outcomes {
		if !word.MatchString(o.String()) || seen[o.String()] {
			t.Errorf("outcome %d is %q", o, o)
		}
		seen[o.String()] = true
	}
	clear(seen)
	for f := range feedbacks {
		if !word.MatchString(f.String()) || seen[f.String()] {
			t.Errorf("feedback %d is %q", f, f)
		}
		seen[f.String()] = true
	}
	clear(seen)
	for c := range closedReasons {
		if !word.MatchString(c.String()) || seen[c.String()] {
			t.Errorf("reason %d is %q", c, c)
		}
		seen[c.String()] = true
	}
}

// Scrapes, counts and new models run concurrently; run this test with -race.
func TestConcurrent(t *testing.T) {
	m := New("")
	d := m.Door("tcp")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			tally := d.Tally()
			for j := range 200 {
				tally.Began()
				tally.Answered(m.Model(fmt.Sprint(j%20), "1"), OK, time.Duration(j))
				if j%100 == i {
					tally.Flush()
					scrape(t, m)
				}
			}
			tally.Flush()
		})
	}
	wg.Wait()
	total := 0
	for series, value := range scrape(t, m) {
		if strings.HasPrefix(series, "shivad_requests_total{") && strings.Contains(series, `outcome="ok"`) {
			var n int
			fmt.Sscan(value, &n)
			total += n
		}
	}
	if total != 1600 || d.InFlight() != 0 {
		t.Errorf("counted %d requests, %d in flight", total, d.InFlight())
	}
}

func BenchmarkObserve(b *testing.B) {
	b.Run("histogram=ours", func(b *testing.B) {
		b.ReportAllocs()
		var h histogram
		d := time.Duration(0)
		for b.Loop() {
			h.observeDuration(d)
			d += 997
		}
	})
	b.Run("histogram=client_golang", func(b *testing.B) {
		b.ReportAllocs()
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Buckets: prometheus.ExponentialBuckets(8.192e-6, 2, 24)})
		d := time.Duration(0)
		for b.Loop() {
			h.Observe(d.Seconds())
			d += 997
		}
	})
}

func BenchmarkRequest(b *testing.B) {
	b.ReportAllocs()
	m := New("")
	t, a := m.Door("tcp").Tally(), m.Model("a", "1")
	n := 0
	for b.Loop() {
		t.Began()
		t.Waited(a, time.Millisecond, time.Millisecond)
		t.Answered(a, OK, 2*time.Millisecond)
		if n++; n%16 == 0 {
			t.Flush()
		}
	}
}

// Durations of requests are counted over all doors, in adjacent classes.
func TestDurationClasses(t *testing.T) {
	m := New("")
	model := m.Model("a", "1")
	for _, door := range []string{"tcp", "rest"} {
		for _, took := range []time.Duration{time.Microsecond, 5 * time.Millisecond, 6 * time.Millisecond, time.Hour} {
			d := m.Door(door)
			d.Began()
			d.Answered(model, OK, took, 0, 0)
		}
	}
	h := model.Health()
	want := []DurationClass{{0, 1 << 13, 2}, {1 << 22, 1 << 23, 4}, {1 << 36, 0, 2}}
	if !slices.Equal(h.Took, want) || h.Failed() != 0 {
		t.Errorf("%+v, expected %+v; %d failed", h.Took, want, h.Failed())
	}
	m.Door("tcp").Answered(model, Overloaded, time.Second, 0, 0)
	m.Door("tcp").Answered(model, Superseded, time.Second, 0, 0)
	m.Door("tcp").Answered(model, Default, time.Second, 0, 0)
	if h := model.Health(); h.Failed() != 1 {
		t.Errorf("%d failed, expected 1", h.Failed())
	}
}

// Every request is in time or late, or neither if its client withdrew it or got it wrong. Withdrawn
// ones are no failures.
func TestShareInTime(t *testing.T) {
	type counts struct{ judged, inTime, failed uint64 }
	want := map[Outcome]counts{
		OK: {1, 1, 0}, Default: {1, 0, 0},
		Superseded: {}, Canceled: {}, Undelivered: {},
		Protocol: {0, 0, 1}, TooLarge: {0, 0, 1}, InvalidInput: {0, 0, 1}, NotFound: {0, 0, 1},
		Unauthenticated: {0, 0, 1}, PermissionDenied: {0, 0, 1},
		Overloaded: {1, 0, 1}, DeadlineExceeded: {1, 0, 1}, Unavailable: {1, 0, 1}, ContainerFailed: {1, 0, 1},
		ContainerLost: {1, 0, 1}, Draining: {1, 0, 1}, Internal: {1, 0, 1},
	}
	for o := range outcomes {
		m := New("")
		model, tally := m.Model("a", "1"), m.Door("tcp").Tally()
		model.SetSLO(time.Second)
		tally.Began()
		tally.Answered(model, o, time.Millisecond)
		tally.Flush()
		h := model.Health()
		if got := (counts{h.Judged(), h.InTime, h.Failed()}); got != want[o] {
			t.Errorf("%v: %+v, expected %+v", o, got, want[o])
		}
		expect(t, m, map[string]string{
			`shivad_judged_total{model="a",version="1"}`:  fmt.Sprint(want[o].judged),
			`shivad_in_time_total{model="a",version="1"}`: fmt.Sprint(want[o].inTime),
		})
	}
}
