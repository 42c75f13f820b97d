package rest

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// packed returns a text under a content coding; "bare" is deflate without the frame of zlib. Under
// the race detector, slower levels take a second for a few megabytes.
func packed(t testing.TB, coding, text string) string {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	switch coding {
	case "gzip":
		w, _ = gzip.NewWriterLevel(&b, gzip.BestSpeed)
	case "deflate":
		w, _ = zlib.NewWriterLevel(&b, zlib.BestSpeed)
	case "bare":
		w, _ = flate.NewWriter(&b, flate.BestSpeed)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func unpacked(t testing.TB, coding string, b []byte) string {
	t.Helper()
	var r io.Reader = bytes.NewReader(b)
	var err error
	switch coding {
	case "gzip":
		r, err = gzip.NewReader(r)
	case "deflate":
		r, err = zlib.NewReader(r)
	}
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(all)
}

func TestContentCodings(t *testing.T) {
	r := newRig(t, nil)
	r.floats("m")
	for range 2 { // the second time with unpackers that the first one left in the pools
		for coding, header := range map[string]string{"gzip": "gzip", "deflate": "deflate", "bare": "deflate"} {
			if a := r.ask("POST", inferM, packed(t, coding, fp32(2, "")),
				"Content-Encoding: "+header); a.status != 200 || string(a.body) != echoed(2, "") ||
				a.header.Get("Content-Encoding") != "" {
				t.Errorf("%s: %v", coding, a)
			}
			// The length of the head is that of the plain text; all of it is compressed.
			head := `{"inputs":[{"name":"input0","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}],"parameters":{"binary_data_output":true}}`
			data := memory([]float32{1, 2, 3, 4.5})
			a := r.ask("POST", inferM, packed(t, coding, head+data), "Content-Encoding: "+header,
				"Accept-Encoding: "+header, "Inference-Header-Content-Length: "+strconv.Itoa(len(head)))
			if a.status != 200 || a.header.Get("Content-Encoding") != header {
				t.Fatalf("%s: %v %v", coding, a, a.header)
			}
			plain := unpacked(t, header, a.body)
			if n, _ := strconv.Atoi(a.header.Get("Inference-Header-Content-Length")); plain[n:] != data ||
				!strings.HasSuffix(plain[:n], "]}") {
				t.Errorf("%s: %q after %d", coding, plain, n)
			}
		}
	}
	for accept, want := range map[string]string{
		"": "", "identity": "", "*": "", "br": "", "gzip": "gzip", "deflate": "deflate", "deflate, gzip": "gzip",
		"GZIP;q=0.5, deflate;q=0.8": "deflate",
		"gzip;q=0":                  "", "gzip; q=0.0, deflate": "deflate", "gzip;q=x": "", "br;q=1, gzip;q=0.1": "gzip",
	} {
		a := r.ask("POST", inferM, fp32(2, ""), "Accept-Encoding: "+accept)
		if got := a.header.Get("Content-Encoding"); got != want ||
			strings.TrimSpace(unpacked(t, got, a.body)) != echoed(2, "") {
			t.Errorf("Accept-Encoding %q: %q", accept, got)
		}
		if a := r.ask("POST", inferM, "{", "Accept-Encoding: "+accept); a.header.Get("Content-Encoding") != "" {
			t.Errorf("an error came packed: %v", a)
		}
	}
	good := packed(t, "gzip", fp32(1, ""))
	for name, c := range map[string]struct {
		body, coding string
		status       int
		words        string
	}{
		"cut":           {good[:len(good)-5], "gzip", 400, "does not match its Content-Encoding"},
		"no gzip":       {fp32(1, ""), "gzip", 400, "does not match its Content-Encoding"},
		"no deflate":    {fp32(1, ""), "deflate", 400, "does not match its Content-Encoding"},
		"empty":         {"", "gzip", 400, "does not match its Content-Encoding"},
		"wrong sum":     {good[:len(good)-8] + "\x00\x00\x00\x00" + good[len(good)-4:], "gzip", 400, "checksum"},
		"more after it": {packed(t, "deflate", fp32(1, "")) + "x", "deflate", 400, "after the end of its compressed data"},
		"unknown":       {fp32(1, ""), "br", 415, `Content-Encoding "br"; expected gzip, deflate or none`},
		"two":           {good, "gzip, gzip", 415, "gzip, gzip"},
	} {
		t.Run(name, func(t *testing.T) {
			r.refused(r.ask("POST", inferM, c.body, "Content-Encoding: "+c.coding), c.status, c.words)
		})
	}
	if a := r.ask("POST", inferM, fp32(1, ""), "Content-Encoding: identity"); a.status != 200 {
		t.Errorf("identity: %v", a)
	}
}

// heap returns the size of the live heap.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A body that unpacks to more than the limit is refused at the limit.
func TestBombs(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.MessageBytes = 1 << 20 })
	r.floats("m")
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	zeros := make([]byte, 1<<20)
	for range 32 {
		if _, err := w.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	before := heap()
	for range 20 {
		r.refused(r.ask("POST", inferM, b.String(), "Content-Encoding: gzip"), 413, "limits.message_bytes is 1048576")
	}
	if grown := heap() - before; grown > 16<<20 {
		t.Errorf("20 bombs of 32 MiB left %d bytes on the heap", grown)
	}
	// Very many members, all of them empty.
	empty := strings.Repeat(packed(t, "gzip", ""), 60_000)
	r.refused(r.ask("POST", inferM, empty, "Content-Encoding: gzip"), 413, "limits.message_bytes is 1048576")
	// And plain bodies that are too long, with and without an announced length.
	r.refused(r.ask("POST", inferM, string(zeros)+"x"), 413, "the body has 1048577 bytes, limits.message_bytes is 1048576")
	a, err := r.try("POST", inferM, io.MultiReader(bytes.NewReader(zeros), strings.NewReader("x")))
	if err != nil {
		t.Fatal(err)
	}
	r.refused(a, 413, "limits.message_bytes is 1048576")
	a, err = r.try("POST", inferM, io.MultiReader(strings.NewReader(fp32(1, ""))))
	if err != nil || a.status != 200 {
		t.Errorf("a chunked body: %v %v", a, err)
	}
}

// A client that announces much and sends little gets little memory.
func TestClaims(t *testing.T) {
	r := newRig(t, nil)
	r.floats("m")
	const size = 16 << 20
	head := fmt.Sprintf(`{"inputs":[{"name":"input0","datatype":"FP32","shape":[%d,4],"parameters":{"binary_data_size":%d}}]}`,
		(size-1024)/16, size-1024)
	var conns []net.Conn
	const clients = 40
	for i := range clients {
		switch i % 4 {
		case 0: // binary
			conns = append(conns,
				r.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n%sx",
					inferM, len(head)+size-1024, len(head), head)))
		case 1: // JSON
			conns = append(conns,
				r.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{", inferM, size)))
		case 2: // the head of a binary request
			conns = append(conns,
				r.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n{",
					inferM, size, size)))
		case 3: // no announced length
			conns = append(conns, r.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n100000\r\n{", inferM)))
		}
	}
	budgettest.Until(t, "all to have begun", func() bool { return r.Pool.InUse() >= clients*firstStage })
	if used := r.Pool.InUse(); used > clients*8*firstStage {
		t.Errorf("%d clients that sent a byte each hold %d bytes", clients, used)
	}
	for _, c := range conns {
		c.Close()
	}
	budgettest.Until(t, "the memory to come back", func() bool { return r.Pool.InUse() == 0 })
}

// A request beyond the memory budget is refused, and told to retry.
func TestMemoryBudget(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Memory.Pool = tensor.NewPool(256 << 10) })
	r.floats("m")
	big := fp32(20_000, "")
	r.refused(r.ask("POST", inferM, big), 429, "overloaded", "limits.payload_bytes")
	if a := r.ask("POST", inferM, fp32(1, "")); a.status != 200 {
		t.Errorf("afterwards: %v", a)
	}
	if n := r.Pool.InUse(); n != 0 {
		t.Errorf("%d bytes are out", n)
	}
}

// panics is a log handler that panics at warnings.
type panics struct{ slog.Handler }

func (p panics) Handle(ctx context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		panic("a bug")
	}
	return p.Handler.Handle(ctx, r)
}

// breaks is a body that panics after its first bytes.
type breaks struct{ io.Reader }

func (b breaks) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil {
		panic("a bug")
	}
	return n, nil
}
func (breaks) Close() error { return nil }

// A panic while a request is read costs its client a 500, and leaks no memory, wherever it happens:
// in the middle of a body, of an input's data, or after a complete input.
func TestPanicWhileReading(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Log = slog.New(panics{c.Log.Handler()})
		c.Limits.MetadataBytes = 1 << 20
	})
	r.floats("m")
	big := fp32(20_000, "") // long enough for a warning once it has been read
	two := strings.Replace(big, `"inputs":[`,
		`"inputs":[{"name":"first","datatype":"FP32","shape":[20,1000],"data":[`+strings.Repeat("1,", 19_999)+`1]},`, 1)
	head := `{"inputs":[{"name":"input0","datatype":"FP32","shape":[25000,4],"parameters":{"binary_data_size":400000}}]}`
	for name, c := range map[string]struct {
		body   string
		length int // length of the JSON before it; -1: JSON alone
	}{
		"body": {big[:len(big)/2], -1}, "unknown length": {big[:len(big)/2], -1}, "data": {big, -1}, "second input": {two, -1},
		"head": {head[:20], len(head)}, "binary": {head + strings.Repeat("x", 100_000), len(head)},
		"raw": {strings.Repeat("x", 100_000), 0},
	} {
		t.Run(name, func(t *testing.T) {
			q := httptest.NewRequest("POST", inferM, breaks{strings.NewReader(c.body)})
			q.ContentLength = -1
			switch {
			case c.length >= 0:
				q.Header.Set(headLength, strconv.Itoa(c.length))
			case name != "unknown length":
				q.ContentLength = int64(len(c.body))
				if name == "body" {
					q.ContentLength++
				}
			}
			w := httptest.NewRecorder()
			func() {
				defer func() { _ = recover() }() // reading the rest of the body panics as well
				r.door.ServeHTTP(w, connected(q, r.door))
			}()
			if n := r.Pool.InUse(); n != 0 {
				t.Errorf("%d bytes of the pool are out\n%s", n, strings.Join(tensor.Outstanding(r.Pool), "\n"))
			}
			if !strings.Contains(r.Log.String(), "a bug") {
				t.Error("there was no panic")
			}
		})
	}
}

// A body that does not arrive is given up in time, and so is a head; no goroutine waits on.
func TestSlowClients(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.MessageTimeout, c.HeaderTimeout = 100*time.Millisecond, 100*time.Millisecond
	})
	r.floats("m")
	start := time.Now()
	body := r.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{", inferM))
	a := r.answerOn(body)
	r.refused(a, 408, "deadline exceeded: 1 byte of the message arrived in", "rest.message_timeout = 100ms")
	if _, err := body.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection goes on: %v", err)
	}
	head := r.raw("POST /v2/mod")
	if n, err := io.Copy(io.Discard, head); err != nil {
		t.Errorf("half a head: %d %v", n, err)
	}
	// A body that no handler reads is discarded within the same time.
	r.refused(r.answerOn(r.raw("POST /v2/models/x/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")), 404, `"x"`)
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("three timeouts of 100 ms took %v", took)
	}
	// After a slow body a connection works as before.
	c := r.raw("GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
	r.answerOn(c)
	// The connection ends after header_timeout.
	if n, err := io.Copy(io.Discard, r.raw("POST /v2/mod")); err != nil {
		t.Errorf("half a head: %d %v", n, err)
	}
	if _, err := io.WriteString(c, "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if a := r.answerOn(c); a.status != 200 {
		t.Errorf("after a pause between two requests: %v", a)
	}
}

// A client that goes on sending long after it was refused can still read why.
func TestRefusalWhileSending(t *testing.T) {
	r := newRig(t, nil)
	body := strings.Repeat("x", 8<<20)
	r.refused(r.ask("POST", "/v2/models/none/infer", body), 404, `"none"`)
	r.refused(r.ask("POST", "/nowhere", body), 404, "no such path")
}

// A client that disconnects while it sends gets no answer, and does no harm.
func TestClientGoneWhileSending(t *testing.T) {
	r := newRig(t, nil)
	r.floats("m")
	c := r.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{", inferM))
	budgettest.Until(t, "the body to begin", func() bool { return r.Pool.InUse() > 0 })
	c.Close()
	budgettest.Until(t, "the memory to come back", func() bool { return r.Pool.InUse() == 0 })
	budgettest.Until(t, "its count", func() bool { return r.Metrics.Unrouted().Totals().Failed.Count == 1 })
}

// wide declares rows of a megabyte.
var wide = spec(tensor.Spec{Name: "input0", DType: tensor.Uint8, Shape: tensor.Shape{-1, 1 << 20}})

// The connection of a client that does not read its answer is closed, and its memory returned.
func TestStalledReader(t *testing.T) {
	r := newRig(t, func(c *Config) { c.StallTimeout = 100 * time.Millisecond; c.Limits.MessageBytes = 64 << 20 })
	r.Model("m", wide, scheduler.WorkerFunc(r.Echo))
	const size = 32 << 20
	c := r.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nInference-Header-Content-Length: 0\r\n\r\n",
		inferM, size))
	if _, err := c.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the answer to begin", func() bool {
		return r.Metrics.Model("m", "1").Totals().Succeeded.Count == 1
	})
	budgettest.Until(t, "the answer to be given up", func() bool {
		return r.Pool.InUse() == 0 && r.Metrics.Door("rest").Connections() == 0
	})
	if n, err := io.Copy(io.Discard, c); n >= size || n == 0 {
		t.Errorf("read %d bytes of an answer that was given up: %v", n, err)
	}
}

// Above the limit of connections a client is told why, and the next one is accepted when one has
// closed.
func TestConnectionLimit(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Connections = 2 })
	inside := []net.Conn{r.raw("GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"), r.raw("GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")}
	for _, c := range inside {
		r.answerOn(c)
	}
	r.refused(r.answerOn(r.raw("GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")), 429, "rest.connections = 2")
	inside[0].Close()
	budgettest.Until(t, "a place", func() bool { return r.Metrics.Door("rest").Connections() == 1 })
	if a := r.answerOn(r.raw("GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")); a.status != 200 {
		t.Errorf("after one has left: %v", a)
	}
}

// One address cannot use up the door's connections, even with connections that are kept alive; and
// those end by themselves.
func TestConnectionsOfOneAddress(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Connections, c.ConnectionsPerAddress, c.Loopback, c.IdleTimeout = 100, 2, true, 300*time.Millisecond
	})
	const ask = "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
	for range 2 {
		r.answerOn(r.raw(ask))
	}
	r.refused(r.answerOn(r.raw(ask)), 429, "rest.connections_per_address = 2")
	other, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).
		Dial("tcp", r.door.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, _ = io.WriteString(other, ask)
	if a := r.answerOn(other); a.status != 200 {
		t.Errorf("from elsewhere: %v", a)
	}
	budgettest.Until(t, "the idle ones to be closed", func() bool { return r.Metrics.Door("rest").Connections() == 0 })
	if a := r.answerOn(r.raw(ask)); a.status != 200 {
		t.Errorf("after they have left: %v", a)
	}
}

// A drain answers the requests in progress, refuses new ones, and does not wait for bodies that are
// still arriving.
func TestDrain(t *testing.T) {
	r := newRig(t, nil)
	w := r.held("m")
	inside := make(chan answer, 1)
	go func() { inside <- r.ask("POST", inferM, fp32(1, "")) }()
	budgettest.Until(t, "the request inside", func() bool { return len(w.Pending()) == 1 })
	arriving := r.raw(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{", inferM))
	idle := r.raw("GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
	r.answerOn(idle)
	silent := r.raw("")
	budgettest.Until(t, "all connections", func() bool { return r.Metrics.Door("rest").Connections() == 4 })
	budgettest.Until(t, "the body to begin", func() bool { return r.Pool.InUse() > 64 })
	r.Gate.Drain()
	r.Unready = "no reason"
	const probe = "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
	open := r.raw(probe)
	if a := r.answerOn(open); a.status != 200 || a.header.Get("Connection") != "close" {
		t.Errorf("an answer while draining: %v %v", a, a.header)
	}
	if n, err := open.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("its connection stays: %d %v", n, err)
	}
	refused := r.ask("POST", inferM, fp32(1, ""))
	if r.refused(refused, 503, "draining"); refused.header.Get("Connection") != "close" {
		t.Errorf("a refusal while draining: %v", refused.header)
	}
	if err := w.Answer(); err != nil {
		t.Fatal(err)
	}
	if a := <-inside; a.status != 200 || a.header.Get("Connection") != "close" {
		t.Errorf("inside: %v", a)
	}
	start := time.Now()
	if err := r.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("the drain waited %v for a body or a request", took)
	}
	r.refused(r.answerOn(arriving), 503, "draining")
	for name, c := range map[string]net.Conn{"idle": idle, "silent": silent} {
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("the %s connection stays: %d %v", name, n, err)
		}
	}
}

// Requests one after the other on a persistent connection, also pipelined.
func TestKeepAlive(t *testing.T) {
	r := newRig(t, nil)
	r.floats("m")
	body := fp32(1, "")
	one := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", inferM, len(body), body)
	c := r.raw(strings.Repeat(one, 3) + strings.Replace(one, "Host: x", "Host: x\r\nConnection: close", 1))
	all, err := io.ReadAll(c)
	if err != nil || strings.Count(string(all), echoed(1, "")) != 4 {
		t.Errorf("%v: %s", err, all)
	}
}

// A body of 100 MiB is accepted, and 100-continue is answered when the body is wanted. Under the
// race detector, which has four bytes for each byte touched and never frees them, it has 16 MiB.
func TestLargeBody(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.MessageBytes = 256 << 20 })
	r.Model("m", wide, scheduler.WorkerFunc(r.Echo))
	size := 100 << 20
	if !budgettest.Whole() {
		size = 16 << 20
	}
	body := bytes.Repeat([]byte("0123456789"), size/10+1)[:size]
	a, err := r.try("POST", inferM, bytes.NewReader(body), "Inference-Header-Content-Length: 0", "Expect: 100-continue")
	if err != nil || a.status != 200 || !bytes.HasSuffix(a.body, body) {
		t.Errorf("%d bytes: %d %v", len(a.body), a.status, err)
	}
	// A refusal before the body saves sending it.
	rest := bytes.NewReader(body)
	r.client.Transport.(*http.Transport).ExpectContinueTimeout = time.Minute
	a, err = r.try("POST", "/v2/models/none/infer", rest, "Expect: 100-continue")
	if err != nil || a.status != 404 || rest.Len() != len(body) {
		t.Errorf("%v %v, %d bytes of the body were sent", a, err, len(body)-rest.Len())
	}
}
