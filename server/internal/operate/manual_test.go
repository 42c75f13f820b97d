package operate

import (
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/manual"
)

var (
	hrefs     = regexp.MustCompile(`(?:href|src|action)="([^"]*)"`)
	anchored  = regexp.MustCompile(` id="([^"]+)"`)
	firstPage = regexp.MustCompile(`<li><a href="/manual/([a-z0-9-]*)#`)
)

// Every page of the manual is served, its links lead to pages and headings that exist, and nothing
// is loaded from elsewhere.
func TestManual(t *testing.T) {
	h := Handler(sources(admin.Serving))
	pages := map[string]string{} // by path
	for _, p := range manual.Pages() {
		path := manualPath + p.Name
		if p.Name == manual.Contents {
			path = manualPath
		}
		w := fetch(h, path)
		if policy := w.Header().Get("Content-Security-Policy"); w.Code != http.StatusOK || !strings.HasPrefix(policy, "default-src 'self';") {
			t.Fatalf("%s: %d, policy %q", path, w.Code, policy)
		}
		pages[path] = w.Body.String()
		if p.Name != manual.Contents && !strings.Contains(pages[path], "<h1 id=") ||
			strings.Contains(pages[path], "<img") || strings.Contains(pages[path], "words:") {
			t.Errorf("%s: no heading, a picture, or a comment", path)
		}
	}
	for path, page := range pages {
		for _, found := range hrefs.FindAllStringSubmatch(page, -1) {
			u, err := url.Parse(found[1])
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			to := u.Path
			if to == "" {
				to = path
			}
			switch target, ok := pages[to]; {
			case u.Scheme != "": // another site, or a file of the repository
				if file, ours := strings.CutPrefix(found[1], repository); ours {
					if _, err := os.Stat("../../../" + strings.Split(file, "#")[0]); err != nil {
						t.Errorf("%s: %v", path, err)
					}
				}
			case to == "/" || strings.HasPrefix(to, "/page/"):
			case !ok:
				t.Errorf("%s: there is no %s", path, found[1])
			case u.Fragment != "" && !strings.Contains(target, ` id="`+u.Fragment+`"`):
				t.Errorf("%s: %s has no heading #%s", path, to, u.Fragment)
			}
		}
		seen := map[string]bool{}
		for _, id := range anchored.FindAllStringSubmatch(page, -1) {
			if seen[id[1]] {
				t.Errorf("%s: two headings are #%s", path, id[1])
			}
			seen[id[1]] = true
		}
	}
	for _, path := range []string{"/manual", "/manual/TLS", "/manual/tls.md", "/manual/tls/", "/manual/nothing"} {
		if w := fetch(h, path); w.Code != http.StatusNotFound && w.Code != http.StatusTemporaryRedirect &&
			w.Code != http.StatusMovedPermanently {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// The search shows what the manual finds, and nothing of the query but text.
func TestManualSearch(t *testing.T) {
	h := Handler(sources(admin.Serving))
	searches, err := os.ReadFile("../../manual/testdata/searches.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(searches)) {
		query, want, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		w := fetch(h, manualPath+"?q="+url.QueryEscape(query))
		if first := firstPage.FindStringSubmatch(w.Body.String()); w.Code != http.StatusOK || first == nil ||
			first[1] != want {
			t.Errorf("%s: expected %s first, got %d %v", query, want, w.Code, first)
		}
	}
	w := fetch(h, manualPath+"?q="+url.QueryEscape(`"><script>x</script>`))
	if body := w.Body.String(); strings.Contains(body, "<script") ||
		!strings.Contains(body, "No page has these words") && !strings.Contains(body, "<ol>") {
		t.Errorf("a hostile query: %s", body)
	}
}
