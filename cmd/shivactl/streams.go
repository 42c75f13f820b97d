package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/plural"
)

func (c *cli) streamsCommand() *cobra.Command {
	return c.watched(&cobra.Command{
		Use: "streams MODEL", Short: "list the streams of a model, the oldest frames first",
		Long: `Prints a line for each stream, at most a hundred for each version. Streams that wait for answers and
get none come first, then those with the oldest frames. A stream of a connection has its client's address as a name.
FRAMES/S, ANSWERED/S and SUPERSEDED/S are means of about a minute. AGE is the greatest age that a frame of that minute
had when it was answered; age counts from captured_at, or without it from the arrival. LATE is the greatest age of a
frame when it arrived. shivactl explain MODEL says why frames are old.

With --json: {"versions": [{"name", "version", "known", "streams": [{"name", "connection", "keep", "waiting",
"span_seconds", "frames", "answered", "superseded", "age_seconds", "late_seconds", "silent_seconds"}]}]}
`,
		Args: oneArgument("a model"), ValidArgsFunction: c.completes(modelNames),
		RunE: c.asks(func(c *cli, args []string) error { return c.streams(args[0]) }),
	})
}

func (c *cli) streams(name string) error {
	return fetch(c, apiPath("/v1/models/%s/streams", name), c.printStreams)
}

func (c *cli) printStreams(list admin.StreamList) error {
	g := newGrid("STREAM\tVERSION\tKEEP\tFRAMES/S\tANSWERED/S\tSUPERSEDED/S\tWAITING\tAGE\tLATE\tSILENT",
		"SILENT\tKEEP\tSUPERSEDED/S\tANSWERED/S")
	for _, v := range list.Versions {
		for _, s := range v.Streams {
			name := abbreviate(s.Name)
			if s.Connection {
				name += " (connection)"
			}
			rate := func(n int) float64 { return float64(n) / max(s.Span, 0.001) }
			g.add("%s\t%s\t%v\t%.3g\t%.3g\t%.3g\t%d\t%s\t%s\t%s", name, v.Version, s.Keep, rate(s.Frames),
				rate(s.Answered), rate(s.Superseded), s.Waiting, millis(s.Age), millis(s.Late), seconds(s.Silent))
		}
		if more := v.Known - len(v.Streams); more > 0 {
			g.add("and %d more\t%s", more, v.Version)
		}
	}
	return g.write(c.stdout, c.width())
}

// printSeen lists streams, with an empty line below.
func (c *cli) printSeen(all []admin.Seen) error {
	if len(all) == 0 {
		return nil
	}
	return c.writeWithLine(seenGrid(all))
}

// seenGrid has a row for each stream: how old its newest answer is, and who waits for it.
func seenGrid(all []admin.Seen) *grid {
	g := newGrid("STREAM\tOF\tFROM\tNEWEST ANSWER\tWAITED FOR BY", "FROM\tWAITED FOR BY")
	for _, s := range all {
		name, from, newest, waiting := abbreviate(s.Name), s.Client, "none", "-"
		if user, ok := strings.CutPrefix(from, "user "); ok { // a text of the client's
			from = "user " + abbreviate(user)
		}
		switch {
		case s.Connection:
			name, from = name+" (connection)", "-"
		case s.Name == "":
			name = "any"
		}
		switch {
		case !s.Known:
			from, newest = "nobody", "no frame has come"
		case s.Age != nil:
			newest = millis(*s.Age) + " old"
		}
		if s.Waiting > 0 {
			if waiting = fmt.Sprint(s.Waiting); len(s.Askers) > 0 {
				waiting += ": " + strings.Join(s.Askers, ", ")
			}
		}
		if s.Identity != "" {
			from += ", " + s.Identity
		}
		g.add("%s\t%s\t%s\t%s\t%s", name, s.Model, from, newest, waiting)
	}
	return g
}

// newestText tells what is kept of the newest answers of streams.
func newestText(n admin.Newest) string {
	text := fmt.Sprintf("%s of %s, %s, %s waiting", size(n.Bytes), size(n.Limit), plural.Of(n.Streams, "stream"),
		plural.Of(n.Waiting, "question"))
	if n.Evicted > 0 {
		text += fmt.Sprintf(", %s forgotten because of the limit", plural.Of(n.Evicted, "stream"))
	}
	return text
}
