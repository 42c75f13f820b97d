package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
)

// Triton's names and labels are exported if they are enabled.
func TestTriton(t *testing.T) {
	m := New("")
	d, a, on := m.Door("tcp"), m.Model("a", "1"), false
	m.Attach(Sources{
		Triton: func() bool { return on },
		Models: func() []scheduler.Stats {
			return []scheduler.Stats{{ID: scheduler.ModelID{Name: "a", Version: "1"}, Pending: 4}}
		},
	})
	for _, o := range []Outcome{OK, Default, Overloaded, Canceled, ContainerLost, InvalidInput, DeadlineExceeded} {
		d.Began()
		d.Answered(a, o, 3*time.Millisecond, 0, 0)
	}
	d.Began()
	d.Answered(a, OK, 4*time.Millisecond, time.Millisecond, 2*time.Millisecond)
	d.Began()
	d.Answered(m.Unrouted(), NotFound, 0, 0, 0)
	for range 2 {
		m.Hooks().BatchDone(scheduler.ModelID{Name: "a", Version: "1"}, 8, 2*time.Millisecond, 0, nil)
	}
	for series := range scrape(t, m) {
		if strings.HasPrefix(series, "nv_") {
			t.Errorf("nobody asked, but %s", series)
		}
	}
	on = true
	expect(t, m, map[string]string{
		`nv_inference_request_success{model="a",version="1"}`:                   "3",
		`nv_inference_request_failure{model="a",reason="REJECTED",version="1"}`: "2",
		`nv_inference_request_failure{model="a",reason="CANCELED",version="1"}`: "1",
		`nv_inference_request_failure{model="a",reason="BACKEND",version="1"}`:  "1",
		`nv_inference_request_failure{model="a",reason="OTHER",version="1"}`:    "1",
		`nv_inference_count{model="a",version="1"}`:                             "16",
		`nv_inference_exec_count{model="a",version="1"}`:                        "2",
		`nv_inference_request_duration_us{model="a",version="1"}`:               "10000",
		`nv_inference_queue_duration_us{model="a",version="1"}`:                 "1000",
		`nv_inference_compute_input_duration_us{model="a",version="1"}`:         "0",
		`nv_inference_compute_infer_duration_us{model="a",version="1"}`:         "2000",
		`nv_inference_compute_output_duration_us{model="a",version="1"}`:        "0",
		`nv_inference_pending_request_count{model="a",version="1"}`:             "4",
		`nv_inference_request_success{model="",version=""}`:                     "",
		`nv_inference_request_failure{model="",reason="OTHER",version=""}`:      "",
	})
}
