package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestOSSFuzz: OSS-Fuzz builds exactly the fuzz targets of the tree. Its builder finds the file of
// a target by the target's name alone, in the package's folder and those below, so no other file
// there may contain that name.
func TestOSSFuzz(t *testing.T) {
	atTop(t)
	project, err := os.ReadFile(".oss-fuzz/project.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^(primary_contact: "\S+@\S+"|disabled: true)$`).Match(project) {
		t.Error("project.yaml: expected an address as primary_contact, or disabled, which OSS-Fuzz does not check further")
	}
	script, err := os.ReadFile(".oss-fuzz/build.sh")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(script), "<<'END'\n")
	list, _, _ = strings.Cut(list, "\nEND\n")
	var listed []string
	for line := range strings.Lines(list) {
		words := strings.Fields(line)
		if len(words) < 2 || len(words) > 3 {
			t.Fatalf("%q, expected a package, a target and perhaps a dictionary", line)
		}
		listed = append(listed, words[0]+" "+words[1])
		if len(words) == 3 {
			checkDictionary(t, ".oss-fuzz/"+words[2]+".dict")
		}
	}

	files := map[string]string{}
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) == ".go" {
			text, err := os.ReadFile(path)
			files[filepath.ToSlash(path)] = string(text)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for file, text := range files {
		folder := filepath.ToSlash(filepath.Dir(file))
		for _, m := range regexp.MustCompile(`(?m)^func (Fuzz\w+)\(\w+ \*testing\.F\)`).
			FindAllStringSubmatch(text, -1) {
			found = append(found, folder+" "+m[1])
			for other, text := range files {
				if other != file && strings.HasPrefix(other, folder+"/") && strings.Contains(text, m[1]) {
					t.Errorf("%s has the name of %s, of %s", other, m[1], file)
				}
			}
		}
	}
	slices.Sort(found)
	if !slices.Equal(listed, found) {
		t.Errorf("OSS-Fuzz builds\n%s\nexpected\n%s", strings.Join(listed, "\n"), strings.Join(found, "\n"))
	}
}

// checkDictionary refuses lines that libFuzzer would refuse: each must be a comment or a word in
// quotes, with \\, \" and \xAB as the only escapes.
func checkDictionary(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !regexp.MustCompile(`^(#.*|"([^"\\]|\\[\\"]|\\x[0-9a-fA-F]{2})+")?\n$`).MatchString(line) {
			t.Errorf("%s: %q", name, line)
		}
	}
}
