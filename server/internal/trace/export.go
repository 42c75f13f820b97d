package trace

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/server/internal/wake"
)

// The queue of spans, and how it is emptied.
const (
	queueSpans  = 8192                   // that wait or are being sent, some MiB; more are dropped
	pageSpans   = 2048                   // of one request to the collector, or few more
	pageBytes   = 1 << 20                // or about so many
	pause       = 200 * time.Millisecond // before those that do not fill one
	shortest    = time.Second
	longest     = 30 * time.Second // between two tries while the collector is away
	sendTimeout = 10 * time.Second
	lastTimeout = 2 * time.Second // of what is sent when the server stops
)

// Config of a Tracer.
type Config struct {
	// Endpoint is the URL of a collector's OTLP/HTTP, as the function Endpoint takes it.
	Endpoint string
	OneIn    int    // of how many requests without a parent one is followed; 0: none is
	Version  string // of the server
	Log      *slog.Logger
}

// Endpoint is where spans are sent for a collector at that URL: /v1/traces is added to one without
// a path. Not ok: it is no such URL.
func Endpoint(text string) (endpoint string, ok bool) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", false
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/v1/traces"
	}
	return u.String(), true
}

// shown is a valid URL without its password.
func shown(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Redacted()
}

// New makes a Tracer, which is to be closed.
func New(c Config) *Tracer {
	endpoint, _ := Endpoint(c.Endpoint)
	e := &exporter{
		endpoint: endpoint, shown: shown(endpoint), log: c.Log, head: newHead(c.Version),
		client: &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1, IdleConnTimeout: time.Minute}},
		some:   make(chan struct{}, 1), full: make(chan struct{}, 1), done: make(chan struct{}),
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	t := &Tracer{exporter: e}
	t.Follow(c.OneIn)
	return t
}

// An exporter sends spans to a collector, from a goroutine of its own.
type exporter struct {
	// Set once.
	endpoint string
	shown    string // without a password
	log      *slog.Logger
	head     head
	client   *http.Client
	some     chan struct{} // the queue is no longer empty
	full     chan struct{} // it has as many spans as a page
	ctx      context.Context
	cancel   context.CancelFunc
	done     chan struct{} // run has ended

	exported, dropped atomic.Uint64

	// Of run, and of close after it.
	taken []record // from the queue, and not yet on the page
	page  page
	away  bool // the collector is, as the log has it

	mu      sync.Mutex
	running bool     // run was started, by the first span, or never will be
	waiting int      // spans that are neither exported nor dropped
	fresh   int      // those of them that are in the queue
	queue   []record // that run has not taken
}

// add queues a copy of what is told of a request, or only of a model that was late for it; nil:
// none. It is dropped if the queue is full.
func (e *exporter) add(r *request, late bool, model *told, more []*told) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue = append(e.queue, record{late: late, more: more})
	one := &e.queue[len(e.queue)-1]
	one.request = *r
	if model != nil {
		one.model = *model
	}
	spans := one.spans()
	if e.waiting+spans > queueSpans || e.ctx.Err() != nil {
		*one = record{}
		e.queue = e.queue[:len(e.queue)-1]
		e.dropped.Add(uint64(spans))
		return
	}
	before := e.fresh
	e.waiting += spans
	e.fresh += spans
	switch {
	case !e.running:
		e.running = true
		go e.run() // until close
	case before == 0:
		wake.Up(e.some)
	case before < pageSpans && e.fresh >= pageSpans:
		wake.Up(e.full)
	}
}

// take takes what is queued.
func (e *exporter) take() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.taken, e.queue = e.queue, e.taken[:0]
	e.fresh = 0
}

// fill writes what was taken to the page, unless it is full, and reports whether it has any spans.
func (e *exporter) fill() bool {
	if e.page.bytes == nil || cap(e.page.bytes) > 2*pageBytes && e.page.spans == 0 {
		e.page.bytes = make([]byte, e.head.room)
	}
	n := 0
	for ; n < len(e.taken) && e.page.spans < pageSpans && len(e.page.bytes) < pageBytes; n++ {
		e.taken[n].write(&e.page)
	}
	e.taken = slices.Delete(e.taken, 0, n)
	return e.page.spans > 0
}

// settle counts the spans of the page and empties it.
func (e *exporter) settle(as *atomic.Uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	as.Add(uint64(e.page.spans))
	e.waiting -= e.page.spans
	e.page.spans, e.page.bytes = 0, e.page.bytes[:e.head.room]
}

// run sends what is queued: at once if that is a page, and else after a pause. It does not go on
// with the spans that come while it sends: there are always some at a high rate, and one request to
// the collector for a few of them costs as much as one for two thousand.
func (e *exporter) run() {
	defer close(e.done)
	for e.ctx.Err() == nil {
		select {
		case <-time.After(pause):
		case <-e.full:
		case <-e.ctx.Done():
		}
		e.take()
		if len(e.taken) == 0 {
			select {
			case <-e.some:
			case <-e.ctx.Done():
			}
		}
		for e.ctx.Err() == nil && e.fill() {
			e.deliver()
		}
	}
}

// deliver sends the page. While the collector is away it tries again, less and less often.
func (e *exporter) deliver() {
	retry, err := e.send(e.ctx, sendTimeout)
	for again := shortest; retry && e.ctx.Err() == nil; again = min(2*again, longest) {
		e.notice(err)
		wake.After(again, e.ctx.Done())
		retry, err = e.send(e.ctx, sendTimeout)
	}
	if !retry {
		e.notice(err)
	}
}

// notice logs that the collector is away, or back, once.
func (e *exporter) notice(err error) {
	switch {
	case err != nil && !e.away:
		e.log.Warn("the collector of traces does not take spans; those that the queue has no room for are dropped and counted, and requests are served as ever",
			"endpoint", e.shown, "error", err, "queue", queueSpans, "metric", "shivad_trace_spans_dropped_total")
	case err == nil && e.away:
		e.log.Info("the collector of traces takes spans again", "endpoint", e.shown)
	}
	e.away = err != nil
}

// send sends the page. retry says whether a later try may do better than one that failed; otherwise
// the page is settled.
func (e *exporter) send(ctx context.Context, limit time.Duration) (retry bool, err error) {
	b := &body{bytes: e.head.request(&e.page)}
	retry, err = e.post(ctx, b, limit)
	b.withdraw()
	switch {
	case err == nil:
		e.settle(&e.exported)
	case !retry:
		e.settle(&e.dropped)
	}
	return retry, err
}

func (e *exporter) post(ctx context.Context, b *body, limit time.Duration) (retry bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.endpoint, b.reader())
	if err != nil {
		return false, err
	}
	r.ContentLength = int64(len(b.bytes))
	r.GetBody = func() (io.ReadCloser, error) { return b.reader(), nil }
	r.Header.Set("Content-Type", "application/x-protobuf")
	resp, err := e.client.Do(r)
	if err != nil {
		return true, err
	}
	defer resp.Body.Close()
	// A body that has been read to its end leaves the connection for the next request.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	switch resp.StatusCode {
	case http.StatusOK:
		return false, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true, fmt.Errorf("it answers %s", resp.Status)
	}
	return false, fmt.Errorf("it answers %s", resp.Status)
}

// close stops the goroutine, and sends what is left once.
func (e *exporter) close() {
	e.mu.Lock()
	running := e.running
	e.running = true
	e.mu.Unlock()
	e.cancel()
	if running {
		<-e.done
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastTimeout)
	defer cancel()
	for more := true; more; {
		for e.fill() {
			if retry, _ := e.send(ctx, lastTimeout); retry {
				e.settle(&e.dropped)
			}
		}
		e.take()
		more = len(e.taken) > 0
	}
	e.client.CloseIdleConnections()
}

// A body is what an HTTP client sends. One that has given up, or has an answer, may still read it:
// until it is withdrawn. After that its memory may change.
type body struct {
	mu    sync.Mutex
	bytes []byte // nil: withdrawn
}

func (b *body) withdraw() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes = nil
}

func (b *body) reader() io.ReadCloser { return io.NopCloser(&bodyReader{of: b}) }

// A bodyReader reads a body from its beginning.
type bodyReader struct {
	of *body
	at int
}

func (r *bodyReader) Read(to []byte) (n int, err error) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if n = copy(to, r.of.bytes[min(r.at, len(r.of.bytes)):]); n == 0 && len(to) > 0 {
		return 0, io.EOF // with less than the length that was promised, an error of the request
	}
	r.at += n
	return n, nil
}
