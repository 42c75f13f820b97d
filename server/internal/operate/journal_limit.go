package operate

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// LogLinesASecond is how many lines of one kind a limited logger passes in a second.
const LogLinesASecond = 10

// mostKinds bounds the kinds that are told apart in a second. Lines of further kinds count as one.
const mostKinds = 100

// LimitLog returns a handler for lines that a peer can cause, by whatever it does: of level info
// and above it passes at most [LogLinesASecond] of a kind, and one line at the end of the second
// says how many more there were. A kind is a message, which is therefore constant, with the values
// of the attributes whose keys are given. The operator, not a peer, chooses these values. All
// loggers derived from the handler share its counts.
func LimitLog(next slog.Handler, by ...string) slog.Handler {
	return &limitedHandler{next: next, logCounts: &logCounts{next: next, by: by, kinds: map[string]int{}}}
}

// A limitedHandler is the handler of a logger, or of one derived from it with more attributes.
type limitedHandler struct {
	next slog.Handler
	*logCounts
	with string // values of its own attributes that tell kinds apart
}

// logCounts has the lines of a limited logger in the current second.
type logCounts struct {
	next slog.Handler // without the attributes of derived loggers
	by   []string

	mu      sync.Mutex
	second  time.Time // its start
	kinds   map[string]int
	dropped int
	example string // message of the last dropped line
	timer   *time.Timer
}

func (h *limitedHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h *limitedHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		kind := r.Message + h.with
		r.Attrs(func(a slog.Attr) bool {
			kind += h.part(a)
			return true
		})
		if !h.allow(kind, r.Message) {
			return nil
		}
	}
	return h.next.Handle(ctx, r)
}

func (h *limitedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := *h
	more.next = h.next.WithAttrs(attrs)
	for _, a := range attrs {
		more.with += h.part(a)
	}
	return &more
}

func (h *limitedHandler) WithGroup(name string) slog.Handler {
	more := *h
	more.next = h.next.WithGroup(name)
	return &more
}

// part returns what an attribute adds to the kind of its line.
func (c *logCounts) part(a slog.Attr) string {
	if slices.Contains(c.by, a.Key) {
		return "\x00" + a.Value.String()
	}
	return ""
}

// allow counts a line, and reports whether it passes.
func (c *logCounts) allow(kind, message string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if now.Sub(c.second) >= time.Second {
		c.second = now
		clear(c.kinds)
	}
	if _, known := c.kinds[kind]; !known && len(c.kinds) >= mostKinds {
		kind = ""
	}
	if c.kinds[kind] < LogLinesASecond {
		c.kinds[kind]++
		return true
	}
	c.dropped++
	c.example = message
	if c.timer == nil {
		c.timer = time.AfterFunc(c.second.Add(time.Second).Sub(now), c.tell)
	}
	return false
}

// tell logs how many lines were dropped.
func (c *logCounts) tell() {
	c.mu.Lock()
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines were dropped, since there are too many of a kind", 0)
	r.AddAttrs(slog.Int("lines", c.dropped), slog.String("such_as", c.example))
	c.dropped, c.timer = 0, nil
	c.mu.Unlock()
	_ = c.next.Handle(context.Background(), r)
}
