package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/manual"
)

// manualCommand shows the pages of the manual, which are in the program: it asks no server.
func (c *cli) manualCommand() *cobra.Command {
	return &cobra.Command{
		Use: "manual [TOPIC...]", Short: "read or search the manual",
		Long: `manual lists the topics. manual TOPIC shows one, such as manual tls. Any other words are searched for,
and the best page comes first: shivactl manual multiple cameras

On a terminal, $PAGER or less shows the page; in less, / searches. The manual is part of the program and needs no
server. A server shows the same pages at /manual/ of its admin API.

With --json: of a search {"pages": [{"topic", "title", "section"}]}, of a topic {"topic", "title",
"text"}, the text in Markdown.
`,
		ValidArgsFunction: func(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
			for _, p := range manual.Pages()[1:] {
				names = append(names, cobra.CompletionWithDesc(p.Name, p.Title))
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			topic := strings.Join(args, " ")
			if p, ok := manual.Find(cmp.Or(topic, manual.Contents)); ok {
				return c.showTopic(p)
			}
			return c.searchManual(topic)
		},
	}
}

// topicText is the output of manual TOPIC --json.
type topicText struct {
	Topic string `json:"topic"`
	Title string `json:"title"`
	Text  string `json:"text"`
}

// topicHits is the output of a search with --json.
type topicHits struct {
	Pages []topicHit `json:"pages"`
}

type topicHit struct {
	Topic   string `json:"topic"`
	Title   string `json:"title"`
	Section string `json:"section"`
}

func (c *cli) showTopic(p manual.Page) error {
	if c.json {
		return c.printJSON(topicText{p.Name, p.Title, p.Text})
	}
	text := manual.Plain(p.Text)
	if terminal, _ := terminalOf(c.stdout); terminal != nil && c.page(terminal, text) {
		return nil
	}
	_, err := io.WriteString(c.stdout, text)
	return err
}

// page shows a text with the user's pager, and reports whether there is one.
func (c *cli) page(terminal *os.File, text string) bool {
	command := strings.Fields(cmp.Or(os.Getenv("PAGER"), "less"))
	if len(command) == 0 {
		return false
	}
	program, err := exec.LookPath(command[0])
	if err != nil {
		return false
	}
	pager := exec.CommandContext(c.ctx, program, command[1:]...)
	pager.Stdin, pager.Stdout, pager.Stderr = strings.NewReader(text), terminal, os.Stderr
	// As in git: a page that fits stays on the screen.
	pager.Env = append(os.Environ(), "LESS="+cmp.Or(os.Getenv("LESS"), "FRX"))
	// What it fails with, it has told the user itself.
	_ = pager.Run()
	return true
}

func (c *cli) searchManual(query string) error {
	hits := manual.Search(query)
	if len(hits) == 0 {
		return usage("manual", "no page of the manual has %q; shivactl manual lists them", query)
	}
	out := topicHits{}
	for _, hit := range hits {
		out.Pages = append(out.Pages, topicHit{hit.Page.Name, hit.Page.Title, hit.Section.Heading})
	}
	if c.json {
		return c.printJSON(out)
	}
	for _, hit := range out.Pages {
		line := fmt.Sprintf("%-18s %s", hit.Topic, hit.Title)
		if hit.Section != hit.Title {
			line += ": " + hit.Section
		}
		fmt.Fprintln(c.stdout, line)
	}
	fmt.Fprintln(c.stdout, "\nshivactl manual TOPIC shows one of them, such as: shivactl manual", out.Pages[0].Topic)
	return nil
}
