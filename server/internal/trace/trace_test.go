package trace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/trace/tracetest"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestParse(t *testing.T) {
	for _, text := range []string{parent, strings.TrimSuffix(parent, "1") + "0"} {
		if c, ok := Parse(text); !ok || c.String() != text {
			t.Errorf("%s is read as %s, %v", text, c, ok)
		}
	}
	later := "cc" + parent[2:] + "-what the future will be like"
	if c, ok := Parse(later); !ok || c.String() != parent {
		t.Errorf("of a later version: %v, %v", c, ok)
	}
	if c, _ := Parse("00" + parent[2:53] + "03"); !c.Sampled {
		t.Error("with a flag of the second level it is not sampled")
	}
	for _, text := range []string{
		"", "00", parent[1:], parent + "0", parent + "-", "ff" + parent[2:], "cc" + parent[2:] + ".", "0x" + parent[2:],
		strings.ToUpper(parent), strings.Replace(parent, "b7ad6b7169203331", "0000000000000000", 1),
		strings.Replace(parent, "0af7651916cd43dd8448eb211c80319c", "00000000000000000000000000000000", 1),
		strings.Replace(parent, "-b7", "_b7", 1), strings.Replace(parent, "331-", "33g-", 1),
		strings.Repeat("-", parentSize),
	} {
		if c, ok := Parse(text); ok || c != (Context{}) {
			t.Errorf("%q is read as %s", text, c)
		}
	}
}

// A tracestate is passed on unchanged, except for empty members and excess length; an invalid one
// counts as absent.
func TestState(t *testing.T) {
	long := strings.Repeat("v", 200)
	thirty := make([]string, stateMembers)
	for i := range thirty {
		thirty[i] = fmt.Sprintf("vendor%02d=12345678", i) // 17 bytes and a comma
	}
	for text, want := range map[string]string{
		"": "", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
		" a=1 ,, \tb= 2 3": "a=1,b= 2 3", "fw529a3039@dt=FfD,0/*-_z=!~": "fw529a3039@dt=FfD,0/*-_z=!~",
		// The large members go first, and then the last ones.
		"a=" + long + ",b=" + long + ",c=" + long + ",d=1": "a=" + long + ",b=" + long + ",d=1",
		strings.Join(thirty, ","):                          strings.Join(thirty[:28], ","),
		"big=" + long + "," + strings.Join(thirty, ","):    "",
		"a": "", "a=": "", "=1": "", "a=1,a=2": "", "A=1": "", "a=b=c": "", "a=\x7f": "", "a=é": "", "a =1": "",
		"@a=1": "", "a@=1": "",
		"a@b@c=1": "", "_a=1": "", "a=1;b=2,c": "", strings.Repeat("k", 257) + "=1": "",
		"a=" + strings.Repeat("v", 257): "", "a=1\n": "",
	} {
		if got := state(text); got != want {
			t.Errorf("%q goes on as %q, expected %q", text, got, want)
		}
	}
}

// A client decides for its request; otherwise one in so many is traced. An untraced request costs
// no memory, even while other requests are traced.
func TestSampling(t *testing.T) {
	tracer := New(Config{Endpoint: "http://127.0.0.1:1", OneIn: 4})
	defer tracer.Close()
	yes, _ := Parse(parent)
	no := yes
	no.Sampled = false
	if tracer.Begin(&yes, "", "tcp", time.Now(), nil) == nil || tracer.Begin(&no, "", "tcp", time.Now(), nil) != nil {
		t.Error("a client's traceparent does not decide")
	}
	for name, gap := range map[string]*Gap{"a gap": new(Gap), "no gap": nil} {
		tracer.Sample(0)
		if tracer.Begin(new(Context), "", "tcp", time.Now(), gap) != nil {
			t.Errorf("%s: one in 0, at first", name)
		}
		tracer.Sample(4)
		followed, pairs, before := 0, 0, false
		for range 4000 {
			now := tracer.Begin(new(Context), "", "tcp", time.Now(), gap) != nil
			if now {
				followed++
			}
			if now && before {
				pairs++
			}
			before = now
		}
		// Independently of each other: after a traced request, the next one is as likely to be
		// traced.
		if followed < 800 || followed > 1200 || pairs < 125 || pairs > 400 {
			t.Errorf("%s: %d of 4000 are followed, expected 1000, and %d after such a one, expected 250", name,
				followed, pairs)
		}
		tracer.Sample(0)
		if tracer.Begin(new(Context), "", "tcp", time.Now(), gap) != nil ||
			tracer.Begin(&yes, "", "tcp", time.Now(), gap) == nil {
			t.Errorf("%s: one in 0", name)
		}
		tracer.Sample(1)
		for range 2 {
			if tracer.Begin(new(Context), "", "tcp", time.Now(), gap) == nil {
				t.Errorf("%s: one in 1", name)
			}
		}
		tracer.Sample(1 << 60)
		for name, tracer := range map[string]*Tracer{"off": nil, "on": tracer} {
			if n := testing.AllocsPerRun(100, func() {
				followed := tracer.Begin(new(Context), "", "tcp", time.Time{}, gap)
				followed.Ask(scheduler.ModelID{}).Submitted(time.Time{})
				followed.Answered()
				followed.End("m", "ok", nil)
			}); n > 0 {
				t.Errorf("%s: a request that is not followed allocates %v times", name, n)
			}
		}
	}
}

// transport stands for the collector in the HTTP client, without sockets.
type transport func(*http.Request) (int, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) {
	code, err := f(r)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Body: http.NoBody}, nil
}

// An unreachable collector costs a bounded queue: spans that do not fit are dropped and counted,
// and one line is logged. Once reachable again, it gets the spans that waited.
func TestCollectorIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		collector := &tracetest.Collector{}
		var away atomic.Bool
		away.Store(true)
		var log bytes.Buffer
		tracer := New(Config{Endpoint: "http://user:secret@collector:4318", OneIn: 1,
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		tracer.exporter.client.Transport = transport(func(r *http.Request) (int, error) {
			if away.Load() {
				return 0, errors.New("connection refused")
			}
			w := httptest.NewRecorder()
			collector.ServeHTTP(w, r)
			return w.Code, nil
		})
		ask := func(n int) {
			for range n {
				tracer.Begin(new(Context), "", "tcp", time.Now(), nil).End("m", "ok", nil)
			}
		}
		ask(10)
		time.Sleep(10 * time.Minute)
		ask(queueSpans) // of two spans each
		synctest.Wait()
		exported, dropped := tracer.Counts()
		if waits := tracer.exporter.waiting; waits > queueSpans || exported != 0 ||
			int(dropped)+waits != 20+2*queueSpans {
			t.Errorf("%d spans wait, %d are dropped, %d exported", waits, dropped, exported)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "connection refused") ||
			strings.Contains(log.String(), "secret") {
			t.Errorf("%d lines are logged in twenty minutes, expected one:\n%s", n, log.String())
		}
		away.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if exported, _ := tracer.Counts(); exported != queueSpans || len(collector.Spans("")) != queueSpans {
			t.Errorf("%d spans are exported, and %d have come", exported, len(collector.Spans("")))
		}
		if !strings.Contains(log.String(), "again") {
			t.Errorf("not logged that it is back:\n%s", log.String())
		}
		ask(1)
		tracer.Close() // sends the rest at once
		ask(1)
		if n := len(collector.Spans("")); n != 2+queueSpans {
			t.Errorf("%d spans after the end, expected %d", n, 2+queueSpans)
		}
	})
}

// However many spans arrive while others are being sent, the collector gets no more requests than
// there are full pages and pauses.
func TestFewRequestsToTheCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		collector := &tracetest.Collector{}
		requests := 0
		tracer := New(Config{Endpoint: "http://collector", OneIn: 1})
		tracer.exporter.client.Transport = transport(func(r *http.Request) (int, error) {
			requests++
			time.Sleep(time.Millisecond)
			w := httptest.NewRecorder()
			collector.ServeHTTP(w, r)
			return w.Code, nil
		})
		for range 10_000 { // in a second
			tracer.Begin(new(Context), "", "tcp", time.Now(), nil).End("m", "ok", nil)
			time.Sleep(100 * time.Microsecond)
		}
		tracer.Close()
		if n := len(collector.Spans("")); n != 20_000 || requests > 1+int(time.Second/pause)+20_000/pageSpans {
			t.Errorf("%d requests with %d spans in all, expected 20000", requests, n)
		}
	})
}

// A traced request leaves its memory to the next one when it has ended.
func TestFollowedAllocates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracer := New(Config{Endpoint: "http://collector", OneIn: 1})
		tracer.exporter.client.Transport = transport(func(*http.Request) (int, error) { return http.StatusOK, nil })
		defer tracer.Close()
		c, _ := Parse(parent)
		batch, now := []scheduler.Parent{c.Parent, c.Parent}, time.Now()
		if n := testing.AllocsPerRun(1000, func() { follow(tracer, batch, now, nil) }); n > 0 {
			t.Errorf("%v allocations, expected none", n)
		}
	})
}

// collected returns a tracer of every request, and the collector that its spans are sent to.
func collected() (*Tracer, *tracetest.Collector) {
	collector := &tracetest.Collector{}
	tracer := New(Config{Endpoint: "http://collector", OneIn: 1})
	tracer.exporter.client.Transport = transport(func(r *http.Request) (int, error) {
		w := httptest.NewRecorder()
		collector.ServeHTTP(w, r)
		return w.Code, nil
	})
	return tracer, collector
}

// The memory of a trace is not reused while models of its application have not answered: their late
// answers are sent, and change no other request's spans.
func TestLateAnswersKeepTheirTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracer, collector := collected()
		begin := func() *Trace { return tracer.Begin(new(Context), "", "tcp", time.Now(), nil) }
		late := begin()
		first, shadow := late.Ask(scheduler.ModelID{Name: "first"}), late.Ask(scheduler.ModelID{Name: "shadow"})
		id := fmt.Sprintf("%x", first.Parent.Trace)
		first.Done(new(scheduler.Request))
		late.Answered()
		late.End("app", "ok", nil)
		time.Sleep(2 * pause)
		others := []*Trace{begin(), begin(), begin()}
		shadow.Done(new(scheduler.Request))
		late.Answered()
		for _, other := range others {
			other.End("m", "ok", nil)
		}
		tracer.Close()
		// infer, door and the first model's at End, the shadow's after it.
		if n := len(collector.Spans(id)); n != 4 {
			t.Errorf("%d spans of the application's, expected 4", n)
		}
		if n := len(collector.Spans("")); n != 4+2*len(others) {
			t.Errorf("%d spans in all, expected %d", n, 4+2*len(others))
		}
	})
}

// Nor is it reused when its request was given up: the application may still report an answer.
func TestGivenUpKeepsItsTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracer, collector := collected()
		begin := func() *Trace { return tracer.Begin(new(Context), "", "tcp", time.Now(), nil) }
		given := begin()
		given.Ask(scheduler.ModelID{Name: "first"}).Done(new(scheduler.Request))
		given.End("app", "canceled", errors.New("its client has gone"))
		others := []*Trace{begin(), begin(), begin()}
		for _, other := range others {
			other.Submitted(time.Now())
		}
		given.Answered()
		for _, other := range others {
			other.End("m", "ok", nil)
		}
		tracer.Close()
		if n := len(collector.Spans("")); n != 3+2*len(others) {
			t.Errorf("%d spans, expected %d: those that were not answered have no more", n, 3+2*len(others))
		}
	})
}

// An HTTP client that has not read a page to its end when it has an answer does not see the next
// spans, which are written to the same memory.
func TestPageIsWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late []io.ReadCloser
		tracer := New(Config{Endpoint: "http://collector", OneIn: 1})
		tracer.exporter.client.Transport = transport(func(r *http.Request) (int, error) {
			again, err := r.GetBody()
			if err != nil {
				t.Error(err)
			}
			late = append(late, r.Body, again)
			some := make([]byte, 10)
			if n, err := io.ReadFull(r.Body, some); err != nil || n != len(some) {
				t.Errorf("%d, %v", n, err)
			}
			return http.StatusOK, nil
		})
		for range 3 {
			tracer.Begin(new(Context), "", "tcp", time.Now(), nil).End("m", "ok", nil)
			time.Sleep(2 * pause)
		}
		tracer.Close()
		for i, r := range late {
			if n, err := r.Read(make([]byte, 10)); n != 0 || err != io.EOF {
				t.Errorf("reader %d gets %d more bytes, %v", i, n, err)
			}
		}
		if len(late) != 6 {
			t.Errorf("%d readers, expected 6", len(late))
		}
	})
}

// Spans that a collector refuses for good are dropped, and later ones are sent.
func TestCollectorRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		codes := []int{http.StatusBadRequest, http.StatusServiceUnavailable, http.StatusOK}
		tracer := New(Config{Endpoint: "http://collector", OneIn: 1, Log: slog.New(slog.NewTextHandler(&log, nil))})
		tracer.exporter.client.Transport = transport(func(*http.Request) (int, error) {
			code := codes[0]
			codes = codes[1:]
			return code, nil
		})
		for range 2 {
			tracer.Begin(new(Context), "", "tcp", time.Now(), nil).End("m", "ok", nil)
			time.Sleep(time.Minute)
		}
		if exported, dropped := tracer.Counts(); exported != 2 || dropped != 2 {
			t.Errorf("%d exported, %d dropped, expected 2 each", exported, dropped)
		}
		tracer.Close()
	})
}

func TestEndpoint(t *testing.T) {
	for text, want := range map[string]string{
		"http://127.0.0.1:4318":       "http://127.0.0.1:4318/v1/traces",
		"https://collector/":          "https://collector/v1/traces",
		"http://collector/otlp/spans": "http://collector/otlp/spans",
		"127.0.0.1:4318":              "", "grpc://a": "", "http://": "", "http://a?b=c": "", "": "", "http://a b": "",
	} {
		if got, ok := Endpoint(text); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", text, got, ok)
		}
	}
}
