// Package journal keeps the last lines of the server's log, so that operators see at the admin
// door what happened without the file or the service that the log goes to.
//
// It keeps what is of level info or above, whatever level the log itself is set to: nothing of a
// single request is among that.
package journal

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/shivad/shivad/server/internal/audit"
)

// An Entry is one line of the log. Its texts are bounded, and have escapes for characters that
// are not printable: some of them are chosen by clients.
type Entry struct {
	// ID is above that of the entry before, of an earlier run of the server, too: microseconds
	// since 1970 when it was written, or the first number that is free after that.
	ID         int64       `json:"id"`
	At         time.Time   `json:"at"`
	Level      string      `json:"level"` // INFO, WARN, ERROR
	Message    string      `json:"message"`
	Attributes []Attribute `json:"attributes"` // in the order of the line
}

// An Attribute is a value of a line. Its key has those of its groups before it, with dots.
type Attribute struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Bounds of a journal, and of an entry, texts in bytes.
const (
	mostEntries    = 1000
	mostBytes      = 1 << 20
	mostText       = 2 << 10
	mostKey        = 256
	mostAttributes = 32
	entryBytes     = 150 // an entry without its texts
	attributeBytes = 32
)

// A Journal has the last entries. Make one with New; a nil Journal has none. It may be used from
// any goroutine.
type Journal struct {
	mu      sync.Mutex
	entries []kept // the oldest first
	bytes   int
	last    int64 // the ID of the newest
}

type kept struct {
	Entry
	level slog.Level
	size  int
}

// New makes an empty journal.
func New() *Journal { return &Journal{} }

// Handler is a handler of a log that keeps its lines in the journal and has next write them.
func (j *Journal) Handler(next slog.Handler) slog.Handler { return &handler{journal: j, next: next} }

// List returns the last entries, at most so many, of at least that level and with an ID above
// after, the oldest first.
func (j *Journal) List(most int, least slog.Level, after int64) []Entry {
	list := []Entry{}
	if j == nil {
		return list
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	from := len(j.entries)
	for n := 0; from > 0 && n < most && j.entries[from-1].ID > after; from-- {
		if j.entries[from-1].level >= least {
			n++
		}
	}
	for _, e := range j.entries[from:] {
		if e.level >= least {
			list = append(list, e.Entry)
		}
	}
	return list
}

func (j *Journal) add(e kept) {
	e.size = entryBytes + len(e.Message)
	for _, a := range e.Attributes {
		e.size += attributeBytes + len(a.Key) + len(a.Value)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	e.ID = max(e.At.UnixMicro(), j.last+1)
	j.last = e.ID
	j.entries = append(j.entries, e)
	j.bytes += e.size
	gone := 0
	for len(j.entries)-gone > mostEntries || j.bytes > mostBytes {
		j.bytes -= j.entries[gone].size
		j.entries[gone] = kept{}
		gone++
	}
	j.entries = j.entries[gone:] // append moves them to the beginning now and then
}

// A handler is one of a log, or of a part of it that has attributes of its own.
type handler struct {
	journal *Journal
	next    slog.Handler
	prefix  string // of keys: the groups that are open
	with    []Attribute
}

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || h.next.Enabled(ctx, level)
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		// Of what is appended, the next line would see the same place.
		attributes := h.with[:len(h.with):len(h.with)]
		r.Attrs(func(a slog.Attr) bool {
			attributes = flatten(attributes, h.prefix, a)
			return true
		})
		if attributes == nil {
			attributes = []Attribute{}
		}
		h.journal.add(kept{Entry: Entry{At: r.Time.UTC(), Level: r.Level.String(), Message: audit.Printable(r.Message, mostText), Attributes: attributes}, level: r.Level})
	}
	if !h.next.Enabled(ctx, r.Level) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := *h
	more.next = h.next.WithAttrs(attrs)
	more.with = h.with[:len(h.with):len(h.with)]
	for _, a := range attrs {
		more.with = flatten(more.with, h.prefix, a)
	}
	return &more
}

func (h *handler) WithGroup(name string) slog.Handler {
	more := *h
	more.next = h.next.WithGroup(name)
	if name != "" {
		more.prefix += name + "."
	}
	return &more
}

// flatten appends an attribute, or those of a group, as long as there is room.
func flatten(list []Attribute, prefix string, a slog.Attr) []Attribute {
	value := a.Value.Resolve()
	if value.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, member := range value.Group() {
			list = flatten(list, prefix, member)
		}
		return list
	}
	if a.Equal(slog.Attr{}) || len(list) >= mostAttributes {
		return list
	}
	return append(list, Attribute{audit.Printable(prefix+a.Key, mostKey), audit.Printable(value.String(), mostText)})
}
