package metrics

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
)

// of counts the series of a model.
func of(t *testing.T, m *Metrics, model string) (n int) {
	t.Helper()
	for series := range scrape(t, m) {
		if strings.Contains(series, `model="`+model+`"`) {
			n++
		}
	}
	return n
}

// serve counts a request and its batch.
func serve(m *Metrics, tally *Tally, name string) {
	a, h, id := m.Model(name, "1"), m.Hooks(), scheduler.ModelID{Name: name, Version: "1"}
	tally.Began()
	tally.Waited(a, time.Microsecond, time.Millisecond)
	tally.Answered(a, OK, time.Millisecond)
	h.BatchClosed(id, 1, scheduler.CloseIdle, 0)
	h.BatchDone(id, 1, time.Millisecond, time.Millisecond, nil)
	tally.Flush()
}

func present(names ...string) map[[2]string]bool {
	all := map[[2]string]bool{}
	for _, name := range names {
		all[[2]string{name, "1"}] = true
	}
	return all
}

// A model without requests has a few series, and a model with requests at one door has no series
// for the other doors.
func TestSeriesAtRest(t *testing.T) {
	m := New("")
	tally := m.Door("tcp").Tally()
	m.Door("rest")
	m.Door("grpc")
	m.Model("a", "1")
	m.Attach(Sources{Models: func() []scheduler.Stats {
		return []scheduler.Stats{{ID: scheduler.ModelID{Name: "a", Version: "1"}, Live: 1,
			Replicas: make([]scheduler.ReplicaStats, 1)}}
	}})
	if n := of(t, m, "a"); n == 0 || n > 15 {
		t.Errorf("a model at rest has %d series", n)
	}
	expect(t, m, map[string]string{
		`shivad_replicas{model="a",version="1"}`:                                "1",
		`shivad_requests_total{door="rest",model="a",outcome="ok",version="1"}`: "0",
	})
	serve(m, tally, "a")
	if n := of(t, m, "a"); n > 205 {
		t.Errorf("a model that is asked by one door has %d series", n)
	}
	expect(t, m, map[string]string{
		`shivad_requests_total{door="tcp",model="a",outcome="internal",version="1"}`: "0",
		`shivad_drops_total{model="a",reason="predicted",version="1"}`:               "0",
	})
}

// The series of a removed model stay for a while and then disappear, for good or until it returns;
// the door's sums stay.
func TestSeriesOfWhatHasGone(t *testing.T) {
	m := New("")
	now := time.Unix(1e9, 0)
	m.now = func() time.Time { return now }
	tally := m.Door("tcp").Tally()
	for _, name := range []string{"a", "b"} {
		serve(m, tally, name)
	}
	m.Model("idle", "1")
	m.Keep(present("a", "b", "idle"))
	now = now.Add(time.Hour)
	if of(t, m, "a") == 0 || of(t, m, "idle") == 0 {
		t.Error("what is there has no series")
	}

	m.Keep(present("b"))
	if of(t, m, "a") == 0 {
		t.Error("the last counts are lost")
	}
	if n := of(t, m, "idle"); n > 0 {
		t.Errorf("%d series of a model that has gone and was never asked", n)
	}
	now = now.Add(lingering - time.Second)
	serve(m, tally, "a") // a request was in flight
	if of(t, m, "a") == 0 {
		t.Error("the last counts are lost")
	}
	now = now.Add(2 * time.Second)
	if n := of(t, m, "a"); n > 0 {
		t.Errorf("%d series of a model that has gone", n)
	}
	if n := len(*m.models.Load()); n != 2 {
		t.Errorf("%d models are kept, expected b and the one without a name", n)
	}
	expect(t, m, map[string]string{`shivad_door_requests_total{door="tcp",outcome="ok"}`: "3"})
	tally.Flush()
	if len(tally.models) != 1 {
		t.Errorf("a loop remembers %d models, expected 1", len(tally.models))
	}

	serve(m, tally, "a") // one of its batches ends late
	m.Keep(present("a", "b"))
	now = now.Add(time.Hour)
	expect(t, m, map[string]string{
		`shivad_requests_total{door="tcp",model="a",outcome="ok",version="1"}`: "1",
		`shivad_door_requests_total{door="tcp",outcome="ok"}`:                  "4",
	})
}

// However many models come and go, and whatever they count, the number of series stays bounded, and
// the models that exist have their own.
func TestSeriesAreBounded(t *testing.T) {
	m := New("")
	now := time.Unix(1e9, 0)
	m.now = func() time.Time { return now }
	tally := m.Door("tcp").Tally()
	m.Attach(Sources{MaxModels: func() int { return 50 }})
	for i := range 305 {
		name := fmt.Sprint("m", i)
		m.Keep(present("stays", name))
		serve(m, tally, "stays")
		serve(m, tally, name)
		now = now.Add(time.Second)
	}
	m.Keep(present("stays"))
	if of(t, m, "stays") == 0 || of(t, m, "_other") > 0 {
		t.Error("what is there has lost its series to what has gone")
	}
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if n := w.Body.Len(); n > 50*24<<10 {
		t.Errorf("/metrics has %d bytes", n)
	}
	expect(t, m, map[string]string{
		`shivad_door_requests_total{door="tcp",outcome="ok"}`:                      "610",
		`shivad_requests_total{door="tcp",model="stays",outcome="ok",version="1"}`: "305",
	})

	names := []string{"stays"}
	for i := range 100 { // all of them stay
		names = append(names, fmt.Sprint("n", i))
	}
	m.Keep(present(names...))
	for _, name := range names {
		serve(m, tally, name)
	}
	if n := len(*m.models.Load()); n != 52 {
		t.Errorf("%d models, expected 50, _other and the one without a name", n)
	}
	expect(t, m, map[string]string{
		`shivad_requests_total{door="tcp",model="_other",outcome="ok",version=""}`: "51",
		`shivad_door_requests_total{door="tcp",outcome="ok"}`:                      "711",
	})
}
