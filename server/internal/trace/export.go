package trace

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The queue of spans, and how it is emptied.
const (
	queueSpans  = 8192                   // that wait, some MiB; more are dropped
	batchSpans  = 512                    // of one request to the collector
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
		endpoint: endpoint, shown: shown(endpoint), log: c.Log, wake: make(chan struct{}, 1), done: make(chan struct{}),
		client:  &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConns: 1, IdleConnTimeout: time.Minute}},
		encoder: newEncoder(word("service.name", "shivad"), word("service.version", c.Version)),
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	t := &Tracer{exporter: e}
	t.Follow(c.OneIn)
	return t
}

// A span is a stretch of a request's way.
type span struct {
	trace      [16]byte
	state      string // of the trace
	id, parent [8]byte
	name       string
	kind       kind
	start, end time.Time
	attributes []attribute
	links      []Context
	fault      string // why it failed; "": it did not
}

// A kind is what a span is to the one at its other side, as OTLP counts.
type kind int32

const (
	kindInternal kind = iota + 1
	kindServer
	kindClient
)

// An exporter sends spans to a collector, from a goroutine of its own.
type exporter struct {
	// Set once.
	endpoint string
	shown    string // without a password
	log      *slog.Logger
	client   *http.Client
	wake     chan struct{} // a batch is full
	ctx      context.Context
	cancel   context.CancelFunc
	done     chan struct{}

	exported, dropped atomic.Uint64

	encoder *encoder  // run's, and then close's
	started sync.Once // by the first span

	mu    sync.Mutex
	queue []span
}

// add queues spans, all of them or none.
func (e *exporter) add(spans []span) {
	e.mu.Lock()
	full := len(e.queue)+len(spans) > queueSpans || e.ctx.Err() != nil
	if !full {
		e.queue = append(e.queue, spans...)
	}
	ready := len(e.queue) >= batchSpans
	e.mu.Unlock()
	e.started.Do(func() { go e.run() }) // until close
	if full {
		e.dropped.Add(uint64(len(spans)))
		return
	}
	if ready {
		select {
		case e.wake <- struct{}{}:
		default: // it knows
		}
	}
}

// take returns the first spans of the queue.
func (e *exporter) take() []span {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := min(len(e.queue), batchSpans)
	batch := append([]span(nil), e.queue[:n]...)
	left := copy(e.queue, e.queue[n:])
	clear(e.queue[left:])
	e.queue = e.queue[:left]
	return batch
}

// run sends what is queued: a full batch at once, what is left after a pause. While the collector
// is away it tries the same batch again, less and less often.
func (e *exporter) run() {
	defer close(e.done)
	away := false
	for e.ctx.Err() == nil {
		e.sleep(pause, e.wake)
		for batch := e.take(); len(batch) > 0; batch = e.take() {
			retry, err := e.send(e.ctx, batch, sendTimeout)
			for again := shortest; retry && e.ctx.Err() == nil; again = min(2*again, longest) {
				e.notice(&away, err)
				e.sleep(again, nil)
				retry, err = e.send(e.ctx, batch, sendTimeout)
			}
			if e.ctx.Err() != nil {
				if retry {
					e.back(batch)
				}
				return
			}
			e.notice(&away, err)
		}
	}
}

// notice logs that the collector is away, or back, once.
func (e *exporter) notice(away *bool, err error) {
	switch {
	case err != nil && !*away:
		e.log.Warn("the collector of traces does not take spans; those that the queue has no room for are dropped and counted, and requests are served as ever",
			"endpoint", e.shown, "error", err, "queue", queueSpans, "metric", "shivad_trace_spans_dropped_total")
	case err == nil && *away:
		e.log.Info("the collector of traces takes spans again", "endpoint", e.shown)
	}
	*away = err != nil
}

// back puts a batch that was not sent to the front of the queue again.
func (e *exporter) back(batch []span) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue = append(batch, e.queue...)
}

// send sends a batch. retry says whether a later try may do better than one that failed; the spans
// are then not counted yet.
func (e *exporter) send(ctx context.Context, batch []span, limit time.Duration) (retry bool, err error) {
	defer func() {
		switch {
		case err == nil:
			e.exported.Add(uint64(len(batch)))
		case !retry:
			e.dropped.Add(uint64(len(batch)))
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.endpoint, bytes.NewReader(e.encoder.request(batch)))
	if err != nil {
		return false, err
	}
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

// sleep waits for a time, or until wake, if that is not nil.
func (e *exporter) sleep(d time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-e.ctx.Done():
	}
}

// close stops the goroutine, and sends what is left once.
func (e *exporter) close() {
	e.started.Do(func() { close(e.done) })
	e.cancel()
	<-e.done
	ctx, cancel := context.WithTimeout(context.Background(), lastTimeout)
	defer cancel()
	for batch := e.take(); len(batch) > 0; batch = e.take() {
		if retry, _ := e.send(ctx, batch, lastTimeout); retry {
			e.dropped.Add(uint64(len(batch)))
		}
	}
	e.client.CloseIdleConnections()
}
