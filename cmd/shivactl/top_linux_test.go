package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/admin/admintest"
	"github.com/shivad/shivad/shiva/token"
)

// Rates, quantiles and shares cover the time between two statuses.
func TestTopOf(t *testing.T) {
	before := admin.Status{
		Version: "1.2.3", Uptime: 100, Readiness: admin.Readiness{Ready: true},
		Models: []admin.Health{
			{Name: "slow", Version: "1", Requests: 1000, Judged: 900, Failed: 100, InTime: 500,
				Durations: []admin.DurationClass{{Above: 0.004, UpTo: 0.008, Requests: 1000}}},
			{Name: "again", Version: "1", Requests: 5000, Judged: 5000, InTime: 5000},
			{Name: "idle", Version: "1", Requests: 7},
		},
		Clients: []admin.Client{{Name: "cam", Requests: 100, Bytes: 1000,
			Quotas: []admin.Quota{{Quota: "connections", Limit: 2, Refused: 5, Since: 61},
				{Quota: "requests_per_second", Limit: 100, Refused: 10, Since: 8}}}},
	}
	now := admin.Status{
		Version: "1.2.3", Uptime: 102, Readiness: admin.Readiness{Ready: true}, Warnings: []string{"a", "b"},
		Queue:   admin.Queue{Rows: 3},
		Doors:   []admin.Door{{Name: "tcp", Connections: 1, InFlight: 2}},
		Payload: admin.Usage{Used: 1 << 20, Limit: 1 << 30},
		Models: []admin.Health{
			{Name: "idle", Version: "1", Requests: 7, Replicas: 1},
			{Name: "app", Requests: 4, Judged: 4, InTime: 4,
				Durations: []admin.DurationClass{{Above: 64, Requests: 4}}},
			{Name: "slow", Version: "1", Replicas: 3, Failing: 1, Load: 2.5, QueueRows: 3, OldestRow: 1.234,
				Requests: 1200,
				Judged:   1060, Failed: 110, InTime: 620, Streams: 2, FrameAge: 0.43,
				Durations: []admin.DurationClass{{Above: 0.004, UpTo: 0.008, Requests: 1000},
					{Above: 0.008, UpTo: 0.016, Requests: 150}, {Above: 0.016, UpTo: 0.032, Requests: 50}}},
			{Name: "again", Version: "1", Requests: 20, Judged: 20, InTime: 10,
				Durations: []admin.DurationClass{{Above: 0.25, UpTo: 0.5, Requests: 20}}},
		},
		Streams: []admin.Seen{{Model: "slow", Name: "cam-3", Client: "10.0.0.4", Known: true, Age: new(0.043),
			Waiting: 2, Askers: []string{"robot"}}},
		Clients: []admin.Client{
			{Name: "cam", Requests: 160, Bytes: 5096,
				Quotas: []admin.Quota{{Quota: "connections", Limit: 2, Refused: 5, Since: 63},
					{Quota: "requests_per_second", Limit: 100, Refused: 30, Since: 0.5},
					{Quota: "bytes_in_flight", Limit: 1 << 20}}},
			{Name: "calm", Requests: 10},
		},
	}
	top := topOf(&before, &now)
	var out bytes.Buffer
	c := &cli{stdout: &out, admin: "127.0.0.1:8002", columns: 120}
	if err := c.printTop(&top, &now); err != nil {
		t.Fatal(err)
	}
	const want = `shivad 1.2.3 at 127.0.0.1:8002, up 1m42s: ready
110 requests/s · 3 rows waiting · tcp 1 connection, 2 in flight · payload memory 1 MiB of 1 GiB
! 2 warnings: shivactl status

MODEL              REPLICAS      LOAD  WAITING     REQUESTS/S  FAILED/S  P50    P99    IN TIME  STREAMS  FRAME AGE
slow/1             3, 1 FAILING  2.5   3 for 1.2s  100         5         13ms   31ms   75 %     2        430ms
again/1            0             0     0           10          0         350ms  500ms  50 %     0        -
app (application)  0             0     -           2           0         1m4s   1m4s   100 %    0        -
idle/1             1             0     0           0           0         -      -      -        0        -

STREAM   OF    FROM      NEWEST ANSWER  WAITED FOR BY
"cam-3"  slow  10.0.0.4  43ms old       2: robot

OVER A QUOTA  REQUESTS/S  BYTES/S  QUOTA                LIMIT  REFUSED/S
cam           30          2 KiB    requests_per_second  100    10
`
	if out.String() != want {
		t.Errorf("got\n%s\nexpected\n%s", &out, want)
	}
	out.Reset()
	c.json = true
	if err := c.printTop(&top, &now); err != nil || !strings.Contains(out.String(), `"name":"idle","version":"1","replicas":1,"failing":0,"load":0,"queue_rows":0,"oldest_row_seconds":0,"requests_per_second":0,"failed_per_second":0,"p50_seconds":null`) {
		t.Errorf("%v: %s", err, &out)
	}
}

// A quantile is within the class of its request.
func TestQuantile(t *testing.T) {
	classes := []admin.DurationClass{{UpTo: 0.001, Requests: 10}, {Above: 0.002, UpTo: 0.004, Requests: 80},
		{Above: 0.032, UpTo: 0.064, Requests: 9}, {Above: 0.064, Requests: 1}}
	for share, want := range map[float64][2]float64{0.05: {0.0005, 0.001}, 0.5: {0.002, 0.004}, 0.95: {0.032, 0.064},
		0.995: {0.064, 0.064}, 1: {0.064, 0.064}} {
		if got := quantile(classes, nil, share); got == nil || *got < want[0] || *got > want[1] {
			t.Errorf("%v: %v, expected from %v to %v", share, got, want[0], want[1])
		}
	}
	previous := 0.0
	for share := 0.01; share <= 1; share += 0.01 {
		got := quantile(classes, nil, share)
		if got == nil || *got < previous || math.IsNaN(*got) {
			t.Fatalf("%v: %v after %v", share, got, previous)
		}
		previous = *got
	}
	if got := quantile(classes, classes, 0.5); got != nil {
		t.Errorf("without requests: %v", *got)
	}
}

// top ends after --count outputs; the output of --json is as documented in the help.
func TestTop(t *testing.T) {
	status := fakeStatus
	h := httptest.NewServer(admintest.Handler(admintest.New(fakeList, status).Sources()))
	defer h.Close()
	var out bytes.Buffer
	args := []string{"top", "--every", "100ms", "--count", "2", "--admin", h.Listener.Addr().String()}
	if code := run(t.Context(), args, nil, &out, &out); code != exitOK ||
		strings.Count(out.String(), "digits/1") != 2 || !strings.Contains(out.String(), "NOT READY: no live replica of iris") {
		t.Errorf("exit %d\n%s", code, &out)
	}
	out.Reset()
	if code := run(t.Context(), append(args, "--json"), nil, &out, &out); code != exitOK {
		t.Errorf("exit %d\n%s", code, &out)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d documents", len(lines))
	}
	var shown struct {
		Models, Clients []map[string]any
	}
	if err := json.Unmarshal([]byte(lines[0]), &shown); err != nil || len(shown.Models) != 2 ||
		len(shown.Clients) != 1 {
		t.Fatalf("%v: %s", err, lines[0])
	}
	text := (&cli{}).topCommand().Long
	for _, key := range slices.Collect(maps.Keys(shown.Models[0])) {
		if !strings.Contains(text, `"`+key+`"`) {
			t.Errorf("the help lacks %s", key)
		}
	}
}

// The first output has the rates since the first status, and no zeros.
func TestFirstTop(t *testing.T) {
	asked := uint64(0)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		status := fakeStatus
		status.Uptime = float64(asked)
		status.Models = []admin.Health{{Name: "busy", Version: "1", Requests: 100 * asked}}
		_ = json.NewEncoder(w).Encode(status)
	}))
	defer h.Close()
	var out bytes.Buffer
	c := &cli{ctx: t.Context(), stdout: &out, admin: h.Listener.Addr().String(), every: leastRefresh,
		token: token.Fixed("")}
	if err := c.top(&topOptions{count: 1}); err != errEnough || !strings.Contains(out.String(), "100 requests/s") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// A server that restarts between two outputs is measured anew.
func TestTopOfANewServer(t *testing.T) {
	old := fakeStatus
	old.Started = old.Started.Add(-time.Hour)
	old.Models = nil
	h := httptest.NewServer(admintest.Handler(admintest.New(fakeList, fakeStatus).Sources()))
	defer h.Close()
	var out bytes.Buffer
	c := &cli{ctx: t.Context(), stdout: &out, admin: h.Listener.Addr().String(), every: leastRefresh,
		token: token.Fixed("")}
	o := &topOptions{last: &old, count: 1}
	if err := c.top(o); err != errEnough || !strings.Contains(out.String(), "0 requests/s") {
		t.Errorf("%v\n%s", err, &out)
	}
}
