package operate

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/shivad/shivad/server/admin"
)

// Entries of level info or above are kept, whatever the log writes, with the attributes of their
// logger; the log's own output does not change.
func TestKeepsWhatIsLogged(t *testing.T) {
	var text bytes.Buffer
	j := NewJournal()
	log := slog.New(j.Handler(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn})))
	log.Debug("one of many")
	log.Info("begins", "port", 6174)
	part := log.With("model", "digits").WithGroup("container").With("pid", 7)
	part.Warn("ended", "status", slog.GroupValue(slog.Int("code", 1), slog.Duration("after", time.Second)), "error",
		fmt.Errorf("exit %d", 1))
	part.Error("and again")
	log.Info("goes on")

	var got []string
	for _, e := range j.List(10, slog.LevelInfo, 0) {
		line := e.Level + " " + e.Message
		for _, a := range e.Attributes {
			line += " " + a.Key + "=" + a.Value
		}
		got = append(got, line)
	}
	want := []string{
		"INFO begins port=6174",
		"WARN ended model=digits container.pid=7 container.status.code=1 container.status.after=1s container.error=exit 1",
		"ERROR and again model=digits container.pid=7",
		"INFO goes on",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nexpected\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if n := strings.Count(text.String(), "\n"); n != 2 || !strings.Contains(text.String(), `level=WARN msg=ended model=digits container.pid=7 container.status.code=1`) {
		t.Errorf("the log has\n%s", &text)
	}
}

// A list has the newest of the requested entries; IDs increase however fast lines arrive.
func TestList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // where time stands still
		j := NewJournal()
		log := slog.New(j.Handler(slog.DiscardHandler))
		for i := range 5 {
			log.Info(fmt.Sprint("info ", i))
			log.Warn(fmt.Sprint("warn ", i))
		}
		messages := func(list []admin.LogEntry) (out string) {
			for _, e := range list {
				out += e.Message + ", "
			}
			return out
		}
		all := j.List(100, slog.LevelInfo, 0)
		for i := range all[1:] {
			if all[i+1].ID <= all[i].ID {
				t.Errorf("after %d follows %d", all[i].ID, all[i+1].ID)
			}
		}
		for _, c := range []struct {
			most  int
			least slog.Level
			after int64
			want  string
		}{
			{3, slog.LevelInfo, 0, "warn 3, info 4, warn 4, "},
			{2, slog.LevelWarn, 0, "warn 3, warn 4, "},
			{9, slog.LevelError, 0, ""},
			{9, slog.LevelInfo, all[7].ID, "info 4, warn 4, "},
			{9, slog.LevelWarn, all[8].ID, "warn 4, "},
			{9, slog.LevelInfo, all[9].ID, ""},
		} {
			if got := messages(j.List(c.most, c.least, c.after)); got != c.want {
				t.Errorf("%+v: got %s", c, got)
			}
		}
	})
	var none *Journal
	if none.List(1, slog.LevelInfo, 0) == nil {
		t.Error("no journal has no list")
	}
}

// Whatever is logged, a journal is bounded in entries and bytes, and its texts are printable.
func TestBounds(t *testing.T) {
	j := NewJournal()
	log := slog.New(j.Handler(slog.DiscardHandler))
	for i := range 3 * mostEntries {
		log.Info("line", "i", i)
	}
	if list := j.List(2*mostEntries, slog.LevelInfo, 0); len(list) != mostEntries ||
		list[mostEntries-1].Attributes[0].Value != fmt.Sprint(3*mostEntries-1) {
		t.Errorf("%d entries", len(list))
	}
	long := strings.Repeat("\x1b[2J\n", 1<<16)
	var many []any
	for range 10 * mostAttributes {
		many = append(many, long, long)
	}
	for range 100 {
		log.Error(long, many...)
	}
	list, size := j.List(mostEntries, slog.LevelInfo, 0), 0
	for i := range j.entries {
		size += j.entries[i].size
	}
	if size != j.bytes || size > mostBytes || len(list) == 0 {
		t.Errorf("%d entries of %d bytes, by its own count %d", len(list), size, j.bytes)
	}
	for _, e := range list {
		if e.Message == "line" {
			continue // not pushed out by lines of another kind
		}
		if len(e.Attributes) != mostAttributes {
			t.Fatalf("%d attributes", len(e.Attributes))
		}
		for _, text := range []string{e.Message, e.Attributes[0].Key, e.Attributes[0].Value} {
			if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) ||
				len(text) > 5*mostLogText {
				t.Fatalf("%.100q, %d bytes", text, len(text))
			}
		}
	}
}
