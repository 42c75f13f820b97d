package operate

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
)

// The page is for people: it reads /v1/watch and uses the same paths as shivactl. Its files are
// sent to any client, as they reveal nothing about the server; the data that it shows takes the
// rights for the paths that it uses.
//
//go:embed page
var pageSource embed.FS

// pagePolicy lets the page load nothing from elsewhere and run no script but the files of this
// door, whatever names and texts it shows; no site may embed it in a frame.
const pagePolicy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// A pageFile is a file in the form in which it is sent.
type pageFile struct {
	kind          string // Content-Type
	plain, packed []byte // packed with gzip
}

// pageFiles are all files by their paths below the door, and the tag of this edition, from which an
// open page learns that the server has another one.
var pageFiles = sync.OnceValues(func() (files map[string]pageFile, tag string) {
	kinds := map[string]string{
		".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
		".svg": "image/svg+xml; charset=utf-8", ".png": "image/png",
	}
	files = map[string]pageFile{}
	sum := sha256.New()
	_ = fs.WalkDir(pageSource, "page", func(name string, entry fs.DirEntry, _ error) error {
		kind := kinds[path.Ext(name)]
		if entry.IsDir() || kind == "" { // such as a licence
			return nil
		}
		plain, err := pageSource.ReadFile(name)
		if err != nil {
			panic(err) // cannot happen: the file is embedded
		}
		var packed bytes.Buffer
		w, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // cannot fail: a valid level
		w.Write(plain)
		w.Close()
		fmt.Fprintf(sum, "%s %d\n%s", name, len(plain), plain)
		files["/"+name] = pageFile{kind, plain, packed.Bytes()}
		return nil
	})
	return files, fmt.Sprintf("%x", sum.Sum(nil)[:8])
})

// pageAt answers with a file of the page.
func pageAt(w http.ResponseWriter, r *http.Request, name string) {
	files, tag := pageFiles()
	file, ok := files[name]
	if !ok {
		notFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", file.kind)
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache") // browsers revalidate it each time, and seldom get it again
	h.Add("Vary", "Accept, Accept-Encoding")
	text := file.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		text, tag = file.packed, tag+"-gzip"
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("ETag", `"`+tag+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
}

func servePage(w http.ResponseWriter, r *http.Request) { pageAt(w, r, r.URL.Path) }

// pageOr serves the page to browsers, and a list of paths to programs.
func pageOr(list http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if (r.Method == http.MethodGet || r.Method == http.MethodHead) && strings.Contains(r.Header.Get("Accept"), "text/html") {
			pageAt(w, r, "/page/index.html")
			return
		}
		list.ServeHTTP(w, r)
	}
}
