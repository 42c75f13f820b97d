package main

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

var byName = flag.String("by-name", "", "the compiler that .ci/by-name built, instead of Go's own")

// TestMain runs the program itself if Go has started this binary in place of a compiler.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "compile" {
		main()
	}
	os.Exit(m.Run())
}

// A rig is a module that is built with this program. Its packages are a; b, which imports a; and
// main.
type rig struct {
	*testing.T
	dir, tool, program, objects string
	before                      string
}

func newRig(t *testing.T) *rig {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, tools := t.TempDir(), t.TempDir()
	r := &rig{T: t, dir: dir, tool: filepath.Join(tools, "compile"), program: filepath.Join(tools, "program"), objects: filepath.Join(tools, "objects")}
	if err := os.Symlink(self, r.tool); err != nil {
		t.Fatal(err)
	}
	if *byName != "" {
		if err := os.Symlink(*byName, filepath.Join(tools, "by-name-"+runtime.Version())); err != nil {
			t.Fatal(err)
		}
	}
	r.write("go.mod", "module %s\n\ngo 1.26", module)
	r.write("main.go", "package main\n\nimport %q\n\nfunc main() { b.Print() }", module+"/b")
	return r
}

func (r *rig) write(name, format string, args ...any) {
	r.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		r.Fatal(err)
	}
	// The folder's name in the source keeps Go's cache from using results of an earlier run.
	if err := os.WriteFile(path, fmt.Appendf(nil, format+"\n// %s\n", append(args, r.dir)...), 0o666); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) build(what string) {
	r.Helper()
	run := exec.Command("go", "build", "-toolexec="+r.tool, "-o", r.program, ".")
	run.Dir, run.Env = r.dir, append(os.Environ(), "GOWORK=off")
	if out, err := run.CombinedOutput(); err != nil {
		r.Fatalf("%s: %v\n%s", what, err, out)
	}
}

// check builds the program, and checks its output and whether package b was compiled.
func (r *rig) check(what, want string, compiled bool) {
	r.Helper()
	r.build(what)
	if got, err := exec.Command(r.program).CombinedOutput(); err != nil || strings.TrimSpace(string(got)) != want {
		r.Errorf("%s: the program says %q (%v), expected %q", what, got, err, want)
	}
	name := sha256.Sum256([]byte(module + "/b"))
	kept, err := os.ReadDir(filepath.Join(r.objects, fmt.Sprintf("%x", name[:8])))
	if err != nil {
		r.Fatal(err)
	}
	now := fmt.Sprint(kept)
	if got := now != r.before; got != compiled {
		r.Errorf("%s: package b is compiled: %v, expected %v", what, got, compiled)
	}
	r.before = now
}

// A package is recompiled if the exports of its imports change, and programs always correspond to
// the current sources.
func TestOnlyExportsCount(t *testing.T) {
	r := newRig(t)
	a := func(called, inlined int) {
		r.write("a/a.go", "package a\n\n//go:noinline\nfunc Called() int { return %d }\n\nfunc Inlined() int { return %d }", called, inlined)
	}
	r.write("b/b.go", `package b

import (
	_ "embed"

	%q
)

//go:embed text
var text string

func Print() { println(a.Called(), a.Inlined(), text[:1]) }`, module+"/a")
	r.write("b/text", "x")
	a(1, 2)
	r.check("at first", "1 2 x", true)
	a(3, 2)
	r.check("after the change of a body", "3 2 x", false)
	a(3, 4)
	r.check("after the change of a body that is inlined", "3 4 x", true)
	r.write("b/text", "y")
	r.check("after the change of an embedded file", "3 4 y", true)
	a(5, 6)
	r.check("after a fourth, for which one is forgotten", "5 6 y", true)
	a(5, 4)
	r.check("as before, but for a body", "5 4 y", false)
	if err := os.RemoveAll(r.objects); err != nil {
		t.Fatal(err)
	}
	r.build("without a change")
	if _, err := os.Stat(r.objects); err == nil {
		t.Error("what was not compiled is not in Go's cache")
	}
}

// A change of the lines of declarations causes no recompilation; a change of what they declare
// does, even if nothing else has changed.
func TestLinesDoNotCount(t *testing.T) {
	r := newRig(t)
	r.write("b/b.go", `package b

import %q

type holder struct{ a.Record }

func Print() {
	n := 1
	var h holder
	println(a.Constant, a.Product, a.Inlined(), a.Generic(1), a.Of[int]{2}.Twice(), a.Called(&n), a.Text(), len(h.Name), a.Held != nil, h.Size())
}`, module+"/a")
	source := `package a

const Constant = 100

const factor = 2

const Product = 10 * factor

type Record struct {
	Name string
}

func (r Record) Size() int {
	return size(r)
}

func size(Record) int { return 8 }

func Inlined() int {
	return 300
}

func Generic[T any](x T) T {
	for range 400 {
		defer func() {}()
	}
	return x
}

type Of[T ~int] struct{ X T }

func (o Of[T]) Twice() T {
	defer func() {}()
	return o.X * 2
}

var Held = held()

func held() *int { return new(int) }

//go:noinline
func Called(p *int) int {
	return *p + 600
}

//go:noinline
func Text() string {
	return text(1)
}

//go:noinline
func text(n int) string {
	return "text"
}

var kept *int
`
	const says = "100 20 300 1 4 601 text 0 true 8"
	moved := ""
	edit := func(what, old, new, want string, compiled bool) {
		t.Helper()
		if strings.Count(source, old) != 1 {
			t.Fatalf("%s: %q is %d times in the source", what, old, strings.Count(source, old))
		}
		changed := strings.Replace(source, old, new, 1)
		r.write("a/a.go", "%s", changed)
		r.check(what, want, compiled)
		// The old declarations, one line further down each time.
		moved += "\n"
		r.write("a/a.go", "%s", strings.Replace(source, "package a\n", "package a\n"+moved, 1))
		r.check("back from: "+what, says, false)
	}
	r.write("a/a.go", "%s", source)
	r.check("at first", says, true)
	edit("a comment", "const factor", "// A comment.\nconst factor", says, false)
	edit("lines in a body", "return *p + 600", "if *p == 0 {\n\t\tpanic(1)\n\t}\n\treturn *p + 600", says, false)
	edit("another body", "return text(1)", "return text(2) + text(3)", strings.Replace(says, "text", "texttext", 1), false)
	edit("a variable that nobody else sees", "var kept *int", "var kept *int\n\nvar later int", says, false)
	edit("a parameter that nobody else sees", "func text(n int) string {", "func text(\n\tn int,\n) string {", says, false)
	edit("an exported constant, as far as lines could move", "= 100", "= 103", strings.Replace(says, "100", "103", 1), true)
	edit("a constant that another is made of", "factor = 2", "factor = 3", strings.Replace(says, "20", "30", 1), true)
	edit("a field", "Name string", "Name []byte", says, true)
	edit("another field", "Name string", "Name string\n\tAge int", says, true)
	edit("a variable's type, by that of a function", "func held() *int { return new(int) }", "func held() *string { return new(string) }", says, true)
	edit("a body that is inlined", "return 300", "return 303", strings.Replace(says, "300", "303", 1), true)
	edit("a function that a body calls which is inlined", "return 8", "return 9", strings.Replace(says, "8", "9", 1), true)
	edit("a generic body", "range 400", "range 403", says, true)
	edit("a generic method", "o.X * 2", "o.X * 3", strings.Replace(says, "4 ", "6 ", 1), true)
	edit("a pointer that is kept", "return *p + 600", "kept = p\n\treturn *p + 600", says, true)
	edit("a method", "func size(", "func (Record) Len() int { return 0 }\n\nfunc size(", says, true)
	edit("a function before others, whose numbers change", "func size(", "func also(n int) int {\n\tdefer func() { n++ }()\n\treturn n\n}\n\nfunc size(", says, *byName == "")
	edit("a function that is not to be inlined any more", "func Inlined", "//go:noinline\nfunc Inlined", says, true)
	r.write("a/a.s", "")
	r.check("assembly", says, true)
	edit("a comment beside assembly", "const factor", "// A comment.\nconst factor", says, false)
	edit("a constant beside assembly", "= 100", "= 103", strings.Replace(says, "100", "103", 1), true)
}
