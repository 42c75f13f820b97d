package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/shivatest"
)

// benched serves the metadata of digits, and answers all other requests with answer.
func benched(t *testing.T, answer func(c *shivatest.Conn, q *shiva.Message)) (s *shivatest.Server) {
	t.Helper()
	return benchedOn(t, "tcp", answer)
}

// benchedOn is benched on "tcp" or "unix".
func benchedOn(t *testing.T, network string, answer func(c *shivatest.Conn, q *shiva.Message)) (s *shivatest.Server) {
	t.Helper()
	s = shivatest.Serve(listen(t, network), func(c *shivatest.Conn, q *shiva.Message) {
		if strings.HasPrefix(q.Namespace, "v2/") {
			_ = c.Send(&shiva.Message{Namespace: q.Namespace, Metadata: []byte(fakeModels["digits"].metadata)})
			return
		}
		answer(c, q)
	})
	t.Cleanup(s.Close)
	return s
}

func good(c *shivatest.Conn, q *shiva.Message) {
	a := fakeModels["digits"].answer(q)
	a.Namespace = q.Namespace
	if a.Tensors == nil {
		a.Namespace = "!error"
	}
	_ = c.Send(a)
}

// offer runs a bench and returns its report.
func offer(t *testing.T, ctx context.Context, args ...string) (r benchReport, code int, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(ctx, append([]string{"bench", "digits", "--json"}, args...), nil, &out, &errs)
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v: exit %d, %v: %s%s", args, code, err, out.Bytes(), errs.Bytes())
	}
	return r, code, errs.String()
}

// While the server stalls, requests keep falling due, and each counts its wait: a stall of a
// twelfth of the run affects one in twelve requests, and the longest wait is nearly all of it.
func TestBenchSeesStalls(t *testing.T) {
	const length, stall = 1200 * time.Millisecond, 100 * time.Millisecond
	n := 0
	s := benched(t, func(c *shivatest.Conn, q *shiva.Message) {
		if n++; n == 400 {
			time.Sleep(stall)
		}
		good(c, &shiva.Message{Namespace: q.Namespace, Tensors: q.Tensors})
	})
	r, _, _ := offer(t, t.Context(), "--addr", s.Addr(), "--rate", "1000", "--conns", "1", "--for", length.String(), "--data", zeros(t))
	if least := ms(stall) * 0.9; r.Latency.P999 < least || r.Sent < 1000 || r.Failed+r.Unanswered != 0 {
		t.Errorf("p99.9 is %g ms of %d requests, %d failed, want at least %g", r.Latency.P999, r.Sent,
			r.Failed+r.Unanswered, least)
	}
}

// zeros is an image that digits takes.
func zeros(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "zeros.json")
	write(t, name, `[`+strings.Repeat("0,", 63)+`0]`)
	return name
}

func TestBenchOnAUnixSocket(t *testing.T) {
	s := benchedOn(t, "unix", good)
	r, code, errs := offer(t, t.Context(), "--addr", s.Addr(), "--for", "100ms", "--data", zeros(t))
	if code != exitOK || r.Answered == 0 || r.Failed+r.Unanswered != 0 || r.Address != s.Addr() {
		t.Errorf("exit %d, %s: %+v", code, errs, r)
	}
}

// Clients that wait for each answer have their own report beside an open loop, and no more requests
// at once than there are clients.
func TestBenchClients(t *testing.T) {
	var asking, most atomic.Int64
	s := benched(t, func(c *shivatest.Conn, q *shiva.Message) {
		most.Store(max(most.Load(), asking.Add(1)))
		time.Sleep(time.Millisecond)
		asking.Add(-1)
		good(c, q)
	})
	data := zeros(t)
	r, code, errs := offer(t, t.Context(), "--addr", s.Addr(), "--clients", "3", "--think", "exp:1ms", "--for", "200ms",
		"--data", data)
	if code != exitOK || r.Answered == 0 || r.Offered != 0 || r.Think != "exp:1ms" || r.Clients != nil ||
		most.Load() > 3 {
		t.Errorf("alone: exit %d, %s: %+v; %d at once", code, errs, r, most.Load())
	}
	for _, load := range [][]string{{"--rate", "100"}, {"--streams", "2", "--fps", "50"}} {
		r, code, errs = offer(t, t.Context(),
			append(load, "--addr", s.Addr(), "--clients", "3", "--think", "5ms", "--for", "300ms", "--data", data)...)
		if code != exitOK || r.Answered == 0 || r.Offered != 100 || r.Think != "" || len(r.Streams) > 2 ||
			r.Clients == nil || r.Clients.Number != 3 || r.Clients.Answered == 0 || r.Clients.Offered != 0 ||
			r.Clients.Think != "5ms" || len(r.Clients.Streams) > 0 {
			t.Errorf("beside %v: exit %d, %s: %+v, %+v", load, code, errs, r, r.Clients)
		}
	}
}

func TestBenchClientsExclude(t *testing.T) {
	think := &load.Think{Mean: time.Millisecond}
	for _, o := range []benchOptions{
		{clients: 4, conns: 4},
		{clients: 4, search: &load.Promise{}},
		{think: think, search: &load.Promise{}, conns: 4},
		{think: think, rate: 5},
		{think: think, streams: 2},
		{clients: 4, streams: 2, hdr: "x"},
	} {
		if err := o.check(); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

// The search finds as many clients as the server answers in time: here, one at a time, 20 ms each.
func TestBenchFindsClients(t *testing.T) {
	var one sync.Mutex
	s := benched(t, func(c *shivatest.Conn, q *shiva.Message) {
		one.Lock()
		defer one.Unlock()
		time.Sleep(20 * time.Millisecond)
		good(c, q)
	})
	r, code, errs := offer(t, t.Context(), "--addr", s.Addr(), "--search", "p50<500ms", "--think", "0s", "--for",
		"200ms", "--data", zeros(t))
	if code != exitOK || r.Search == nil || r.Search.Clients < 1 || r.Search.Clients > 25 || len(r.Search.Trials) < 2 {
		t.Errorf("exit %d, %s: %+v", code, errs, r.Search)
	}
	refuses := benched(t, func(c *shivatest.Conn, q *shiva.Message) { _ = c.Send(refusal(shiva.Overloaded, "the queue is full")) })
	r, code, _ = offer(t, t.Context(), "--addr", refuses.Addr(), "--search", "p50<1s", "--think", "10ms", "--for",
		"50ms", "--data", zeros(t))
	if code != exitRefused || r.Search == nil || r.Search.Clients != 0 || len(r.Search.Trials) == 0 {
		t.Errorf("without answers: exit %d: %+v", code, r.Search)
	}
}

func TestBenchErrors(t *testing.T) {
	data := zeros(t)
	all := benched(t, func(c *shivatest.Conn, q *shiva.Message) {
		time.Sleep(10 * time.Millisecond) // a closed loop, with which a search begins, takes all processor time
		a := refusal(shiva.Overloaded, "the queue is full")
		_ = c.Send(a)
	})
	r, code, _ := offer(t, t.Context(), "--addr", all.Addr(), "--rate", "200", "--for", "300ms", "--data", data)
	if code != exitRefused || r.Answered != 0 || r.Failed == 0 || r.Failed != r.Sent || len(r.Errors) != 1 ||
		r.Errors[0].Kind != shiva.Overloaded || r.Errors[0].First != "the queue is full" ||
		r.Errors[0].Count != r.Failed {
		t.Errorf("exit %d, %+v", code, r)
	}
	var out, errs bytes.Buffer
	code = run(t.Context(), []string{"bench", "digits", "--addr", all.Addr(), "--for", "100ms", "--data", data}, nil,
		&out, &errs)
	if code != exitRefused || !strings.Contains(out.String(), "x Overloaded, the first: the queue is full") ||
		!strings.Contains(out.String(), "no request succeeded") {
		t.Errorf("exit %d, it says\n%s%s", code, out.String(), errs.String())
	}
	// The search finds no rate.
	r, code, _ = offer(t, t.Context(), "--addr", all.Addr(), "--search", "p99<50ms", "--data", data)
	if code != exitRefused || r.Failed == 0 {
		t.Errorf("a search: exit %d, %+v", code, r)
	}
}

// A run that ends early, for whatever reason, has a report up to that time.
func TestBenchEndsEarly(t *testing.T) {
	data := zeros(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var n, m atomic.Int64
	counted := benched(t, func(c *shivatest.Conn, q *shiva.Message) {
		if n.Add(1) == 20 {
			cancel()
		}
		good(c, q)
	})
	// One at a time: when a connection sends the twentieth request, it has all answers before it.
	r, code, stderr := offer(t, ctx, "--addr", counted.Addr(), "--conns", "1", "--for", "1h", "--data", data)
	if code != exitOK || stderr != "" || r.Ended != interrupted || r.Answered < 19 || r.Unanswered != 0 ||
		r.Seconds > 60 {
		t.Errorf("interrupted: exit %d, %q, %+v", code, stderr, r)
	}
	r, code, _ = offer(t, t.Context(), "--addr", counted.Addr(), "--rate", "100", "--for", "1h", "--timeout", "300ms", "--data", data)
	if code != exitUnreachable || r.Ended != "stopped by --timeout" || r.Seconds > 60 {
		t.Errorf("--timeout: exit %d, %+v", code, r)
	}
	leaves := benched(t, func(c *shivatest.Conn, q *shiva.Message) {
		if m.Add(1) > 30 {
			// Closing with requests unread would reset the connection, and lose answers.
			_ = c.CloseWrite()
			return
		}
		good(c, q)
	})
	r, code, _ = offer(t, t.Context(), "--addr", leaves.Addr(), "--rate", "200", "--conns", "1", "--for", "1h", "--data", data)
	if code != exitUnreachable || r.Answered != 30 || r.Unanswered == 0 || !strings.Contains(r.Ended, "closed by the server") {
		t.Errorf("the server leaves: exit %d, %+v", code, r)
	}
	m.Store(0)
	var out, errs bytes.Buffer
	code = run(t.Context(),
		[]string{"bench", "digits", "--addr", leaves.Addr(), "--rate", "200", "--conns", "1", "--for", "1h", "--data", data},
		nil, &out, &errs)
	if code != exitUnreachable || !strings.Contains(out.String(), "ended after") || !strings.Contains(errs.String(), "the server went away: connection 0: closed by the server") {
		t.Errorf("the server leaves: exit %d, it says\n%s%s", code, out.String(), errs.String())
	}
}

// The files of a directory are sent in turn.
func TestBenchData(t *testing.T) {
	dir := t.TempDir()
	for i := range 5 {
		digit(t, filepath.Join(dir, string(rune('a'+i))+".png"), uint8(i), 8)
	}
	write(t, filepath.Join(dir, ".hidden"), "not an image")
	seen := make(chan byte, 1000)
	s := benched(t, func(c *shivatest.Conn, q *shiva.Message) {
		seen <- q.Tensors[0].Data[0]
		good(c, q)
	})
	hdr := filepath.Join(dir, ".x.hgrm")
	r, code, stderr := offer(t, t.Context(), "--addr", s.Addr(), "--rate", "200", "--conns", "2", "--for", "300ms",
		"--data", dir, "--hdr", hdr)
	if code != exitOK || r.Failed != 0 {
		t.Fatalf("exit %d, %s, %+v", code, stderr, r)
	}
	counts := make([]int, 5)
	for range r.Sent {
		counts[<-seen]++
	}
	for i, n := range counts {
		if n == 0 {
			t.Errorf("file %d was never sent: %v", i, counts)
		}
	}
	if text, err := os.ReadFile(hdr); err != nil || !bytes.Contains(text, []byte("Percentile TotalCount 1/(1-Percentile)")) {
		t.Errorf("%v, --hdr wrote %q", err, text)
	}
}

// Random tensors fit the declaration, for each datatype that a client may send; the request of a
// model without inputs ("") is the same each time.
func TestBenchRandom(t *testing.T) {
	for _, datatype := range []string{"BOOL", "INT8", "UINT8", "INT64", "FP16", "BF16", "FP32", "FP64", "BYTES", ""} {
		d := declaration{Name: "m", Outputs: []declaredTensor{{Name: "y", Datatype: "FP32", Shape: []int{-1}}}}
		requests, inputs := 1, "no inputs"
		if datatype != "" {
			d.Inputs = []declaredTensor{{Name: "x", Datatype: datatype, Shape: []int{-1, 3, -1}}}
			requests, inputs = maxVariants, "x "+datatype+" [1, 3, 1]"
		}
		m, err := d.model("m")
		if err != nil {
			t.Fatal(err)
		}
		for _, door := range doors {
			o := &benchOptions{door: door}
			b := &bench{cli: &cli{}, o: o, config: o.config("x")}
			if err := b.load(m); err != nil || len(b.config.Frames) != requests || b.inputs[0] != inputs {
				t.Errorf("%q over %s: %v, %d requests of %v", datatype, door.name, err, len(b.config.Frames), b.inputs)
			}
		}
	}
}

// The printed report, of results that are always the same.
func TestBenchReport(t *testing.T) {
	result := &load.Result{Offered: 500, Elapsed: 10 * time.Second, Answered: 4980, Lost: 2, Faults: []load.Fault{
		{Kind: shiva.Overloaded, Count: 17, First: "the queue\nis full"}, {Kind: shiva.ContainerLost, Count: 3, First: "it went away"}}}
	for i := range 4980 {
		d := time.Duration(i) * 10 * time.Microsecond
		result.Latency.Add(2*time.Millisecond + d*d/(20*time.Millisecond))
		result.Lag.Add(d / 500)
	}
	for range 20 {
		result.Refusal.Add(time.Millisecond)
	}
	late := *result
	late.Lag = load.Histogram{}
	late.Lag.Add(30 * time.Millisecond)
	streams := *result
	streams.Superseded, streams.PerStream = 1200,
		[]load.FramesOf{{Answered: 2500, Superseded: 590}, {Answered: 2480, Superseded: 610, Failed: 20}}
	closed := load.Result{Elapsed: time.Second}
	promise := load.Promise{Share: 0.99, Within: 50 * time.Millisecond}
	trials := []load.Trial{
		{Rate: 100, Length: 10 * time.Second, Requests: 1003, Kept: 1003, At: 12 * time.Millisecond,
			Lag: 60 * time.Microsecond},
		{Rate: 200, Length: 5 * time.Second, Requests: 1010, Kept: 300, At: 812 * time.Millisecond, Failed: 12,
			Lag: 90 * time.Microsecond},
		{Rate: 141.4, Length: 10 * time.Second, Requests: 1399, Kept: 1390, At: 48 * time.Millisecond,
			Lag: 80 * time.Microsecond, Last: true},
	}
	exp := &load.Think{Mean: 20 * time.Millisecond, Random: true}
	clients := load.Result{Elapsed: 10 * time.Second, Answered: 1400}
	for range 1400 {
		clients.Latency.Add(35 * time.Millisecond)
	}
	clientTrials := []load.Trial{
		{Clients: 8, Rate: 140, Length: 10 * time.Second, Requests: 1400, Kept: 1400, At: 40 * time.Millisecond,
			Last: true},
		{Clients: 16, Rate: 150, Length: 10 * time.Second, Requests: 1500, Kept: 30, At: 90 * time.Millisecond},
	}
	for _, tt := range []struct {
		name, locale string
		o            benchOptions
		r            *load.Result
		change       func(b *bench)
		clients      *load.Result
	}{
		{"open", "C", benchOptions{rate: 500}, result, nil, nil},
		{"open-utf8", "de_DE.UTF-8", benchOptions{rate: 500}, result, nil, nil},
		{"late", "C", benchOptions{rate: 500}, &late, nil, nil},
		{"streams", "C", benchOptions{streams: 2, fps: 25, keep: "latest"}, &streams, nil, nil},
		{"closed", "C", benchOptions{conns: 1, inFlight: 4}, &closed, nil, nil},
		{"interrupted", "C", benchOptions{rate: 500}, result, func(b *bench) { b.report.Ended = interrupted }, nil},
		{"search", "C", benchOptions{search: &promise}, result,
			func(b *bench) { b.report.searched(promise, 141.4, trials) }, nil},
		{"search-none", "C", benchOptions{search: &promise}, &closed,
			func(b *bench) { b.report.searched(promise, 0, trials[1:2]) }, nil},
		{"clients", "C", benchOptions{clients: 8, think: exp}, &closed, nil, nil},
		{"beside", "C", benchOptions{rate: 500, clients: 8, think: exp}, result, nil, &clients},
		{"search-clients", "C", benchOptions{search: &promise, think: exp}, &clients, func(b *bench) {
			b.report.searched(promise, 140, clientTrials)
			b.report.Search.Clients = 8
		}, nil},
		{"search-no-clients", "C", benchOptions{search: &promise, think: &load.Think{}}, &closed,
			func(b *bench) { b.report.searched(promise, 0, clientTrials[1:2]) }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("LC_ALL", tt.locale)
			var out bytes.Buffer
			tt.o.length, tt.o.door = 10*time.Second, doors[0]
			b := &bench{cli: &cli{stdout: &out}, o: &tt.o, config: tt.o.config("ADDR"), inputs: []string{"image UINT8 [1, 8, 8]"},
				report: benchReport{Route: "digits", Door: "tcp", Address: "ADDR"}}
			if tt.change != nil {
				tt.change(b)
			}
			b.report.take(tt.r)
			if tt.clients != nil {
				b.beside = &load.Config{}
				b.report.Clients = &clientsReport{Number: tt.o.clients}
				b.report.Clients.take(tt.clients)
			}
			b.print(tt.r, tt.clients)
			file := filepath.Join("testdata/golden", "report-"+tt.name+".txt")
			if *update {
				write(t, file, out.String())
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if out.String() != string(want) {
				t.Errorf("got\n%s\nwant\n%s", out.String(), want)
			}
		})
	}
}

func TestLiveText(t *testing.T) {
	var m load.Moment
	for range 100 {
		m.Latency.Add(4 * time.Millisecond)
	}
	c := load.Config{Rate: 500, Duration: 10 * time.Second}
	if got, want := liveText(c, 3*time.Second, m),
		"3 of 10 s, 500/s: 100 answers, p50 4.00 ms, p99 4.00 ms"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	m.Failed, m.Superseded = 2, 7
	if got, want := liveText(c, 11*time.Second, m),
		"waiting for the last answers, 500/s: 100 answers, p50 4.00 ms, p99 4.00 ms, 7 superseded, 2 failed"; got !=
		want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestSpan(t *testing.T) {
	if got := span("%d", 60, 61) + ", " + span("%d", 60, 60) + ", " + span("%.1f", 49.96, 50.04); got != "60 to 61, 60, 50.0" {
		t.Error(got)
	}
}
