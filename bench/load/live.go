package load

import (
	"sync"
	"time"
)

// tellEvery is how often a loop tells Live.
const tellEvery = 100 * time.Millisecond

// Live has what happened since it was last looked at, while a run goes on. It may be looked at from
// any goroutine.
type Live struct {
	mu   sync.Mutex
	news Moment
}

// A Moment is a piece of a run.
type Moment struct {
	Latency            Histogram // of good answers
	Failed, Superseded int64
}

// Take returns what happened since the last Take.
func (l *Live) Take() Moment {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.news
	l.news = Moment{}
	return m
}

// add takes what a loop has gathered.
func (l *Live) add(m *Moment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.news.Latency.Merge(&m.Latency)
	l.news.Failed += m.Failed
	l.news.Superseded += m.Superseded
	*m = Moment{}
}
