package manual

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The contents name each page once, by its title.
func TestContents(t *testing.T) {
	left, err := fs.Glob(files, "*.md")
	if err != nil {
		t.Fatal(err)
	}
	titles := regexp.MustCompile(`(?m)^- \[([^\]]+)\]\(([a-z0-9-]+)\.md\)`)
	for _, found := range titles.FindAllStringSubmatch(Pages()[0].Text, -1) {
		if p, ok := Find(found[2]); !ok || p.Title != found[1] {
			t.Errorf("the contents call %s %q; its title is %q", found[2], found[1], p.Title)
		}
	}
	for _, p := range Pages() {
		i := slices.Index(left, p.Name+".md")
		if i < 0 {
			t.Errorf("%s is in the contents twice", p.Name)
			continue
		}
		left = slices.Delete(left, i, i+1)
		if p.Name != Contents && (p.Part == "" || p.Words == nil) {
			t.Errorf("%s has no heading above it in the contents, or no words", p.Name)
		}
	}
	if len(left) > 0 {
		t.Errorf("the contents do not list %v", left)
	}
}

// Users find what they search for. The site has the same test (server/e2e/manual).
func TestSearches(t *testing.T) {
	table, err := os.ReadFile("testdata/searches.txt")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(table)) {
		query, want, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		rows++
		if hits := Search(query); len(hits) == 0 || hits[0].Page.Name != want {
			t.Errorf("%s: expected %s first, got %v", query, want, names(hits))
		}
	}
	if rows < 60 {
		t.Errorf("%d searches", rows)
	}
	for _, query := range []string{"", "?!", "the", "zyzzyva"} {
		if hits := Search(query); hits != nil {
			t.Errorf("%q finds %v", query, names(hits))
		}
	}
}

// A query that no page lists is answered from titles, headings and text.
func TestSearchText(t *testing.T) {
	for query, want := range map[string]string{
		"Quotas and rate limits":    "quotas",
		"CAPTURED_AT":               "streams",
		"certificate revoked":       "tls",
		"prediction caching":        "cache",
		"shivad_queue_wait_seconds": "metrics",
		"retire_after":              "settings",
	} {
		hits := Search(query)
		if !slices.Contains(names(hits[:min(len(hits), 3)]), want) {
			t.Errorf("%s: expected %s among the first three, got %v", query, want, names(hits))
		}
		if len(hits) > 0 && hits[0].Section.Heading == "" {
			t.Errorf("%s: no section", query)
		}
	}
}

func names(hits []Hit) (names []string) {
	for _, hit := range hits {
		names = append(names, hit.Page.Name)
	}
	return names
}

// generated are the pages that are made of tables, and so are as long as these.
var generated = []string{"settings", "parameters", "metrics", "commands"}

// A manual is read if it is short: 20,000 words in all, without code, and a guide is a screen or
// two.
func TestLength(t *testing.T) {
	code := regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	sum := 0
	for _, p := range Pages() {
		if !slices.Contains(generated, p.Name) {
			sum += len(strings.Fields(code.ReplaceAllString(p.Text, "")))
		}
	}
	t.Logf("%d words", sum)
	if sum > 20000 {
		t.Errorf("the manual has %d words", sum)
	}
}

// Queries in pages name metrics and labels that there are: those of the table of metrics.
func TestQueries(t *testing.T) {
	labels := map[string]string{} // by metric
	table, _ := Find("metrics")
	rows := regexp.MustCompile("(?m)^\\| `(shivad_\\w+)` \\| ([^|]*)\\|")
	for _, row := range rows.FindAllStringSubmatch(table.Text, -1) {
		labels[row[1]] = row[2]
	}
	named := regexp.MustCompile("[`(](shivad_\\w+)(?:\\{([a-z_]+)[=!]|[`)])")
	for _, p := range Pages() {
		for _, found := range named.FindAllStringSubmatch(p.Text, -1) {
			has, ok := labels[found[1]]
			if ok && (found[2] == "" || slices.Contains(strings.Split(strings.TrimSpace(has), ", "), found[2])) {
				continue
			}
			t.Errorf("%s has %s: there is no such metric or label", p.Name, found[0])
		}
	}
}

func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"<!-- ready m -->\n```sh\nls\n```\n":           "```sh\nls\n```\n",
		"See [TLS](tls.md#a) and [it](#b).":            "See TLS (tls) and it.",
		"![A picture](x.png) of [c](../c/README.md)":   "A picture of c",
		"[`/v1`](administration.md): **all** of 1 < 2": "`/v1` (administration): **all** of 1 < 2",
	} {
		if got := Plain(text); got != want {
			t.Errorf("%q: got %q, expected %q", text, got, want)
		}
	}
}

func TestAnchor(t *testing.T) {
	for heading, want := range map[string]string{"[[model_file]]": "model_file",
		"HTTP: the Predict Protocol V2": "http-the-predict-protocol-v2", "Ünits, `x`": "ünits-x"} {
		if got := Anchor(heading); got != want {
			t.Errorf("%s: %s, expected %s", heading, got, want)
		}
	}
}

// Pages that the contents name are found whatever their case; files that are none are not pages.
func TestFind(t *testing.T) {
	if p, ok := Find("TLS"); !ok || p.Name != "tls" {
		t.Errorf("%v %v", p.Name, ok)
	}
	if _, ok := Find(filepath.Join("..", "README")); ok {
		t.Error("a path is a page")
	}
}
