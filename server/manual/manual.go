// Package manual has the manual for users: the pages of this folder, which README.md lists in the
// order of reading. The admin endpoint shows them as HTML, shivactl as text, and `make manual`
// makes a site of them.
//
// A page may name words that users search for and that its headings lack, in a comment
//
//	<!-- words: tls certificate, https -->
//
// A search for one of them finds that page first, here and on the site.
package manual

import (
	"embed"
	"regexp"
	"strings"
	"sync"
)

//go:embed *.md
var files embed.FS

// Address is where a server with default settings shows the manual.
const Address = "http://127.0.0.1:8002/manual/"

// Contents is the name of the page that lists the others.
const Contents = "README"

// A Page is a page in Markdown.
type Page struct {
	Name  string // of its file, without .md
	Title string
	Part  string // of the manual: the heading of the list that has it; "" for the list itself
	Text  string
	Words []string // that it is found by, besides its own
}

var (
	part  = regexp.MustCompile(`(?m)^## (.+)$|^- \[[^\]]+\]\(([a-z0-9-]+)\.md\)`)
	title = regexp.MustCompile(`(?m)^# (.+)$`)
	words = regexp.MustCompile(`(?s)<!--\s+words:\s+(.*?)\s+-->\n*`)
)

// Pages returns all pages, the contents first. The caller must not change them.
var Pages = sync.OnceValue(func() []Page {
	list := []Page{read(Contents, "")}
	under := ""
	for _, found := range part.FindAllStringSubmatch(list[0].Text, -1) {
		if found[1] != "" {
			under = found[1]
			continue
		}
		list = append(list, read(found[2], under))
	}
	return list
})

// read reads an embedded page. A page in the contents that does not exist is a bug, which any test
// of this package shows.
func read(name, under string) Page {
	text, err := files.ReadFile(name + ".md")
	if err != nil {
		panic(err)
	}
	p := Page{Name: name, Part: under, Text: string(text)}
	if found := words.FindStringSubmatch(p.Text); found != nil {
		p.Text = strings.Replace(p.Text, found[0], "", 1)
		for word := range strings.SplitSeq(found[1], ",") {
			p.Words = append(p.Words, strings.Join(strings.Fields(word), " "))
		}
	}
	if found := title.FindStringSubmatch(p.Text); found != nil {
		p.Title = found[1]
	}
	return p
}

// Find returns the page of that name, whatever its case.
func Find(name string) (Page, bool) {
	for _, p := range Pages() {
		if strings.EqualFold(p.Name, name) {
			return p, true
		}
	}
	return Page{}, false
}

// A Section is a heading and the text below it, to the next heading.
type Section struct{ Heading, Anchor, Text string }

var heading = regexp.MustCompile(`^#{1,6} (.+)$`)

// Sections returns the parts of the page. Lines of code that look like headings are none.
func (p Page) Sections() (list []Section) {
	code := false
	for line := range strings.Lines(p.Text) {
		if strings.HasPrefix(strings.TrimLeft(line, " "), "```") {
			code = !code
		}
		if found := heading.FindStringSubmatch(strings.TrimRight(line, "\n")); found != nil && !code {
			list = append(list, Section{Heading: strings.ReplaceAll(found[1], "`", ""), Anchor: Anchor(found[1])})
		} else if len(list) > 0 {
			list[len(list)-1].Text += line
		}
	}
	return list
}

var notInAnchors = regexp.MustCompile(`[^\pL\pN_ -]`)

// Anchor returns the name by which links refer to a heading, as GitHub forms it.
func Anchor(heading string) string {
	return strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

var (
	comment = regexp.MustCompile(`(?m)^ *<!--(?s:.*?)-->\n?`)
	image   = regexp.MustCompile(`!\[([^\]]*)\]\([^)]*\)`)
	link    = regexp.MustCompile(`\[([^\]]+)\]\(([^)]*)\)`)
)

// Uncommented returns Markdown without its comments.
func Uncommented(text string) string { return comment.ReplaceAllString(text, "") }

// Plain returns Markdown as a terminal shows it: without comments, and with the names of pages
// instead of links.
func Plain(text string) string {
	text = image.ReplaceAllString(Uncommented(text), "$1")
	return link.ReplaceAllStringFunc(text, func(whole string) string {
		found := link.FindStringSubmatch(whole)
		file, _, _ := strings.Cut(found[2], "#")
		if name, ok := strings.CutSuffix(file, ".md"); ok && !strings.Contains(name, "/") && name != "" {
			return found[1] + " (" + name + ")"
		}
		return found[1]
	})
}
