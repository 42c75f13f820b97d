package server

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/trace"
	"github.com/shivad/shivad/server/internal/trace/tracetest"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/hosttest"
	"github.com/shivad/shivad/shiva/tensor"
)

var collectorFlag = flag.String("collector", "", "an OpenTelemetry Collector, a `program` as testdata/collector of package trace: spans go through it")

// traced starts a server that traces requests only if their clients ask for it, and its collector.
func traced(t *testing.T, change func(*config.Config)) (*Server, *tracetest.Collector) {
	t.Helper()
	collector := tracetest.New(t)
	endpoint := collector.URL
	if *collectorFlag != "" {
		endpoint = through(t, endpoint)
	}
	return start(t, func(c *config.Config) {
		c.Traces = config.Traces{Endpoint: endpoint}
		if change != nil {
			change(c)
		}
	}), collector
}

// through starts an OpenTelemetry Collector that forwards to a URL.
func through(t *testing.T, url string) (endpoint string) {
	t.Helper()
	listen := hosttest.Addr(t)
	settings := fmt.Sprintf(`yaml:
receivers: {otlp: {protocols: {http: {endpoint: "%s"}}}}
exporters: {otlphttp: {endpoint: "%s", compression: none}}
service: {telemetry: {metrics: {level: none}}, pipelines: {traces: {receivers: [otlp], exporters: [otlphttp]}}}
`, listen, url)
	var log strings.Builder
	program := exec.Command(*collectorFlag, "--config", settings)
	program.Stdout, program.Stderr = &log, &log
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // ends with the program
		_ = program.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = program.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("the collector:\n%s", log.String())
		}
	})
	budgettest.Until(t, "the collector", func() bool {
		select {
		case <-ended:
			t.Fatalf("the collector has ended:\n%s", log.String())
		default:
		}
		conn, err := net.Dial("tcp", listen)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return "http://" + listen
}

// clientSpan returns the n-th client's span.
func clientSpan(n int) trace.Context {
	c := trace.Context{Sampled: true}
	c.Trace[15], c.Span[7] = byte(n+1), byte(n+1)
	return c
}

func traceID(c trace.Context) string { return fmt.Sprintf("%x", c.Trace) }

// spansOf waits for the spans of a trace, and returns them by name. All but the root are children
// of it or of the stage of a pipeline, and within that.
func spansOf(t *testing.T, collector *tracetest.Collector, c trace.Context, names ...string) map[string]tracetest.Span {
	t.Helper()
	slices.Sort(names)
	var spans []tracetest.Span
	var got []string
	t.Cleanup(func() {
		if !slices.Equal(got, names) {
			t.Logf("trace %s has the spans %q, expected %q", traceID(c), got, names)
		}
	})
	budgettest.Until(t, fmt.Sprintf("the spans %q", names), func() bool {
		spans, got = collector.Spans(traceID(c)), nil
		for _, s := range spans {
			got = append(got, s.Name)
		}
		slices.Sort(got)
		return slices.Equal(got, names)
	})
	by, parents := map[string]tracetest.Span{}, map[string]tracetest.Span{}
	var whole tracetest.Span
	for _, s := range spans {
		by[s.Name] = s
		if s.Kind == "SERVER" {
			whole = s
		}
		if s.Kind == "SERVER" || strings.HasPrefix(s.Name, "stage ") {
			parents[s.ID] = s
		}
	}
	if want := fmt.Sprintf("%x", c.Span); whole.Parent != want {
		t.Errorf("%s is a child of %q, expected the client's span, %s", whole.Name, whole.Parent, want)
	}
	for _, s := range spans {
		parent, ok := parents[s.Parent]
		if s.ID != whole.ID && (!ok || s.Start.Before(parent.Start) || s.End.After(parent.End)) {
			t.Errorf("%+v is not a part of %+v", s, parent)
		}
	}
	return by
}

// A client's traceparent reaches the container from every door, as a parameter, and as a header of
// HTTP and metadata of gRPC.
func TestTraceThroughEveryDoor(t *testing.T) {
	t.Parallel() // it waits
	s, collector := traced(t, nil)
	parents, states, x := make(chan string, 100), make(chan string, 100),
		[]tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	w := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		parent := ""
		if p := b.Parts[0].Trace; p != (scheduler.Parent{}) {
			parent = string(p.Append(nil))
		}
		parents <- parent
		states <- b.Parts[0].TraceState
		return echo(b)
	})
	if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "m", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x}, w, scheduler.ReplicaOptions{Label: "gpu"}); err != nil {
		t.Fatal(err)
	}
	doors := cameraDoors(t, s)
	containers, names := map[int]string{}, []string{}
	state := func(n int) string { return fmt.Sprintf("client=%d,other=x", n) }
	passed := func(name string) {
		containers[len(names)] = <-parents
		if got := <-states; got != state(len(names)) {
			t.Errorf("%s: the container is told the state %q, expected %q", name, got, state(len(names)))
		}
		names = append(names, name)
	}
	for i, d := range doors {
		if got := d.send("m",
			frame{int32(i), map[string]any{"traceparent": clientSpan(i).String(), "tracestate": state(i)}}); got.err !=
			nil {
			t.Fatalf("%s: %v", d.name, got.err)
		}
		passed(strings.Fields(d.name)[0])
	}

	web, rpc := newHTTP(t, s.Addrs().REST[0]), newGRPC(t, s.Addrs().GRPC[0])
	for _, path := range []string{"/v2/models/m/infer", "/m/predict"} {
		postTraced(t, web, path, clientSpan(len(names)).String(), state(len(names)))
		passed("rest")
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", clientSpan(len(names)).String(), "tracestate",
		state(len(names)))
	if _, err := rpc.client.ModelInfer(ctx, frame{1, nil}.question(t, "m")); err != nil {
		t.Fatal(err)
	}
	passed("grpc")

	for i, door := range names {
		spans := spansOf(t, collector, clientSpan(i), "infer m", "door", "queue", "container", "answer")
		container := fmt.Sprintf("00-%s-%s-01", traceID(clientSpan(i)), spans["container"].ID)
		if containers[i] != container {
			t.Errorf("%s: the container was told %s, expected %s", door, containers[i], container)
		}
		for _, span := range spans {
			if span.State != state(i) {
				t.Errorf("%s: span %s has the state %q, expected %q", door, span.Name, span.State, state(i))
			}
		}
		if a := spans["infer m"].Attributes; a["shivad.door"] != door || a["shivad.outcome"] != "ok" ||
			spans["infer m"].Fault != "" {
			t.Errorf("%s: %v", door, a)
		}
		if a := spans["queue"].Attributes; a["shivad.batch.reason"] != "idle" || a["shivad.batch.rows"] != int64(1) ||
			a["shivad.model"] != "m" || a["shivad.version"] != "1" {
			t.Errorf("%s: %v", door, a)
		}
		if c := spans["container"]; c.Attributes["shivad.replica"] != "gpu" || c.Kind != "CLIENT" ||
			c.Start.Before(spans["queue"].End) {
			t.Errorf("%s: %+v", door, c)
		}
	}

	// Not sampled, or invalid: as if there was no traceparent.
	not := clientSpan(99)
	not.Sampled = false
	for _, text := range []string{not.String(), "rubbish"} {
		for _, d := range doors {
			if got := d.send("m", frame{1, map[string]any{"traceparent": text, "tracestate": state(0)}}); got.err !=
				nil {
				t.Errorf("%s: traceparent %q: %v", d.name, text, got.err)
			}
			if parent, state := <-parents, <-states; parent != "" || state != "" {
				t.Errorf("%s: traceparent %q: the container is told %q and %q", d.name, text, parent, state)
			}
		}
	}
	if page := metricsPage(t, s); !strings.Contains(page,
		fmt.Sprintf("\nshivad_trace_spans_exported_total %d\n", 5*len(names))) || !strings.Contains(page, "\nshivad_trace_spans_dropped_total 0\n") {
		t.Error("/metrics does not have the spans")
	}
}

// postTraced sends a row to model m over HTTP, with the members of the state in a header each.
func postTraced(t *testing.T, web *httpClient, path, traceparent, tracestate string) {
	t.Helper()
	body := `{"inputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[1,2]}]}`
	if path == "/m/predict" {
		body = `{"input":[1,2]}`
	}
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, web.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("traceparent", traceparent)
	for member := range strings.SplitSeq(tracestate, ",") {
		q.Header.Add("tracestate", member)
	}
	resp, err := web.client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

// Requests that share a batch link to each other; a request that fails, expires or is answered from
// a cache has spans as far as it got; an application has those of its models.
func TestTraces(t *testing.T) {
	s, collector := traced(t, func(c *config.Config) {
		m := c.Model("echo")
		m.Cache = 1 << 20
		c.Models["echo"] = m
	})
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	batches := make(chan *scheduler.Batch, 10)
	w := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		batches <- b
		return nil
	})
	if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "slow", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x}, w, scheduler.ReplicaOptions{Slots: 1}); err != nil {
		t.Fatal(err)
	}
	doors := cameraDoors(t, s)
	library := doors[len(doors)-1]
	g := &stage{t: t, s: s, model: "slow"}
	parent := func(n int, more ...any) frame {
		f := frame{int32(n), map[string]any{"traceparent": clientSpan(n).String()}}
		for i := 0; i < len(more); i += 2 {
			f.keys[more[i].(string)] = more[i+1]
		}
		return f
	}

	first := library.ask("slow", parent(0))
	g.taken(1)
	second, third := library.ask("slow", parent(1)), doors[0].ask("slow", parent(2))
	g.taken(3)
	late := library.send("slow", parent(3, "timeout", int64(20_000)))
	for range 2 {
		if err := echo(<-batches); err != nil {
			t.Fatal(err)
		}
	}
	for _, answer := range []<-chan shown{first, second, third} {
		if got := <-answer; got.err != nil {
			t.Fatal(got.err)
		}
	}
	whole := []string{"infer slow", "door", "queue", "container", "answer"}
	if spans := spansOf(t, collector, clientSpan(0), whole...); spans["queue"].Links != nil {
		t.Errorf("a request alone in its batch has the links %v", spans["queue"].Links)
	}
	one, other := spansOf(t, collector, clientSpan(1), whole...), spansOf(t, collector, clientSpan(2), whole...)
	if !slices.Equal(one["queue"].Links, []string{other["container"].ID}) ||
		!slices.Equal(other["queue"].Links, []string{one["container"].ID}) {
		t.Errorf("%v and %v do not name each other", one["queue"], other["queue"])
	}
	if a := one["queue"].Attributes; a["shivad.batch.rows"] != int64(2) {
		t.Errorf("%v", a)
	}
	spans := spansOf(t, collector, clientSpan(3), "infer slow", "door", "queue", "answer")
	if late.err == nil || !strings.Contains(spans["queue"].Fault, "deadline") ||
		spans["infer slow"].Attributes["shivad.outcome"] != "deadline_exceeded" {
		t.Errorf("%v; %+v", late, spans)
	}

	for n := 4; n < 6; n++ { // the second one from the cache
		if got := doors[0].send("echo", frame{7, parent(n).keys}); got.err != nil {
			t.Fatal(got.err)
		}
	}
	spansOf(t, collector, clientSpan(4), "infer echo", "door", "queue", "container", "answer")
	spansOf(t, collector, clientSpan(5), "infer echo", "door", "cache", "answer")

	none := pairOfInts(t)
	none.Shape = tensor.Shape{0, 2}
	none.Data = none.Data[:0]
	if reply, _ := say(t, s, "slow", fmt.Sprintf(`{"traceparent":%q}`, clientSpan(9)), none); reply["error"] != nil {
		t.Fatal(reply)
	}
	spansOf(t, collector, clientSpan(9), "infer slow", "door", "answer") // no model is asked for no rows

	for i, d := range []cameraDoor{doors[0], library} {
		d.send("nobody", parent(6+i))
		spans = spansOf(t, collector, clientSpan(6+i), "infer nobody", "door")
		if whole := spans["infer nobody"]; whole.Attributes["shivad.outcome"] != "not_found" ||
			!strings.Contains(whole.Fault, "nobody") {
			t.Errorf("%+v", whole)
		}
	}

	constant(t, s, "a", 1, 0)
	constant(t, s, "b", 2, 0)
	if _, err := registry(t, s).Create(t.Context(),
		apps.Definition{Name: "app", Models: []string{"a", "b"}, Policy: "exp4"}); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the models", func() bool { return serves(s, "a", "1") && serves(s, "b", "1") })
	if reply, _ := say(t, s, "app", fmt.Sprintf(`{"traceparent":%q}`, clientSpan(8)), pairOfInts(t)); reply["error"] != nil {
		t.Fatal(reply)
	}
	spansOf(t, collector, clientSpan(8), "infer app", "door", "queue", "container", "queue", "container", "answer")
}

// TestTracesOfStages: each stage of a pipeline that is reached has a span, in which are those of
// one row, of the models of an application, or of the stages of a pipeline.
func TestTracesOfStages(t *testing.T) {
	s, collector := traced(t, func(c *config.Config) {
		c.Pipelines["inner"] = added()
		c.Pipelines["p"] = admin.Pipeline{Inputs: []string{"image"}, Stages: []admin.Stage{
			{Name: "whole", Model: "inner", Inputs: map[string]string{"image": "image"}},
			{Name: "also", Model: "app", Inputs: map[string]string{"image": "image"}},
		}}
	})
	connect(t, s, ragged("detector"))
	connect(t, s, adder("adder"))
	if _, err := registry(t, s).Create(t.Context(),
		apps.Definition{Name: "app", Models: []string{"detector"}}); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the models", func() bool { return serves(s, "detector", "1") && serves(s, "adder", "1") })
	ask := func(n int, model string) map[string]tracetest.Span {
		status, answer := inferREST(t, s, model, fmt.Sprintf(`{"parameters":{"traceparent":%q},"inputs":[{"name":"image","datatype":"INT64","shape":[2,2],"data":[2,7,1,9]}]}`,
			clientSpan(n)))
		if status != 200 {
			t.Fatalf("%s: %d %s", model, status, answer)
		}
		of := []string{"door", "answer", "infer " + model, "stage find", "queue", "container", "stage add", "queue",
			"container"}
		if model == "p" {
			of = append(of, "stage whole", "stage also", "queue", "container")
		}
		return spansOf(t, collector, clientSpan(n), of...)
	}
	flat := ask(0, "inner")
	if add := flat["stage add"]; add.Attributes["shivad.rows"] != int64(3) || add.Attributes["shivad.model"] != "adder" ||
		add.Parent != flat["infer inner"].ID {
		t.Errorf("%+v", add)
	}
	deep := ask(1, "p")
	for name, parent := range map[string]string{"stage find": "stage whole", "stage add": "stage whole",
		"stage whole": "infer p", "stage also": "infer p"} {
		if deep[name].Parent != deep[parent].ID {
			t.Errorf("%s is a child of %s, expected %s, %s", name, deep[name].Parent, parent, deep[parent].ID)
		}
	}
	for _, name := range []string{"queue", "container"} {
		if deep[name].Parent == deep["infer p"].ID {
			t.Errorf("%s is in no stage", name)
		}
	}
}

// A missing collector changes nothing: every request is traced and answered, and the server stops
// as fast as usual.
func TestTracesWithoutACollector(t *testing.T) {
	s := start(t, func(c *config.Config) { c.Traces = config.Traces{Endpoint: "http://127.0.0.1:1", OneIn: 1} })
	for range 20 {
		if err := ask(t, s); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	stop(t, s)
	if _, dropped := s.tracer.Counts(); dropped != 20*5 {
		t.Errorf("%d spans are dropped after %v, expected 100", dropped, time.Since(began))
	}
}
