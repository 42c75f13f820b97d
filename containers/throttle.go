package containers

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// A throttle bounds the log lines that short-lived connections can cause. Each second the first
// lines about every subject pass, up to a total for all subjects. One line at the end of the
// second counts the dropped ones. So the first of a thousand deaths is logged, and they do not
// hide the lines about other containers.
type throttle struct {
	// Set once.
	log   *slog.Logger
	each  int // lines about one subject in a second
	total int // about all subjects

	mu     sync.Mutex
	second time.Time      // start of the current second
	passed map[string]int // lines by subject; at most total entries
	all    int            // sum of passed
	held   uint64
	most   map[string]uint64 // dropped lines by subject, for the subjects in passed
	timer  *time.Timer       // runs while held is not 0
}

const (
	linesPerModel   = 20
	linesOfModels   = 100
	linesOfUnknowns = 10
)

func newThrottle(log *slog.Logger, each, total int) *throttle {
	return &throttle{log: log, each: each, total: total, passed: make(map[string]int), most: make(map[string]uint64)}
}

// write logs a line about a subject, or counts it. It may be called from any goroutine.
func (q *throttle) write(about string, level slog.Level, text string, args ...any) {
	if q.allow(about, time.Now()) {
		q.log.Log(context.Background(), level, text, args...)
	}
}

func (q *throttle) allow(about string, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now.Sub(q.second) >= time.Second {
		q.second, q.all = now, 0
		clear(q.passed)
	}
	n := q.passed[about]
	if n < q.each && q.all < q.total {
		q.passed[about] = n + 1
		q.all++
		return true
	}
	q.held++
	if n > 0 {
		q.most[about]++
	}
	if q.timer == nil {
		q.timer = time.AfterFunc(q.second.Add(time.Second).Sub(now), q.tell)
	}
	return false
}

// tell logs how many lines were dropped since the last call, if any.
func (q *throttle) tell() {
	q.mu.Lock()
	held, about, most := q.held, "", uint64(0)
	for subject, n := range q.most {
		if n > most {
			about, most = subject, n
		}
	}
	q.held = 0
	clear(q.most)
	if q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
	q.mu.Unlock()
	if held > 0 {
		q.log.Warn("log lines about containers were dropped", "lines", held, "most_about", about, "of_them", most)
	}
}
