package operate

import (
	"bytes"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"

	"github.com/shivad/shivad/server/manual"
)

// manualPath is where the manual lies below the endpoint. Like the page it is sent to any client.
const manualPath = "/manual/"

// manualPolicy is that of the page, with the form of the search.
const manualPolicy = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// repository is where pages lie that the manual refers to and does not contain.
const repository = "https://github.com/shivad/shivad/blob/main/"

// serveManual answers with the contents, a page, or what a search (?q=) has found.
func serveManual(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, manualPath)
	query := strings.TrimSpace(r.URL.Query().Get("q"))
	var out bytes.Buffer
	switch p, ok := manual.Find(name); {
	case query != "":
		frame(&out, "Search", query, func() { results(&out, query) })
	case name == "":
		p, _ = manual.Find(manual.Contents)
		frame(&out, p.Title, "", func() { render(&out, p) })
	case ok && p.Name == name:
		frame(&out, p.Title, "", func() { render(&out, p) })
	default:
		notFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", manualPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	_, _ = w.Write(out.Bytes()) // a client that has gone needs no answer
}

// frame writes what all pages of the manual have around their content.
func frame(out *bytes.Buffer, title, query string, content func()) {
	fmt.Fprintf(out, `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%s - shivad manual</title>
<link rel="icon" href="/page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/page/manual.css">
</head>
<body>
<header>
<nav aria-label="Manual"><a href="%s">Manual</a> <a href="/">Server</a></nav>
<form action="%s" role="search"><input type="search" name="q" value="%s" aria-label="Search the manual" placeholder="Search"> <button>Search</button></form>
</header>
<main>
`, html.EscapeString(title), manualPath, manualPath, html.EscapeString(query))
	content()
	out.WriteString("</main>\n</body>\n</html>\n")
}

// results lists what a search has found.
func results(out *bytes.Buffer, query string) {
	hits := manual.Search(query)
	fmt.Fprintf(out, "<h1>Search: %s</h1>\n", html.EscapeString(query))
	if hits == nil {
		out.WriteString("<p>No page has these words.</p>\n")
		return
	}
	out.WriteString("<ol>\n")
	for _, hit := range hits {
		fmt.Fprintf(out, "<li><a href=\"%s%s#%s\">%s</a>", manualPath, hit.Page.Name, hit.Section.Anchor,
			html.EscapeString(hit.Page.Title))
		if hit.Section.Heading != hit.Page.Title {
			fmt.Fprintf(out, ": %s", html.EscapeString(hit.Section.Heading))
		}
		out.WriteString("</li>\n")
	}
	out.WriteString("</ol>\n")
}

var markdown = goldmark.New(goldmark.WithExtensions(extension.Table),
	goldmark.WithParserOptions(parser.WithAutoHeadingID(), parser.WithASTTransformers(util.Prioritized(links{}, 1))))

// render writes a page as HTML. HTML within it, of which the pages have only comments, is left out.
func render(out *bytes.Buffer, p manual.Page) {
	if err := markdown.Convert([]byte(manual.Uncommented(p.Text)), out,
		parser.WithContext(parser.NewContext(parser.WithIDs(anchors{})))); err != nil {
		panic(err) // cannot happen: a buffer takes everything
	}
}

// anchors are the names of headings, as in the sources.
type anchors map[string]bool

func (a anchors) Generate(heading []byte, _ ast.NodeKind) []byte {
	name := manual.Anchor(string(heading))
	for n, first := 1, name; a[name]; n++ {
		name = fmt.Sprintf("%s-%d", first, n)
	}
	a[name] = true
	return []byte(name)
}

// Put is for headings that name themselves, which our Markdown cannot.
func (a anchors) Put(name []byte) { a[string(name)] = true }

// links has links between pages lead to their addresses here, and those to other files of the
// repository to where it is public. Pictures become their texts.
type links struct{}

func (links) Transform(document *ast.Document, _ text.Reader, _ parser.Context) {
	var pictures []*ast.Image
	_ = ast.Walk(document, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Link:
			if entering {
				n.Destination = []byte(address(string(n.Destination)))
			}
		case *ast.Image:
			if entering {
				pictures = append(pictures, n)
			}
		}
		return ast.WalkContinue, nil
	})
	// The programs do not contain pictures, and their texts say what they show.
	for _, picture := range pictures {
		words := ast.NewEmphasis(1)
		for child := picture.FirstChild(); child != nil; child = picture.FirstChild() {
			words.AppendChild(words, child)
		}
		picture.Parent().ReplaceChild(picture.Parent(), picture, words)
	}
}

// address is where a link leads that stands in a page as to.
func address(to string) string {
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "" || u.Path == "" {
		return to
	}
	file := path.Join("server/manual", u.Path)
	name, ours := strings.CutPrefix(strings.TrimSuffix(file, ".md"), "server/manual/")
	if _, ok := manual.Find(name); ours && ok {
		u.Path = manualPath + strings.TrimSuffix(name, manual.Contents)
		return u.String()
	}
	u.Path = file
	return repository + u.String()
}
