package metrics

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/shivad/shivad/scheduler"
)

// Names, units and help texts follow Prometheus's rules: the linter is that of "promtool check
// metrics", which "make dashboards" runs.
func TestPrometheusLints(t *testing.T) {
	m := New("1.2.3")
	a, d := m.Model("a", "1"), m.Door("tcp")
	d.Began()
	d.Answered(a, OK, time.Second, time.Second, time.Second)
	a.Cache()
	a.Framed(true)
	a.ObserveAge(time.Second)
	a.Unheard()
	a.Taught(Learned)
	a.Stages("read")[0].Ran(&StageRun{Rows: Ended{OK: 1}, Took: time.Second})
	serve(m, d.Tally(), "a")
	m.Attach(Sources{
		Server: func() ServerGauges {
			return ServerGauges{NoRegions: map[string]uint64{"full": 1}, Restarts: map[string]int{"c": 1}}
		},
		Models: func() []scheduler.Stats {
			return []scheduler.Stats{{ID: scheduler.ModelID{Name: "a", Version: "1"}, Streams: 1,
				Replicas: make([]scheduler.ReplicaStats, 1)}}
		},
		Spans:   func() (uint64, uint64) { return 1, 2 },
		Learned: func() []LearnedGauges { return []LearnedGauges{{"app", 8, 9}} },
		Identities: func() []IdentityGauges {
			return []IdentityGauges{{Identity: "i", Quotas: []QuotaGauges{{"bytes_in_flight", 1, 1, 1}}}}
		},
		Addresses: func() []QuotaGauges { return []QuotaGauges{{Name: "requests_per_second"}} },
	})
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	problems, err := promlint.New(w.Body).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
