package access

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
)

func from(identity, address string) Source {
	return Source{Identity: identity, Address: address, Door: "admin"}
}

// A trail is bounded in number and in bytes, and the source with the most entries loses its oldest.
func TestBounds(t *testing.T) {
	trail := NewTrail(slog.New(slog.DiscardHandler))
	trail.Add(Entry{Source: from("ann", "10.0.0.1:1"), Action: "change", Name: "first"})
	trail.Add(Entry{Source: from("", "10.0.0.9:1"), Action: "change", Name: "of no identity"})
	for i := range mostEntries * 6 / 10 { // an operator at work
		trail.Add(Entry{Source: from("eve", "10.0.0.3:1"), Action: "change", Name: fmt.Sprint(i)})
	}
	for i := range 3 * mostEntries {
		trail.Add(Entry{Source: from("", fmt.Sprintf("10.0.%d.%d:1", i/256, i%256)), Action: "load", Refused: true,
			Name: strings.Repeat("x", mostName)})
		trail.Add(Entry{Source: from("mallory", "10.0.0.4:1"), Action: "load", Refused: true,
			Error: strings.Repeat("x", mostText)})
	}
	if kept := trail.sources["identity eve"].entries; kept != mostEntries*6/10 {
		t.Errorf("refusals have pushed out all but %d of an operator's entries", kept)
	}
	for _, who := range []string{"refused ", "refused mallory"} {
		if c := trail.sources[who]; c.entries > mostEntries/refusedPart || c.bytes > mostBytes/refusedPart ||
			c.entries < 10 {
			t.Errorf("%q: %d refusals of %d bytes are kept", who, c.entries, c.bytes)
		}
	}
	for i := range 3 * mostEntries {
		trail.Add(Entry{Source: from("", fmt.Sprintf("10.0.%d.%d:1", i/256, i%256)), Action: "load", Refused: true,
			Name: fmt.Sprint("refused ", i)})
		trail.Add(Entry{Source: from("bob", "10.0.0.2:1"), Action: "register", Name: fmt.Sprint(i)})
	}
	list := trail.List(mostEntries + 1)
	counts := map[string]int{}
	for _, e := range list {
		counts[sourceKey(&e)]++
	}
	if len(list) != mostEntries || list[0].Name != "first" || list[1].Name != "of no identity" ||
		counts["refused "] != mostEntries/refusedPart || counts["identity bob"] < mostEntries/3 {
		t.Errorf("%d entries, the first %+v; of each %v", len(list), list[0], counts)
	}
	if last := list[len(list)-1].Name; last != fmt.Sprint(3*mostEntries-1) {
		t.Errorf("the last is %s", last)
	}
	if got := trail.List(2); len(got) != 2 || got[1].Name != list[len(list)-1].Name {
		t.Errorf("the last two are %+v", got)
	}
	before, after := strings.Repeat("x", 1<<20), strings.Repeat("\x00", 1<<20)
	for i := range mostEntries {
		trail.Add(Entry{Source: from("bob", "10.0.0.2:1"), Action: "change", Before: before, After: after,
			Name: fmt.Sprint(i)})
	}
	size := 0
	for _, e := range trail.List(mostEntries) {
		size += entrySize(&e)
	}
	if size > mostBytes || size != trail.bytes || trail.List(mostEntries)[0].Name != "first" {
		t.Errorf("%d bytes, by its own count %d", size, trail.bytes)
	}
	for key, c := range trail.sources {
		if c.entries == 0 {
			t.Errorf("%s has nothing, and is remembered", key)
		}
	}
}

// Whatever names clients choose, an entry and its log line are single lines and bounded.
func TestLyingNames(t *testing.T) {
	var log bytes.Buffer
	trail := NewTrail(slog.New(slog.NewTextHandler(&log, nil)))
	for _, name := range []string{"a\nlevel=INFO msg=\"audit: done\" identity=root", "\x1b[2J\x1b[31m", "a\x00b",
		"\xff\xfe", "\u202egnirts", strings.Repeat("ä", 1<<20), "x" + strings.Repeat("ä", 1<<20), strings.Repeat("\n", 1<<20)} {
		trail.Add(Entry{Source: Source{Identity: name, Address: name, Door: "rest"}, Action: name, What: name,
			Name: name, Before: name, After: name, Error: name})
	}
	for _, e := range trail.List(mostEntries) {
		for _, text := range []string{e.Identity, e.Address, e.Action, e.What, e.Name, e.Before, e.After, e.Error} {
			if strings.ContainsFunc(text, func(r rune) bool {
				return !unicode.IsPrint(r) || r == unicode.ReplacementChar
			}) || len(text) > 5*mostText {
				t.Errorf("%.100q, %d bytes", text, len(text))
			}
		}
	}
	if got := strings.Count(log.String(), "\n"); got != 8 || strings.ContainsAny(log.String(), "\x00\x1b") {
		t.Errorf("%d lines", got)
	}
	if got := Printable(`{"name":"digits"}`, mostText); got != `{"name":"digits"}` {
		t.Errorf("JSON becomes %s", got)
	}
	if got := Printable("ää", 3); got != "ä…" {
		t.Errorf("cut: %q", got)
	}
}

// A source of a thousand actions in a second does not fill the log, and other sources have their
// lines.
func TestLogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		trail := NewTrail(slog.New(slog.NewTextHandler(&log, nil)))
		lines := func() int { defer log.Reset(); return strings.Count(log.String(), "\n") }
		for range 500 {
			trail.Add(Entry{Source: from("", "10.0.0.1:1"), Refused: true})
		}
		trail.Add(Entry{Source: from("ann", "10.0.0.1:1"), Action: "change"})
		if got := lines(); got != linesASecond+1 {
			t.Errorf("%d lines, expected %d", got, linesASecond+1)
		}
		time.Sleep(time.Second)
		trail.Add(Entry{Source: from("", "10.0.0.1:1"), Refused: true})
		if text := log.String(); !strings.Contains(text, `"others that were not logged"=490`) || lines() != 1 {
			t.Errorf("the next line is %s", text)
		}
	})
	var none *Trail
	none.Add(Entry{})
	if none.List(1) == nil {
		t.Error("no trail has no list")
	}
}

// An entry's line says who, from where, did what to what, and whether that was refused or failed.
// Empty fields are left out.
func TestLines(t *testing.T) {
	for _, c := range []struct {
		entry Entry
		line  string
	}{
		{Entry{Source: from("ann", "10.0.0.1:1"), Action: "change", What: "application", Name: "x", Before: "{}",
			After: "[]"},
			`level=INFO msg="audit: done" identity=ann from=10.0.0.1:1 door=admin action=change what=application name=x before={} after=[]`},
		{Entry{Source: from("ann", "10.0.0.1:1"), Action: "load", What: "model", Name: "x", Error: "no such file"},
			`level=WARN msg="audit: failed" identity=ann from=10.0.0.1:1 door=admin action=load what=model name=x error="no such file"`},
		{Entry{Source: from("", "10.0.0.1:1"), Action: "load", What: "model", Name: "x", Refused: true, Error: "no right"},
			`level=WARN msg="audit: refused" identity="" from=10.0.0.1:1 door=admin action=load what=model name=x error="no right"`},
	} {
		var log bytes.Buffer
		NewTrail(slog.New(slog.NewTextHandler(&log, nil))).Add(c.entry)
		if _, line, _ := strings.Cut(strings.TrimSpace(log.String()), " "); line != c.line {
			t.Errorf("%s\nwant %s", line, c.line)
		}
	}
	for source, want := range map[Source]string{from("ann", "10.0.0.1:1"): "ann at 10.0.0.1:1",
		from("", "10.0.0.1:1"): "10.0.0.1:1", {Door: "server"}: ""} {
		if got := source.String(); got != want {
			t.Errorf("%+v is %q, want %q", source, got, want)
		}
	}
}

// The connections of one client are one source, and so are all refused clients without an identity.
func TestCrowds(t *testing.T) {
	for _, c := range []struct {
		entry Entry
		want  string
	}{
		{Entry{Source: from("ann", "10.0.0.1:1")}, "identity ann"},
		{Entry{Source: from("ann", "10.0.0.1:1"), Refused: true}, "refused ann"},
		{Entry{Source: from("", "10.0.0.1:1"), Refused: true}, "refused "},
		{Entry{Source: from("", "10.0.0.1:1")}, "address 10.0.0.1"},
		{Entry{Source: from("", "[::1]:80")}, "address [::1]"},
		{Entry{Source: from("", "uid=1000,pid=4711")}, "address uid=1000"},
		{Entry{}, "address "},
	} {
		if got := sourceKey(&c.entry); got != c.want {
			t.Errorf("%+v is of %q, want %q", c.entry, got, c.want)
		}
	}
}

// Each text of an entry counts, and an identity that has no entries left in the trail is forgotten.
func TestSizeOfAnEntry(t *testing.T) {
	const n = 100
	text := strings.Repeat("x", n)
	empty := entrySize(new(Entry))
	for i, e := range []Entry{
		{Source: Source{Identity: text}}, {Source: Source{Address: text}}, {Action: text}, {What: text}, {Name: text},
		{Before: text}, {After: text}, {Error: text},
	} {
		if got := entrySize(&e) - empty; got != n {
			t.Errorf("text %d of %d bytes counts as %d", i, n, got)
		}
	}
	trail := NewTrail(slog.New(slog.DiscardHandler))
	for i := range 2 * mostEntries {
		trail.Add(Entry{Source: from(fmt.Sprint("identity ", i), "10.0.0.1:1"), Action: "change"})
	}
	if len(trail.sources) != mostEntries {
		t.Errorf("%d identities are remembered of %d entries", len(trail.sources), mostEntries)
	}
}

// A text is cut between characters, and only if it is too long.
func TestPrintableIsCut(t *testing.T) {
	for _, c := range []struct {
		text string
		most int
		want string
	}{
		{"abcd", 4, "abcd"},
		{"abcde", 4, "abcd…"},
		{"abcédef", 4, "abc…"},
		{"abcédef", 5, "abcé…"},
		{"ab€de", 4, "ab…"},
		{"a𝄞bcdef", 4, "a…"},
		{"ab\ufffddef", 5, "ab\ufffd…"},
	} {
		if got := Printable(c.text, c.most); got != c.want {
			t.Errorf("%q cut to %d bytes is %q, expected %q", c.text, c.most, got, c.want)
		}
	}
}
