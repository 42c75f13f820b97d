package containers

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"
)

// The output of supervised processes. Everything is read as fast as it comes, so that no process
// waits for the log. The status has the latest lines; the log has all of them up to a rate, since a
// process that writes without end would otherwise fill the disk and push out what others say.

const (
	lastLines      = 20      // lines of output in the status
	maxLineBytes   = 4 << 10 // longer lines are truncated
	linesOfProcess = 50      // in the log, in a second
)

// outputGrace is how long to wait for the output of a process that has ended: a child in another
// process group may hold the pipe open.
const outputGrace = time.Second

// An output reads one stream of a process's output into the log. (With a writer of os/exec, Wait
// would block until every process that inherited the stream has closed it.)
type output struct {
	in, out *os.File // ends of a pipe
	over    chan struct{}
}

func listenTo(p *process, stream string) (*output, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	e := &output{in: in, out: out, over: make(chan struct{})}
	go func() { // ends with the stream; joined by close
		defer close(e.over)
		l := &lines{p: p, stream: stream}
		_, _ = io.Copy(l, out)
		l.flush()
		p.output.tell()
	}()
	return e, nil
}

// wait waits for the end of the stream.
func (e *output) wait(until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-e.over:
	case <-timer.C:
	}
}

// close reads the rest of the stream.
func (e *output) close() {
	e.in.Close()
	_ = e.out.SetReadDeadline(time.Now().Add(outputGrace))
	<-e.over
	e.out.Close()
}

// lines is a writer that logs a process's output line by line.
type lines struct {
	p       *process
	stream  string
	partial []byte
	cut     bool // the rest of an overlong line is being dropped
	failure failure
}

// A failure is the report of an uncaught exception or a crash that a process is writing.
type failure int

const (
	noFailure failure = iota
	traceback         // of Python: it ends with the first line that is not indented
	crash             // of a runtime that ends the process: whatever follows belongs to it
)

// crashes are how runtimes begin their last words: Go's, and those of C++ and Rust.
var crashes = []string{"panic: ", "fatal error: ", "terminate called ", "thread '"}

// levelOf returns the level of a line of output: error for a traceback or the report of a crash,
// otherwise what the line says near its beginning, as the loggers of most languages write it.
func (l *lines) levelOf(text string) slog.Level {
	switch {
	case l.failure == crash:
		return slog.LevelError
	case strings.HasSuffix(text, "Traceback (most recent call last):"):
		l.failure = traceback
		return slog.LevelError
	case l.failure == traceback:
		if text != "" && text[0] != ' ' && text[0] != '\t' {
			l.failure = noFailure
		}
		return slog.LevelError
	case l.stream == "stderr" &&
		slices.ContainsFunc(crashes, func(begin string) bool { return strings.HasPrefix(text, begin) }):
		l.failure = crash
		return slog.LevelError
	}
	const where = 64 // bytes, after a time and the name of a process
	words := strings.FieldsFunc(text[:min(len(text), where)],
		func(r rune) bool { return r < 'A' || r > 'Z' && r < 'a' || r > 'z' })
	for _, word := range words {
		switch word {
		case "ERROR", "CRITICAL", "FATAL":
			return slog.LevelError
		case "WARNING", "WARN":
			return slog.LevelWarn
		case "INFO", "DEBUG":
			return slog.LevelInfo
		}
	}
	return slog.LevelInfo
}

// Write accepts any piece of output. It is called by one goroutine.
func (l *lines) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		end := bytes.IndexByte(b, '\n')
		piece := b
		if end >= 0 {
			piece = b[:end]
		}
		if room := maxLineBytes - len(l.partial); len(piece) > room {
			piece = piece[:room]
			l.cut = true
		}
		l.partial = append(l.partial, piece...)
		if end < 0 {
			break
		}
		l.flush()
		b = b[end+1:]
	}
	return n, nil
}

// flush logs the incomplete line.
func (l *lines) flush() {
	if len(l.partial) == 0 {
		return
	}
	text := strings.ToValidUTF8(strings.TrimRight(string(l.partial), "\r"), "\uFFFD")
	if l.cut {
		text += "..."
	}
	l.partial, l.cut = l.partial[:0], false
	l.p.mu.Lock()
	if len(l.p.lines) == lastLines {
		l.p.lines = slices.Delete(l.p.lines, 0, 1)
	}
	l.p.lines = append(l.p.lines, text)
	l.p.mu.Unlock()
	l.p.output.write(l.p.cmd.Name, l.levelOf(text), "container output", "stream", l.stream, "line", text)
}
