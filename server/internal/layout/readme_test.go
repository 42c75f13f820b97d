package layout

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	fence   = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	link    = regexp.MustCompile(`\]\(([^)\s#]*)(#[^)\s]*)?\)`)
	target  = regexp.MustCompile("`make ([a-z0-9][a-z0-9 -]*)[^`]*`")
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// Everything that the documents refer to exists: files, headings, and targets of make. TestE2EPages
// runs their commands. README is for visitors, who read no more than 150 lines.
func TestDocuments(t *testing.T) {
	atTop(t)
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range documents(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if lines := bytes.Count(text, []byte("\n")); name == "README.md" && lines > 150 {
			t.Errorf("README.md has %d lines", lines)
		}
		prose := fence.ReplaceAll(text, nil)
		for _, found := range link.FindAllSubmatch(prose, -1) {
			path, anchor := string(found[1]), strings.TrimPrefix(string(found[2]), "#")
			if strings.Contains(path, ":") {
				continue // another site
			}
			to := name
			if path != "" {
				to = filepath.Join(filepath.Dir(name), path)
			}
			if info, err := os.Stat(to); err == nil && info.IsDir() && anchor == "" {
				continue
			}
			if pointed, err := os.ReadFile(to); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if anchor != "" && !anchors(pointed)[anchor] {
				t.Errorf("%s: %s has no heading #%s", name, to, anchor)
			}
		}
		for _, found := range target.FindAllSubmatch(prose, -1) {
			for _, word := range strings.Fields(string(found[1])) {
				if !bytes.Contains(makefile, []byte("\n"+word+":")) {
					t.Errorf("%s: there is no make %s", name, word)
				}
			}
		}
	}
}

// The commands of bench/METHODS.md take minutes, so TestE2EPages does not run them; but their
// targets of make, programs and flags exist.
func TestBenchCommands(t *testing.T) {
	atTop(t)
	page, err := os.ReadFile("bench/METHODS.md")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile(`(?m)^    (make|go run) (\S+)(.*)$`).FindAllStringSubmatch(string(page), -1)
	if len(commands) < 20 {
		t.Fatalf("%d commands", len(commands))
	}
	flags := regexp.MustCompile(`(?:^|[ "])-([a-z]+)`)
	for _, command := range commands {
		what, arguments := command[2], strings.Split(command[3], "#")[0]
		if strings.Contains(what, "@") {
			continue // a program of another module
		}
		programs := []string{what}
		if command[1] == "make" {
			recipe := regexp.MustCompile(`(?m)^` + what + `:.*\n((?:\t.*\n)+)`).FindSubmatch(makefile)
			if recipe == nil {
				t.Errorf("%q: there is no such target", command[0])
				continue
			}
			programs = nil
			for _, found := range regexp.MustCompile(`(?:go run|\$\(PYTHON\)) ((?:\./|bench/)\S+)`).
				FindAllSubmatch(recipe[1], -1) {
				programs = append(programs, string(found[1]))
			}
		}
		for _, flag := range flags.FindAllStringSubmatch(arguments, -1) {
			if !slices.ContainsFunc(programs, func(program string) bool { return declares(t, program, flag[1]) }) {
				t.Errorf("%q: %v has no flag -%s", command[0], programs, flag[1])
			}
		}
	}
}

// declares reports whether a program of the tree has a flag.
func declares(t *testing.T, program, flag string) bool {
	t.Helper()
	pattern, declaration := filepath.Join(program, "*.go"), regexp.MustCompile(`\w+(?:Var)?\((?:&[\w.]+, )?"`+flag+`", `)
	if filepath.Ext(program) == ".py" {
		pattern, declaration = filepath.FromSlash(program), regexp.MustCompile(`add_argument\("-`+flag+`", `)
	}
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Errorf("there is no %s: %v", program, err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && declaration.Match(text)
	})
}

// documents returns the Markdown pages.
func documents(t *testing.T) (names []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		base := filepath.Base(path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(base, ".") && base != "." && base != ".github",
			path == "bin": // what an example has installed is not ours
			return filepath.SkipDir
		case filepath.Ext(path) == ".md":
			names = append(names, path)
		}
		return nil
	})
	if err != nil || len(names) < 10 {
		t.Fatalf("%d documents, %v", len(names), err)
	}
	return names
}

// anchors returns the names by which links refer to a page's headings.
func anchors(text []byte) map[string]bool {
	names := map[string]bool{}
	for _, found := range heading.FindAllSubmatch(fence.ReplaceAll(text, nil), -1) {
		name := regexp.MustCompile(`[^\w -]`).ReplaceAllString(strings.ToLower(string(found[1])), "")
		names[strings.ReplaceAll(name, " ", "-")] = true
	}
	return names
}

// Each example has a row in the gallery, with a picture of at most 60 KiB that is also on its page.
// That is a page of at most 80 lines in its folder, or the page of the package that it uses.
func TestGallery(t *testing.T) {
	atTop(t)
	gallery, err := os.ReadFile("examples/README.md")
	if err != nil {
		t.Fatal(err)
	}
	type row struct{ picture, page string }
	rows := make(map[string]row) // by folder
	for _, found := range regexp.MustCompile(`(?m)^\| <img src="([^/"]+)/([^"]+)" .* alt="[^"]+"> \| [^|]+ \| \[([^\]]+)\]\(([^)#]+)[^)]*\): `).
		FindAllStringSubmatch(string(gallery), -1) {
		if found[1] == found[3] {
			rows[found[1]] = row{filepath.Join("examples", found[1], found[2]), filepath.Join("examples", found[4])}
		}
	}
	entries, err := os.ReadDir("examples")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		dir := filepath.Join("examples", e.Name())
		if made, _ := filepath.Glob(filepath.Join(dir, "*")); !e.IsDir() || e.Name() == "internal" || len(made) == 0 {
			continue
		}
		shown := rows[e.Name()]
		page, err := os.ReadFile(shown.page)
		if lines := bytes.Count(page, []byte("\n")); err != nil || filepath.Dir(shown.page) == dir && lines > 80 {
			t.Errorf("%s: a page of %d lines, expected 1 to 80 (%v)", dir, lines, err)
		}
		link, _ := filepath.Rel(filepath.Dir(shown.page), shown.picture)
		if info, err := os.Stat(shown.picture); err != nil || info.Size() > 60<<10 ||
			!bytes.Contains(page, []byte("]("+link+")")) {
			t.Errorf("%s: expected a picture of at most 60 KiB on its page and in examples/README.md, got %q (%v)",
				dir, shown.picture, err)
		}
	}
}
