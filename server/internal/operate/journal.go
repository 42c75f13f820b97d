package operate

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/access"
)

// Bounds of a journal and of an entry; texts are in bytes.
const (
	mostEntries    = 1000
	mostBytes      = 1 << 20
	mostLogText    = 2 << 10
	mostKey        = 256
	mostAttributes = 32
	entryBytes     = 150 // an entry without its texts
	attributeBytes = 32
)

// A Journal keeps the last lines of the server's log, so that operators can read them without
// access to the file or service that the log goes to. It keeps level info and above, whatever level
// the log is set to; requests are never logged at those levels. Make one with NewJournal; a nil
// Journal is empty. It may be used from any goroutine.
type Journal struct {
	mu      sync.Mutex
	entries []logRecord // oldest first
	bytes   int
	kinds   map[string]int // bytes of the entries of each kind
	last    int64          // ID of the newest
}

// A logRecord is an entry as the journal holds it.
type logRecord struct {
	admin.LogEntry
	level slog.Level
	kind  string // its message, and its container if it has one
	size  int
}

// NewJournal makes an empty journal.
func NewJournal() *Journal { return &Journal{kinds: map[string]int{}} }

// Handler returns a log handler that adds lines to the journal and passes them on to next.
func (j *Journal) Handler(next slog.Handler) slog.Handler {
	return &journalHandler{journal: j, next: next}
}

// List returns up to most of the last entries, oldest first, of level least or above and with an ID
// greater than after.
func (j *Journal) List(most int, least slog.Level, after int64) []admin.LogEntry {
	list := []admin.LogEntry{}
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
			list = append(list, e.LogEntry)
		}
	}
	return list
}

func (j *Journal) add(e logRecord) {
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
	i := slices.IndexFunc(j.entries, func(e logRecord) bool { return e.kind == most })
	j.bytes -= j.entries[i].size
	if j.kinds[most] -= j.entries[i].size; j.kinds[most] == 0 {
		delete(j.kinds, most)
	}
	j.entries = slices.Delete(j.entries, i, i+1)
}

// A journalHandler belongs to a logger, or to one derived from it with more attributes.
type journalHandler struct {
	journal *Journal
	next    slog.Handler
	prefix  string               // of keys, for open groups
	with    []admin.LogAttribute // of the logger
}

func (h *journalHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || h.next.Enabled(ctx, level)
}

func (h *journalHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		attributes := h.with[:len(h.with):len(h.with)] // so that append copies
		r.Attrs(func(a slog.Attr) bool {
			attributes = flattenAttributes(attributes, h.prefix, a)
			return true
		})
		if attributes == nil {
			attributes = []admin.LogAttribute{}
		}
		h.journal.add(
			logRecord{LogEntry: admin.LogEntry{At: r.Time.UTC(), Level: r.Level.String(),
				Message: access.Printable(r.Message, mostLogText), Attributes: attributes}, level: r.Level})
	}
	if !h.next.Enabled(ctx, r.Level) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

func (h *journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := *h
	more.next = h.next.WithAttrs(attrs)
	more.with = h.with[:len(h.with):len(h.with)]
	for _, a := range attrs {
		more.with = flattenAttributes(more.with, h.prefix, a)
	}
	return &more
}

func (h *journalHandler) WithGroup(name string) slog.Handler {
	more := *h
	more.next = h.next.WithGroup(name)
	if name != "" {
		more.prefix += name + "."
	}
	return &more
}

// flatten appends an attribute, or the attributes of a group, up to mostAttributes.
func flattenAttributes(list []admin.LogAttribute, prefix string, a slog.Attr) []admin.LogAttribute {
	value := a.Value.Resolve()
	if value.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, member := range value.Group() {
			list = flattenAttributes(list, prefix, member)
		}
		return list
	}
	if a.Equal(slog.Attr{}) || len(list) >= mostAttributes {
		return list
	}
	return append(list,
		admin.LogAttribute{Key: access.Printable(prefix+a.Key, mostKey),
			Value: access.Printable(value.String(), mostLogText)})
}
