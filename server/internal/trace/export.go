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
	"github.com/shivad/shivad/shiva/backoff"
)

// The limits of the queue of spans, and how it is emptied.
const (
	queueSpans  = 8192                   // waiting or being sent, some MiB; more are dropped
	pageSpans   = 2048                   // of one request to the collector, or a few more
	pageBytes   = 1 << 20                // or about this many
	pause       = 200 * time.Millisecond // before sending less than a page
	sendTimeout = 10 * time.Second
	lastTimeout = 2 * time.Second // for the spans left when the server stops
)

// attempts is the pace of tries while the collector is unreachable.
var attempts = backoff.Backoff{First: time.Second, Most: 30 * time.Second}

// Config configures a Tracer.
type Config struct {
	// Endpoint is the URL of a collector's OTLP/HTTP, in the form that the function Endpoint takes.
	Endpoint string
	OneIn    int    // one in so many requests without a parent is traced; 0: none
	Version  string // of the server
	Log      *slog.Logger
}

// Endpoint returns the URL that spans are sent to for a collector at that URL: it adds /v1/traces
// if there is no path. ok is false if the text is not such a URL.
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

// shown returns a valid URL without its password.
func redacted(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Redacted()
}

// New returns a Tracer. The caller must close it.
func New(c Config) *Tracer {
	endpoint, _ := Endpoint(c.Endpoint)
	e := &exporter{
		endpoint: endpoint, shownEndpoint: redacted(endpoint), log: c.Log, head: newHead(c.Version),
		client: &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1,
			IdleConnTimeout: time.Minute}},
		some: make(chan struct{}, 1), full: make(chan struct{}, 1), done: make(chan struct{}),
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	t := &Tracer{exporter: e}
	t.Sample(c.OneIn)
	return t
}

// An exporter sends spans to a collector, from its own goroutine.
type exporter struct {
	// Set once.
	endpoint      string
	shownEndpoint string // without a password
	log           *slog.Logger
	head          head
	client        *http.Client
	some          chan struct{} // the queue is no longer empty
	full          chan struct{} // the queue has as many spans as a page
	ctx           context.Context
	cancel        context.CancelFunc
	done          chan struct{} // run has ended

	exported, dropped atomic.Uint64

	// Owned by run, and by close after run has ended.
	records     []record // from the queue, not yet on the page
	page        page
	unreachable bool // the log says that the collector is unreachable

	mu      sync.Mutex
	running bool     // the first span has started run, or run will never start
	waiting int      // spans that are neither exported nor dropped
	fresh   int      // waiting spans that are in the queue
	queue   []record // run has not taken these yet
}

// add queues a copy of the record of a request, or with late only that of a model that answered
// after the end of the request; model may be nil. The copy is dropped if the queue is full.
func (e *exporter) add(r *request, late bool, model *modelPath, more []*modelPath) {
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
	e.records, e.queue = e.queue, e.records[:0]
	e.fresh = 0
}

// fill writes records to the page until it is full, and reports whether the page has any spans.
func (e *exporter) fill() bool {
	if e.page.bytes == nil || cap(e.page.bytes) > 2*pageBytes && e.page.spans == 0 {
		e.page.bytes = make([]byte, e.head.room)
	}
	n := 0
	for ; n < len(e.records) && e.page.spans < pageSpans && len(e.page.bytes) < pageBytes; n++ {
		e.records[n].write(&e.page)
	}
	e.records = slices.Delete(e.records, 0, n)
	return e.page.spans > 0
}

// endPage counts the spans of the page and empties the page.
func (e *exporter) endPage(as *atomic.Uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	as.Add(uint64(e.page.spans))
	e.waiting -= e.page.spans
	e.page.spans, e.page.bytes = 0, e.page.bytes[:e.head.room]
}

// run sends the queued spans: at once if they fill a page, else after a pause. Spans that arrive
// while it sends wait for the next round: at a high rate there are always some, and one request to
// the collector for a few spans costs as much as one for two thousand.
func (e *exporter) run() {
	defer close(e.done)
	for e.ctx.Err() == nil {
		select {
		case <-time.After(pause):
		case <-e.full:
		case <-e.ctx.Done():
		}
		e.take()
		if len(e.records) == 0 {
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

// deliver sends the page. While the collector is unreachable it tries again, less and less often.
func (e *exporter) deliver() {
	retry, err := e.send(e.ctx, sendTimeout)
	for failures := 1; retry && e.ctx.Err() == nil; failures++ {
		e.notice(err)
		backoff.Wait(attempts.After(failures), e.ctx.Done())
		retry, err = e.send(e.ctx, sendTimeout)
	}
	if !retry {
		e.notice(err)
	}
}

// notice logs once that the collector is unreachable, or reachable again.
func (e *exporter) notice(err error) {
	switch {
	case err != nil && !e.unreachable:
		e.log.Warn("the collector of traces does not accept spans; while the queue is full, further spans are dropped and counted; requests are not affected",
			"endpoint", e.shownEndpoint, "error", err, "queue", queueSpans, "metric", "shivad_trace_spans_dropped_total")
	case err == nil && e.unreachable:
		e.log.Info("the collector of traces accepts spans again", "endpoint", e.shownEndpoint)
	}
	e.unreachable = err != nil
}

// send sends the page. retry reports whether a later try may succeed; otherwise the page is
// settled.
func (e *exporter) send(ctx context.Context, limit time.Duration) (retry bool, err error) {
	b := &body{bytes: e.head.request(&e.page)}
	retry, err = e.post(ctx, b, limit)
	b.withdraw()
	switch {
	case err == nil:
		e.endPage(&e.exported)
	case !retry:
		e.endPage(&e.dropped)
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
	// Reading the body to its end keeps the connection for the next request.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	switch resp.StatusCode {
	case http.StatusOK:
		return false, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true, fmt.Errorf("the collector answered %s", resp.Status)
	}
	return false, fmt.Errorf("the collector answered %s", resp.Status)
}

// close stops the goroutine, and tries once to send the spans that are left.
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
				e.endPage(&e.dropped)
			}
		}
		e.take()
		more = len(e.records) > 0
	}
	e.client.CloseIdleConnections()
}

// A body is a request body for the HTTP client. A client that has given up, or has its answer, may
// still read it, until it is withdrawn. After that its memory may change.
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
		return 0, io.EOF // shorter than the declared length: fails the request
	}
	r.at += n
	return n, nil
}
