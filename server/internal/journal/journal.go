// Package journal keeps the last lines of the server's log, so that operators can read them at the
// admin door without access to the file or service that the log goes to.
//
// It keeps level info and above, whatever level the log is set to; requests are never logged at
// those levels.
package journal

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/shivad/shivad/server/internal/access"
)

// An Entry is one line of the log. Its texts are bounded, with unprintable characters escaped,
// since clients choose some of them.
type Entry struct {
	// ID grows from entry to entry, across restarts of the server too: the time of writing in
	// microseconds since 1970, or the next free number.
	ID         int64       `json:"id"`
	At         time.Time   `json:"at"`
	Level      string      `json:"level"` // INFO, WARN, ERROR
	Message    string      `json:"message"`
	Attributes []Attribute `json:"attributes"` // in the order of the line
}

// An Attribute is a key and value of a line. The names of its groups precede the key, separated by
// dots.
type Attribute struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Bounds of a journal and of an entry; texts are in bytes.
const (
	mostEntries    = 1000
	mostBytes      = 1 << 20
	mostText       = 2 << 10
	mostKey        = 256
	mostAttributes = 32
	entryBytes     = 150 // an entry without its texts
	attributeBytes = 32
)

// A Journal holds the last entries. Make one with New; a nil Journal is empty. It may be used from
// any goroutine.
type Journal struct {
	mu      sync.Mutex
	entries []record // oldest first
	bytes   int
	kinds   map[string]int // bytes of the entries of each kind
	last    int64          // ID of the newest
}

// A record is an entry as the journal holds it.
type record struct {
	Entry
	level slog.Level
	kind  string // its message, and its container if it has one
	size  int
}

// New makes an empty journal.
func New() *Journal { return &Journal{kinds: map[string]int{}} }

// Handler returns a log handler that adds lines to the journal and passes them on to next.
func (j *Journal) Handler(next slog.Handler) slog.Handler { return &handler{journal: j, next: next} }

// List returns up to most of the last entries, oldest first, of level least or above and with an ID
// greater than after.
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

func (j *Journal) add(e record) {
	e.kind, e.size = e.Message, entryBytes+len(e.Message)
	for _, a := range e.Attributes {
		e.size += attributeBytes + len(a.Key) + len(a.Value)
		if a.Key == "container" {
			e.kind += " " + a.Value
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	e.ID = max(e.At.UnixMicro(), j.last+1)
	j.last = e.ID
	j.entries = append(j.entries, e)
	j.bytes += e.size
	j.kinds[e.kind] += e.size
	for len(j.entries) > mostEntries || j.bytes > mostBytes {
		j.evict()
	}
}

// evict drops the oldest entry of the kind that takes most: what is said a thousand times pushes
// out itself, and nothing else.
func (j *Journal) evict() {
	most := ""
	for kind, bytes := range j.kinds {
		if most == "" || bytes > j.kinds[most] {
			most = kind
		}
	}
	i := slices.IndexFunc(j.entries, func(e record) bool { return e.kind == most })
	j.bytes -= j.entries[i].size
	if j.kinds[most] -= j.entries[i].size; j.kinds[most] == 0 {
		delete(j.kinds, most)
	}
	j.entries = slices.Delete(j.entries, i, i+1)
}

// A handler belongs to a logger, or to one derived from it with more attributes.
type handler struct {
	journal *Journal
	next    slog.Handler
	prefix  string      // of keys, for open groups
	with    []Attribute // of the logger
}

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || h.next.Enabled(ctx, level)
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		attributes := h.with[:len(h.with):len(h.with)] // so that append copies
		r.Attrs(func(a slog.Attr) bool {
			attributes = flatten(attributes, h.prefix, a)
			return true
		})
		if attributes == nil {
			attributes = []Attribute{}
		}
		h.journal.add(record{Entry: Entry{At: r.Time.UTC(), Level: r.Level.String(), Message: access.Printable(r.Message, mostText), Attributes: attributes}, level: r.Level})
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

// flatten appends an attribute, or the attributes of a group, up to mostAttributes.
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
	return append(list, Attribute{access.Printable(prefix+a.Key, mostKey), access.Printable(value.String(), mostText)})
}
