package operate

import (
	"bytes"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/admin"
)

func fetch(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// Browsers get the page and programs the list of paths. The page loads nothing from elsewhere and
// runs no script that is not a file, and is sent only once.
func TestPage(t *testing.T) {
	h := Handler(sources(admin.Serving))
	if w := fetch(h, "/", "Accept", "*/*"); w.Code != 200 || !strings.Contains(w.Body.String(), `"paths"`) ||
		w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("a program gets %d %s", w.Code, w.Body)
	}
	w := fetch(h, "/", "Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
	if w.Code != 200 || !strings.Contains(w.Body.String(), "<title>shivad</title>") ||
		!strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
		t.Fatalf("a browser gets %d %s", w.Code, w.Body)
	}
	if policy := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'self';") ||
		strings.Contains(policy, "unsafe") {
		t.Errorf("policy %q", policy)
	}
	if w := fetch(h, "/favicon.ico"); w.Code != 200 || w.Header().Get("Content-Type") != "image/png" {
		t.Errorf("a browser that shows JSON gets %d %v for an icon", w.Code, w.Header())
	}
	tag := w.Header().Get("ETag")
	if again := fetch(h, "/", "Accept", "text/html", "If-None-Match", tag); tag == "" ||
		again.Code != http.StatusNotModified || again.Body.Len() > 0 {
		t.Errorf("the same again: %d, %d bytes", again.Code, again.Body.Len())
	}
	outside := regexp.MustCompile(`(src|href)="[^/#"]|url\(|@import|https?://[a-z]`)
	inline := regexp.MustCompile(`<style|<script>| style=| on[a-z]+="|\beval\(|new Function`)
	all := 0
	files, _ := pageFiles()
	for name, file := range files {
		all += len(file.packed)
		got := fetch(h, name, "Accept-Encoding", "gzip, br")
		if got.Code != 200 || got.Header().Get("Content-Encoding") != "gzip" ||
			!bytes.Equal(got.Body.Bytes(), file.packed) || got.Header().Get("Content-Type") != file.kind {
			t.Errorf("%s: %d %v", name, got.Code, got.Header())
		}
		if strings.Contains(name, "/uplot/") || path.Ext(name) == ".svg" || path.Ext(name) == ".png" {
			continue
		}
		if found := outside.Find(file.plain); found != nil {
			t.Errorf("%s asks elsewhere: %s", name, found)
		}
		if found := inline.Find(file.plain); found != nil {
			t.Errorf("%s has %s, which its own policy forbids", name, found)
		}
	}
	if most := 150 << 10; all > most || all < 20<<10 {
		t.Errorf("the page has %d bytes with gzip, of %d", all, most)
	}
	for _, path := range []string{"/page/", "/page/nothing.js", "/page/../server.go", "/page/uplot/LICENSE", "/page/uplot"} {
		if w := fetch(h, path); w.Code != 404 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// The page loads each of its files, and each file that it names exists.
func TestPageIsWhole(t *testing.T) {
	files, _ := pageFiles()
	named := map[string]bool{"/page/index.html": true, "/page/manual.css": true} // the second is of the manual
	for name, file := range files {
		if strings.Contains(name, "/uplot/") {
			continue
		}
		for _, m := range regexp.MustCompile(`["'](/page/[^"']+)["']|from '\.(/[^']+)'`).
			FindAllSubmatch(file.plain, -1) {
			other := string(m[1])
			if other == "" {
				other = "/page" + string(m[2])
			}
			named[other] = true
			if _, ok := files[other]; !ok {
				t.Errorf("%s names %s, which is not there", name, other)
			}
		}
	}
	_ = fs.WalkDir(pageSource, "page", func(name string, e fs.DirEntry, _ error) error {
		if !e.IsDir() && !named["/"+name] && path.Ext(name) != "" {
			t.Errorf("nothing names %s", name)
		}
		return nil
	})
}
