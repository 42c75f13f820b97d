package operate

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// An audience is a client that reads a watch.
type audience struct {
	*httptest.ResponseRecorder
	leave context.CancelFunc
	ended chan struct{}
}

// begin starts a watch; the test's bubble waits for its end.
func (f *feed) begin(t *testing.T, model string, header ...string) *audience {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	a := &audience{httptest.NewRecorder(), cancel, make(chan struct{})}
	r := httptest.NewRequestWithContext(ctx, "GET", "/v1/watch?model="+model, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	v, err := f.watch(r)
	if err != nil {
		t.Fatal(err)
	}
	go func() { // ends when the audience leaves or the feed ends it
		defer close(a.ended)
		v.(http.HandlerFunc)(a, r)
	}()
	return a
}

// quiet is a server where only the status changes, and which counts how often it is asked.
func quiet(asked map[string]int) Sources {
	f := newFake(admin.Serving)
	f.status = func() admin.Status {
		asked["status"]++
		return admin.Status{Version: fmt.Sprint(asked["status"])}
	}
	s := f.sources()
	s.Containers, s.Applications, s.Pipelines = noContainers{}, noApps{}, noPipelines{}
	return s
}

type noContainers struct{ Operator }

func (noContainers) List() admin.Containers { return admin.Containers{} }

type noPipelines struct{ Pipelines }

func (noPipelines) List() ([]admin.Pipeline, error) { return nil, fmt.Errorf("the store is away") }

type noApps struct{ Definitions[admin.App] }

func (noApps) List() ([]admin.App, error) { return nil, fmt.Errorf("the store is away") }

// All watches show the same picture, taken once a second and only while there is a watch; unchanged
// parts are not sent again.
func TestOnePictureForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := map[string]int{}
		f := newFeed(quiet(asked))
		var all []*audience
		for range MaxWatches {
			all = append(all, f.begin(t, "a"))
			time.Sleep(tick / 16)
		}
		if _, err := f.watch(httptest.NewRequest("GET", "/v1/watch", nil)); !isStatus(err, http.StatusTooManyRequests) {
			t.Errorf("one too many: %v", err)
		}
		time.Sleep(10 * tick)
		for _, a := range all {
			a.leave()
			<-a.ended
			sent := a.Body.String()
			for event, want := range map[string]int{"status": 11, "applications": 1, "models": 1, "insight": 1, "audit": 1} {
				if got := strings.Count(sent, "event: "+event+"\n"); got != want {
					t.Errorf("%d events %s, expected %d", got, event, want)
				}
			}
			if !strings.Contains(sent, `"error":"the store is away"`) {
				t.Error("the event of what cannot be looked at does not say so")
			}
		}
		if n := asked["status"]; n != 11 {
			t.Errorf("%d looks in ten seconds", n)
		}
		if f.watches != 0 || len(f.insights) != 0 {
			t.Errorf("%d watches and %d models are left", f.watches, len(f.insights))
		}
		time.Sleep(time.Minute)
		if n := asked["status"]; n != 11 {
			t.Errorf("%d looks while nobody watched", n-11)
		}
	})
}

// A client that loses the right to read is shown nothing more.
func TestWatchEndsWithItsRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quiet(map[string]int{})
		s.Identities = new(access.Identities)
		token := strings.Repeat("t", 40)
		declare := func(may ...string) {
			s.Identities.Replace([]access.Declaration{
				{Name: "ann", Tokens: []string{fmt.Sprintf("%x", sha256.Sum256([]byte(token)))}, May: may}})
		}
		declare("admin:read")
		a := newFeed(s).begin(t, "", "Authorization", "Bearer "+token)
		time.Sleep(2 * tick)
		declare("infer")
		time.Sleep(tick)
		synctest.Wait()
		select {
		case <-a.ended:
		default:
			t.Error("the watch goes on")
		}
		var told struct{ Error string }
		_, last, _ := strings.Cut(a.Body.String(), "event: end\ndata: ")
		if err := json.Unmarshal([]byte(last), &told); err != nil || !strings.Contains(told.Error, "admin:read") ||
			strings.Count(a.Body.String(), "event: status\n") < 2 {
			t.Errorf("%v: %s", err, a.Body)
		}
	})
}

// A shutdown of the door does not wait for watches, and watches hold no more connections than they
// may.
func TestShutdownEndsWatches(t *testing.T) {
	l, err := Listen("127.0.0.1:0", unixsocket.Access{}, nil, nil, Handler(quiet(map[string]int{})), nil)
	if err != nil {
		t.Fatal(err)
	}
	var watches []*http.Response
	for range MaxWatches {
		r, err := http.Get("http://" + l.Addr().String() + "/v1/watch")
		if err != nil || r.StatusCode != 200 {
			t.Fatal(r, err)
		}
		defer r.Body.Close()
		watches = append(watches, r)
	}
	if r, err := http.Get("http://" + l.Addr().String() + "/v1/watch"); err != nil ||
		r.StatusCode != http.StatusTooManyRequests || r.Header.Get("Retry-After") == "" {
		t.Error(r, err)
	}
	if r, err := http.Get("http://" + l.Addr().String() + "/livez"); err != nil || r.StatusCode != 200 {
		t.Error("beside those who watch:", r, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // a deadline far beyond what a working shutdown takes
	defer cancel()
	if err := l.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	for _, r := range watches {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error("the stream was broken off:", err)
		}
	}
}

// The time limit for the arrival of a request does not end a watch.
func TestWatchOutlivesItsRequest(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(Handler(quiet(map[string]int{})))
	server.Config.ReadTimeout = tick // the third status comes later than that
	server.Start()
	defer server.Close()
	answer, err := http.Get(server.URL + "/v1/watch")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	seen := 0
	for lines := bufio.NewScanner(answer.Body); seen < 3 && lines.Scan(); {
		if lines.Text() == "event: status" {
			seen++
		}
	}
	if seen < 3 {
		t.Error("the stream has ended by itself")
	}
}

// A crowded is a server with a thousand models, of which twenty have requests.
type crowded struct {
	*fake
	began time.Time
}

func (c crowded) Status() admin.Status {
	ran := time.Since(c.began)
	s := admin.Status{Version: "1.2.3", Uptime: ran.Seconds()}
	for i := range 1000 {
		h := admin.Health{Name: fmt.Sprintf("camera-model-%d", i), Version: "1", Replicas: 1, Needed: 1, SLO: 0.1}
		if i%50 == 0 {
			h.Requests = 100 * uint64(ran/time.Second)
			h.Judged, h.InTime, h.Load = h.Requests, h.Requests, ran.Seconds()/1000
		}
		for class := range 12 {
			h.Durations = append(h.Durations, admin.DurationClass{Above: float64(class) / 100,
				UpTo: float64(class+1) / 100, Requests: 10 + h.Requests/12})
		}
		s.Models = append(s.Models, h)
	}
	return s
}

func (c crowded) Batches() (list []admin.Batches) {
	for i := range 1000 {
		b := admin.Batches{Name: fmt.Sprintf("camera-model-%d", i), Version: "1", Span: 60, Batches: 100, Rows: 1000,
			Closed: map[string]uint64{"idle": 90, "max_batch": 10}, Outcomes: map[string]uint64{"ok": 1000}}
		if i%50 == 0 {
			b.Rows += uint64(time.Since(c.began) / time.Second)
		} else {
			b.Ago = time.Since(c.began).Round(tick).Seconds()
		}
		list = append(list, b)
	}
	return list
}

// patched is a value after a change.
func patched(old, change any) any {
	by, ok := change.(map[string]any)
	if !ok {
		return change
	}
	if v, ok := by["="]; ok {
		return v
	}
	switch old := old.(type) {
	case map[string]any:
		for name, one := range by {
			old[name] = patched(old[name], one)
		}
	case []any:
		for i, one := range by {
			n, _ := strconv.Atoi(i)
			old[n] = patched(old[n], one)
		}
	}
	return old
}

// parts reads the events of a watch: the value of each part at the end.
func (a *audience) parts(t *testing.T) map[string]any {
	t.Helper()
	values := map[string]any{}
	for event := range strings.SplitSeq(strings.TrimSuffix(a.Body.String(), "\n\n"), "\n\n") {
		head, data, _ := strings.Cut(event, "\ndata: ")
		var v any
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			t.Fatalf("%v: %.100s", err, event)
		}
		name, brief := strings.CutSuffix(strings.TrimPrefix(head, "event: "), "-change")
		if brief {
			v = patched(values[name], v)
		}
		values[name] = v
	}
	return values
}

// A watch of changes comes to the same picture as one of everything, with few bytes: a page that
// is open all day, far from a large server, is no load of the network.
func TestWatchOfChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quiet(map[string]int{})
		s.Report = crowded{s.Report.(*fake), time.Now()}
		f := newFeed(s)
		whole, brief := f.begin(t, "a"), f.begin(t, "a&changes=true")
		const seconds, most = 10, 80 << 10
		time.Sleep(seconds*tick + tick/2)
		for _, a := range []*audience{whole, brief} {
			a.leave()
			<-a.ended
		}
		if want, got := whole.parts(t), brief.parts(t); !reflect.DeepEqual(got, want) || len(want) < 7 {
			t.Error("the changes lead to another picture")
		}
		first := strings.Index(brief.Body.String(), "event: status-change\n")
		all, changes := whole.Body.Len()/(seconds+1), (brief.Body.Len()-first)/seconds
		t.Logf("%d bytes a second, and %d of changes", all, changes)
		if changes > most {
			t.Errorf("%d bytes a second for a thousand models, of %d for everything; expected %d at most", changes,
				all, most)
		}
		_, err := f.watch(httptest.NewRequest("GET", "/v1/watch?changes=perhaps", nil))
		if !isStatus(err, http.StatusBadRequest) {
			t.Errorf("%v", err)
		}
	})
}

func TestChange(t *testing.T) {
	for _, c := range [][3]string{
		{`{"a":1,"b":[1,{"c":"x"}]}`, `{"a":1,"b":[2,{"c":"y"}]}`, `{"b":{"0":2,"1":{"c":"y"}}}`},
		{`{"a":[1,2]}`, `{"a":[1]}`, `{"a":{"=":[1]}}`},
		{`{"a":{"b":1}}`, `{"a":{"c":1}}`, `{"a":{"=":{"c":1}}}`},
		{`{"a":{"=":1}}`, `{"a":{"=":2}}`, `{"a":{"=":{"=":2}}}`},
		{`{"a":null,"b":{"c":0}}`, `{"a":{"c":0},"b":null}`, `{"a":{"=":{"c":0}},"b":null}`},
		{`{"a":[{}]}`, `{"a":{}}`, `{"a":{"=":{}}}`},
		{`{"a\"\u2028":1}`, `{"a\"\u2028":"b"}`, `{"a\"\u2028":"b"}`},
		{`[1,2]`, `{"error":"x"}`, `{"=":{"error":"x"}}`},
	} {
		if got := string(appendChange(nil, []byte(c[0]), []byte(c[1]))); got != c[2] {
			t.Errorf("%s to %s: %s, want %s", c[0], c[1], got, c[2])
		}
	}
}
