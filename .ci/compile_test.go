package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain is this program itself where Go runs it in place of a compiler.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "compile" {
		main()
	}
	os.Exit(m.Run())
}

// What a package's imports export decides whether it is compiled again, and programs are always
// those of the sources as they are.
func TestOnlyExportsCount(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, tools := t.TempDir(), t.TempDir()
	tool, program := filepath.Join(tools, "compile"), filepath.Join(tools, "program")
	if err := os.Symlink(self, tool); err != nil {
		t.Fatal(err)
	}
	write := func(name, format string, args ...any) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		// Go's cache has nothing of a run before this one, whose folder was another.
		if err := os.WriteFile(path, fmt.Appendf(nil, format+"\n// %s\n", append(args, dir)...), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	build := func(what string) {
		t.Helper()
		run := exec.Command("go", "build", "-toolexec="+tool, "-o", program, ".")
		run.Dir, run.Env = dir, append(os.Environ(), "GOWORK=off")
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", what, err, out)
		}
	}
	objects, name := filepath.Join(tools, "objects"), sha256.Sum256([]byte(module+"/b"))
	before := ""
	check := func(what, want string, compiled bool) {
		t.Helper()
		build(what)
		if got, err := exec.Command(program).CombinedOutput(); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s: the program says %q (%v), expected %q", what, got, err, want)
		}
		kept, err := os.ReadDir(filepath.Join(objects, fmt.Sprintf("%x", name[:8])))
		if err != nil {
			t.Fatal(err)
		}
		now := fmt.Sprint(kept)
		if got := now != before; got != compiled {
			t.Errorf("%s: package b is compiled: %v, expected %v", what, got, compiled)
		}
		before = now
	}
	a := func(called, inlined int) {
		write("a/a.go", "package a\n\n//go:noinline\nfunc Called() int { return %d }\n\nfunc Inlined() int { return %d }", called, inlined)
	}
	write("go.mod", "module %s\n\ngo 1.26", module)
	write("main.go", "package main\n\nimport %q\n\nfunc main() { b.Print() }", module+"/b")
	write("b/b.go", `package b

import (
	_ "embed"

	%q
)

//go:embed text
var text string

func Print() { println(a.Called(), a.Inlined(), text[:1]) }`, module+"/a")
	write("b/text", "x")
	a(1, 2)
	check("at first", "1 2 x", true)
	a(3, 2)
	check("after the change of a body", "3 2 x", false)
	a(3, 4)
	check("after the change of a body that is inlined", "3 4 x", true)
	write("b/text", "y")
	check("after the change of an embedded file", "3 4 y", true)
	a(5, 6)
	check("after a fourth, for which one is forgotten", "5 6 y", true)
	a(5, 4)
	check("as before, but for a body", "5 4 y", false)
	if err := os.RemoveAll(objects); err != nil {
		t.Fatal(err)
	}
	build("without a change")
	if _, err := os.Stat(objects); err == nil {
		t.Error("what was not compiled is not in Go's cache")
	}
}
