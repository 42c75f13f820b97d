package load

import (
	"sync"
	"time"
)

// tellEvery is the period at which a loop updates Live.
const tellEvery = 100 * time.Millisecond

// Live gathers the answers of a running load until the next Take, which any goroutine may call.
type Live struct {
	mu   sync.Mutex
	news Moment
}

// A Moment holds the answers of a piece of a run.
type Moment struct {
	Latency            Histogram // of good answers
	Failed, Superseded int64
}

// Take returns the answers since the last Take.
func (l *Live) Take() Moment {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.news
	l.news = Moment{}
	return m
}

// add merges and clears the answers that a loop has gathered.
func (l *Live) add(m *Moment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.news.Latency.Merge(&m.Latency)
	l.news.Failed += m.Failed
	l.news.Superseded += m.Superseded
	*m = Moment{}
}
