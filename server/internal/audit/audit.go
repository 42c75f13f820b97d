// Package audit remembers who did what to which thing: what operators, clients and containers have
// changed, by whatever door, and what they were refused for want of a right. Requests for
// inference, feedback and questions change nothing, and are not here.
//
// Each entry is a line of the log as well, which lasts. The Trail has the last thousand, for the
// admin door.
package audit

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// A Source is who does something, and from where.
type Source struct {
	Identity string `json:"identity,omitempty"` // none: nobody is declared, or nobody known
	Address  string `json:"address,omitempty"`  // of the client; none: the server itself
	// Door is its section of the configuration: tcp, rest, grpc, admin or containers. Else it is
	// server, which acts by itself, or program: the one that the server is part of, or a signal.
	Door string `json:"door"`
}

// String is a source as the history of a model names it.
func (s Source) String() string {
	if s.Identity == "" {
		return s.Address
	}
	return s.Identity + " at " + s.Address
}

// An Entry is one act, or one that was refused. Its texts are bounded, and have no characters that
// are not printable: names are often chosen by others.
type Entry struct {
	At time.Time `json:"at"`
	Source
	// Action is what was done: create, change, delete, load, register, …, or a method of HTTP that
	// was refused.
	Action  string `json:"action"`
	What    string `json:"what"` // to what kind of thing: application, model, region, … or a path
	Name    string `json:"name,omitempty"`
	Before  string `json:"before,omitempty"` // JSON
	After   string `json:"after,omitempty"`  // JSON
	Refused bool   `json:"refused,omitempty"`
	Error   string `json:"error,omitempty"` // why it was refused, or what it failed with
}

// Bounds of a trail, and of the texts of an entry in bytes.
const (
	mostEntries = 1000
	mostBytes   = 1 << 20
	mostName    = 256
	mostText    = 2 << 10
	entryBytes  = 200 // an entry without its texts
)

// linesASecond is how many lines of the log one source may cause. What is beyond them is in the
// trail, and counted in the next line.
const linesASecond = 20

// A Trail is what was done last. Make one with New; a nil Trail forgets everything. It may be used
// from any goroutine.
type Trail struct {
	log *slog.Logger

	mu      sync.Mutex
	entries []Entry // the oldest first
	bytes   int
	crowds  map[string]*crowd
}

// A crowd is what the trail has of one identity, or of one address where none is known.
type crowd struct {
	entries  int
	second   int64 // in which it was logged last
	lines    int   // then
	unlogged int
}

// New makes a trail.
func New(log *slog.Logger) *Trail { return &Trail{log: log, crowds: map[string]*crowd{}} }

// Add appends an entry, as of now.
func (t *Trail) Add(e Entry) {
	if t == nil {
		return
	}
	for _, bounded := range []struct {
		text *string
		most int
	}{{&e.Identity, mostName}, {&e.Address, mostName}, {&e.Action, mostName}, {&e.What, mostName}, {&e.Name, mostName}, {&e.Before, mostText}, {&e.After, mostText}, {&e.Error, mostText}} {
		*bounded.text = Printable(*bounded.text, bounded.most)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e.At = time.Now().UTC()
	t.entries = append(t.entries, e)
	t.bytes += e.size()
	key := e.crowd()
	c := t.crowds[key]
	if c == nil {
		c = &crowd{}
		t.crowds[key] = c
	}
	c.entries++
	t.write(&e, c)
	for len(t.entries) > mostEntries || t.bytes > mostBytes {
		t.yield()
	}
}

// crowd is by what those are told apart who share the trail. Whoever is refused as nobody is one of
// many.
func (e *Entry) crowd() string {
	if e.Refused && e.Identity == "" {
		return "nobody"
	}
	if e.Identity != "" {
		return "identity " + e.Identity
	}
	// A process tells nobody apart, and no more does a port.
	host, _, _ := strings.Cut(e.Address, ",")
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host = host[:i]
	}
	return "address " + host
}

func (e *Entry) size() int {
	return entryBytes + len(e.Identity) + len(e.Address) + len(e.Action) + len(e.What) + len(e.Name) + len(e.Before) + len(e.After) + len(e.Error)
}

// yield drops the oldest entry of the crowd that has the most: who repeats something a thousand
// times, or is refused, pushes out what it did itself.
func (t *Trail) yield() {
	most := ""
	for key, c := range t.crowds {
		if most == "" || c.entries > t.crowds[most].entries {
			most = key
		}
	}
	for i := range t.entries {
		if t.entries[i].crowd() == most {
			t.bytes -= t.entries[i].size()
			copy(t.entries[i:], t.entries[i+1:])
			t.entries[len(t.entries)-1] = Entry{}
			t.entries = t.entries[:len(t.entries)-1]
			break
		}
	}
	if t.crowds[most].entries--; t.crowds[most].entries == 0 {
		delete(t.crowds, most)
	}
}

// write logs an entry, unless its source has written many lines in this second.
func (t *Trail) write(e *Entry, c *crowd) {
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
	for _, more := range []struct{ key, text string }{{"before", e.Before}, {"after", e.After}, {"error", e.Error}} {
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

// List returns the last entries, the oldest first.
func (t *Trail) List(most int) []Entry {
	if t == nil {
		return []Entry{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Entry{}, t.entries[max(0, len(t.entries)-most):]...)
}

// Printable is a text of at most so many bytes, with escapes for what is not printable.
func Printable(text string, most int) string {
	cut := len(text) > most
	if cut {
		text = text[:most]
		for range utf8.UTFMax - 1 { // of a character that was cut in two
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
