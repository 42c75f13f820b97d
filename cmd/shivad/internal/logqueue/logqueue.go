// Package logqueue writes a log without letting its reader hold up those who log.
//
// A log ends in a pipe, a terminal or a disk of somebody else: docker, a stopped journald, a
// terminal after Ctrl-S, a full volume. A write there may wait for ever, and event loops and
// shutdowns log. So lines enter a bounded [Queue], and one goroutine writes them. Lines that find
// the queue full, or that cannot be written, are lost and counted.
package logqueue

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// mostBytes bounds the lines that wait, and those that are being written: each may be as many.
const mostBytes = 1 << 20

// keptBytes is the size of a buffer that is used again; larger ones are given up.
const keptBytes = 64 << 10

// A Queue is an [io.Writer] for log handlers such as slog's, which write a line with each call.
// Make one with New. It may be used from any goroutine.
type Queue struct {
	w io.Writer

	mu      sync.Mutex
	filled  *sync.Cond // waiting is no longer empty, or closed is set
	waiting []byte     // whole lines
	lost    uint64     // lines, since New
	told    uint64     // of them, reported
	tell    func(lost uint64)
	closed  bool
	done    chan struct{} // closed when everything has been written after Close
}

// New makes a queue, whose goroutine is the only one that writes to w. Close ends it.
func New(w io.Writer) *Queue {
	q := &Queue{w: w, tell: func(uint64) {}, done: make(chan struct{})}
	q.filled = sync.NewCond(&q.mu)
	go q.run() // ends after Close, or with the process if a write never returns
	return q
}

// Recovered sets a function that is called when lines can be written again after some were lost,
// with their number. It may log, also to this queue.
func (q *Queue) Recovered(tell func(lost uint64)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tell = tell
}

// Write appends a line to the queue, or loses it. It never waits for the reader of the log, and
// never fails: a log is no reason to end anything.
func (q *Queue) Write(line []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.waiting)+len(line) > mostBytes {
		q.lost += lines(line)
		return len(line), nil
	}
	q.waiting = append(q.waiting, line...)
	q.filled.Signal()
	return len(line), nil
}

// Lost returns how many lines have been lost.
func (q *Queue) Lost() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lost
}

// Close writes what waits, for at most the given time. Later lines are lost.
func (q *Queue) Close(patience time.Duration) {
	q.mu.Lock()
	q.closed = true
	q.filled.Signal()
	q.mu.Unlock()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-q.done:
	case <-late.C:
	}
}

// run writes until the queue is closed and empty.
func (q *Queue) run() {
	defer close(q.done)
	var spare []byte
	torn := false // the last write ended inside a line
	for {
		batch, ok := q.take(spare)
		if !ok {
			return
		}
		var n int
		var err error
		if torn {
			_, err = q.w.Write([]byte("\n"))
		}
		if err == nil {
			n, err = q.w.Write(batch)
			torn = n > 0 && batch[n-1] != '\n'
		}
		q.written(lines(batch[n:]), err)
		if spare = batch[:0]; cap(spare) > keptBytes {
			spare = nil
		}
	}
}

// take waits for lines and returns all of them; false after Close, when there are none. It leaves
// an empty buffer for the next ones.
func (q *Queue) take(spare []byte) (batch []byte, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) == 0 && !q.closed {
		q.filled.Wait()
	}
	batch, q.waiting = q.waiting, spare
	return batch, len(batch) > 0
}

// written counts the lines of a batch that were lost with an error. After a success it reports
// those that were lost before.
func (q *Queue) written(lost uint64, err error) {
	q.mu.Lock()
	q.lost += lost
	var news uint64
	if err == nil {
		news, q.told = q.lost-q.told, q.lost
	}
	tell := q.tell
	q.mu.Unlock()
	if news > 0 {
		tell(news)
	}
}

// lines counts the lines in a text, of which the last may lack its end.
func lines(text []byte) uint64 {
	n := bytes.Count(text, []byte("\n"))
	if len(text) > 0 && text[len(text)-1] != '\n' {
		n++
	}
	return uint64(n)
}
