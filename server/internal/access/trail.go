package access

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/shivad/shivad/server/admin"
)

type (
	// An Entry is one action, as operators see it.
	Entry = admin.Entry
	// A Source is where an action comes from.
	Source = admin.Source
)

// Bounds of a trail, and of the texts of an entry in bytes.
const (
	mostEntries = 1000
	mostBytes   = 1 << 20
	mostName    = 256
	mostText    = 2 << 10
	entryBytes  = 200 // an entry without its texts

	// refusedPart is the part of the bounds that refusals of one source may take: a tenth.
	refusedPart = 10
)

// linesASecond limits the log lines of one source. Entries above the limit are only in the trail;
// the next line says how many.
const linesASecond = 10

// A Trail holds the most recent entries. Make one with NewTrail; a nil Trail discards everything.
// It may be used from any goroutine.
type Trail struct {
	log *slog.Logger

	mu      sync.Mutex
	entries []Entry // the oldest first
	bytes   int
	sources map[string]*sourceStats
}

// A sourceStats counts the entries of one identity, or of one address if the identity is unknown.
// Refusals count apart.
type sourceStats struct {
	refused  bool // it counts refusals
	entries  int
	bytes    int
	second   int64 // Unix time of its last line in the log
	lines    int   // in that second
	unlogged int   // entries since then without a line
}

// AuditText returns a value as JSON for an entry; "" for nil.
func AuditText(v any) string {
	if v == nil {
		return ""
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// NewTrail makes a trail.
func NewTrail(log *slog.Logger) *Trail { return &Trail{log: log, sources: map[string]*sourceStats{}} }

// Add appends an entry and sets its time.
func (t *Trail) Add(e Entry) {
	if t == nil {
		return
	}
	for _, bounded := range []struct {
		text *string
		most int
	}{{&e.Identity, mostName}, {&e.Container, mostName}, {&e.Address, mostName}, {&e.Action, mostName},
		{&e.What, mostName}, {&e.Name, mostName}, {&e.Before, mostText}, {&e.After, mostText}, {&e.Error, mostText}} {
		*bounded.text = Printable(*bounded.text, bounded.most)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e.At = time.Now().UTC()
	t.entries = append(t.entries, e)
	t.bytes += entrySize(&e)
	key := sourceKey(&e)
	c := t.sources[key]
	if c == nil {
		c = &sourceStats{refused: e.Refused}
		t.sources[key] = c
	}
	c.entries++
	c.bytes += entrySize(&e)
	t.write(&e, c)
	for c.refused && (c.entries > mostEntries/refusedPart || c.bytes > mostBytes/refusedPart) {
		t.evict(key)
	}
	for len(t.entries) > mostEntries || t.bytes > mostBytes {
		t.evict(t.largest())
	}
}

// sourceKey returns the key of the sourceStats that an entry counts in. All refused entries without
// an identity share one, so that many unknown clients cannot fill the trail.
func sourceKey(e *Entry) string {
	switch {
	case e.Refused:
		return "refused " + cmp.Or(e.Container, e.Identity)
	case e.Container != "":
		return "container " + e.Container
	case e.Identity != "":
		return "identity " + e.Identity
	}
	// Without the process ID or the port, which differ between connections of one client.
	host, _, _ := strings.Cut(e.Address, ",")
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host = host[:i]
	}
	return "address " + host
}

func entrySize(e *Entry) int {
	return entryBytes + len(e.Identity) + len(e.Container) + len(e.Address) + len(e.Action) + len(e.What) +
		len(e.Name) + len(e.Before) + len(e.After) + len(e.Error)
}

// largest returns the key of the source whose entries take most: a client that repeats something a
// thousand times pushes out its own entries.
func (t *Trail) largest() (most string) {
	for key, c := range t.sources {
		if most == "" || c.bytes > t.sources[most].bytes {
			most = key
		}
	}
	return most
}

// evict drops the oldest entry of a source.
func (t *Trail) evict(source string) {
	i := slices.IndexFunc(t.entries, func(e Entry) bool { return sourceKey(&e) == source })
	c, size := t.sources[source], entrySize(&t.entries[i])
	t.bytes -= size
	c.bytes -= size
	t.entries = slices.Delete(t.entries, i, i+1)
	if c.entries--; c.entries == 0 {
		delete(t.sources, source)
	}
}

// write logs an entry unless its source is over linesASecond.
func (t *Trail) write(e *Entry, c *sourceStats) {
	if now := e.At.Unix(); c.second != now {
		c.second, c.lines = now, 0
	}
	if c.lines >= linesASecond {
		c.unlogged++
		return
	}
	c.lines++
	level, message := slog.LevelInfo, "audit: done"
	args := []slog.Attr{slog.String("identity", e.Identity), slog.String("from", e.Address), slog.String("door", e.Door),
		slog.String("action", e.Action), slog.String("what", e.What), slog.String("name", e.Name)}
	switch {
	case e.Refused:
		level, message = slog.LevelWarn, "audit: refused"
	case e.Error != "":
		level, message = slog.LevelWarn, "audit: failed"
	}
	for _, more := range []struct{ key, text string }{{"container", e.Container}, {"before", e.Before},
		{"after", e.After}, {"error", e.Error}} {
		if more.text != "" {
			args = append(args, slog.String(more.key, more.text))
		}
	}
	if c.unlogged > 0 {
		args = append(args, slog.Int("others that were not logged", c.unlogged))
		c.unlogged = 0
	}
	t.log.LogAttrs(context.Background(), level, message, args...)
}

// List returns the last entries, oldest first.
func (t *Trail) List(most int) []Entry {
	if t == nil {
		return []Entry{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Entry{}, t.entries[max(0, len(t.entries)-most):]...)
}

// Printable cuts a text to at most that many bytes and escapes unprintable characters.
func Printable(text string, most int) string {
	cut := len(text) > most
	if cut {
		text = text[:most]
		for range utf8.UTFMax - 1 { // drop the rest of a character that was cut in two
			if r, size := utf8.DecodeLastRuneInString(text); r == utf8.RuneError && size == 1 {
				text = text[:len(text)-1]
			}
		}
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		quoted := strconv.Quote(text)
		text = strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
	}
	if cut {
		text += "…"
	}
	return text
}
