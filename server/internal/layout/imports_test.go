package layout

import (
	"errors"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// imports has the direction of dependencies, in the notation of Go's own ("a < b" means b may
// import a):
//
//	shiva/tensor < shiva, scheduler
//	scheduler < containers
//	shiva, containers < server < cmd
//
// Data and work know no network; the packages that face a network are built around them; server
// assembles the packages, and cmd, examples and bench use only what any user of the module could.
// The load generator belongs to bench, and shivactl imports it.
//
// One row per package: the packages that it may import of ours, and of other modules (a module
// stands for its packages); after a bar, those that its tests may import as well. A row must not
// allow more than is imported. The standard library is allowed, except for the bans below. Before
// adding to a row to make the tests pass, ask which way the arrow then points: usually the code
// belongs in another package.
const imports = `
shiva/tensor:               github.com/x448/float16 golang.org/x/sys
shiva/jsonscan:
shiva/unixsocket:
shiva/token:
shiva:                      shiva/token shiva/jsonscan shiva/tensor shiva/unixsocket shiva/backoff
shiva/nested:               shiva/tensor
shiva/jsontensor:           shiva shiva/jsonscan shiva/tensor shiva/plural
shiva/nearest:
shiva/plural:
shiva/backoff:
server/picture:
shiva/certtest:
shiva/shivatest:            shiva shiva/tensor
shiva/budgettest:
shiva/hosttest:

scheduler:                  shiva/tensor scheduler/inorder scheduler/setting shiva/plural
scheduler/naming:           golang.org/x/text
scheduler/inorder:
scheduler/setting:
scheduler/schedtest:        scheduler shiva/tensor
scheduler/rounds:
scheduler/sim:              scheduler scheduler/rounds scheduler/schedtest shiva/tensor

containers/zmtp:            shiva/tensor github.com/go-zeromq/zmq4
containers/internal/wire:   shiva/jsonscan shiva/tensor
containers/internal/arena:           shiva/tensor golang.org/x/sys
containers/internal/adapter:         scheduler shiva shiva/jsonscan shiva/tensor
containers/internal/subset:
containers/container:       containers/internal/subset scheduler/rounds shiva/token containers/internal/arena containers/zmtp containers/internal/wire shiva/jsonscan shiva/tensor go.opentelemetry.io/otel shiva/backoff shiva/plural | containers scheduler
containers:                 containers/internal/adapter containers/internal/arena containers/zmtp containers/internal/wire scheduler scheduler/naming shiva/jsonscan shiva/tensor shiva/unixsocket github.com/pierrec/lz4/v4 golang.org/x/sys scheduler/setting shiva/backoff shiva/plural | containers/container github.com/go-zeromq/zmq4
containers/containertest:   containers/internal/adapter containers/zmtp containers/internal/wire scheduler shiva/jsonscan shiva/shivatest shiva/tensor

server/internal/wake:
server/internal/fault:      scheduler server/internal/metrics shiva
cmd/shivad/internal/logqueue:
server/internal/unfinished:  server/internal/access scheduler scheduler/setting shiva/tensor shiva/plural
server/admin:               scheduler/setting
server/manual:
server/manual/manualtest:
server/internal/access:     scheduler scheduler/naming scheduler/setting server/admin server/internal/fault shiva/tensor
server/internal/listen:     scheduler scheduler/setting server/internal/access server/internal/metrics server/internal/capacity shiva/backoff shiva/unixsocket shiva/plural
server/internal/jsontest:   shiva/budgettest
server/internal/clock:      scheduler golang.org/x/sys
server/internal/trace:      server/internal/wake scheduler google.golang.org/protobuf shiva/backoff
server/internal/trace/tracetest: go.opentelemetry.io/proto/slim/otlp google.golang.org/protobuf
server/internal/parameter:  server/internal/trace scheduler shiva/jsonscan scheduler/setting
server/config:              server/admin server/internal/pipelines server/internal/capacity server/internal/trace server/internal/parameter server/internal/access scheduler scheduler/naming shiva/nearest server/internal/listen shiva/unixsocket github.com/pelletier/go-toml/v2 containers scheduler/setting server/state golang.org/x/sys shiva/plural
server/admin/admintest:     server/admin server/internal/access server/internal/operate
server/internal/capacity:
server/build:
server/internal/layout:
server/internal/metrics:             scheduler github.com/prometheus/client_golang
server/selection:           shiva/nearest shiva/tensor shiva/plural | github.com/x448/float16
server/internal/apps:       server/admin server/internal/composite server/internal/fault server/internal/wake shiva/backoff server/internal/gate server/internal/parameter server/internal/metrics server/selection server/state scheduler scheduler/naming scheduler/setting shiva/jsontensor shiva/jsonscan shiva/tensor shiva/plural | github.com/anishathalye/porcupine
server/internal/composite:  server/internal/gate server/internal/wake server/state scheduler scheduler/inorder shiva/nearest
server/internal/pipelines:  shiva/nested server/admin server/internal/composite server/internal/fault server/internal/gate server/internal/metrics server/internal/trace server/internal/parameter server/picture server/state scheduler scheduler/naming scheduler/setting shiva/nearest shiva/tensor shiva/plural | server/internal/apps
server/internal/latest:     scheduler shiva/tensor
server/internal/cache:      server/internal/metrics scheduler shiva/tensor github.com/maypok86/otter/v2 github.com/zeebo/xxh3
server/state:               server/internal/wake github.com/redis/go-redis/v9 go.etcd.io/bbolt scheduler/setting shiva/backoff
server/state/statetest:     server/state shiva/budgettest shiva/hosttest github.com/redis/go-redis/v9
server/internal/gate:        shiva/nested server/internal/fault server/internal/capacity server/internal/unfinished server/internal/trace server/internal/access server/internal/cache server/internal/latest shiva/nearest server/picture server/internal/parameter server/internal/metrics scheduler scheduler/setting shiva shiva/jsontensor shiva/jsonscan shiva/tensor shiva/plural
server/internal/regions:     server/internal/fault server/internal/capacity server/internal/access server/internal/parameter scheduler shiva/tensor golang.org/x/sys
server/internal/predict:     shiva/nested server/internal/fault server/internal/access server/internal/listen server/internal/gate server/internal/parameter server/internal/regions server/config server/internal/metrics scheduler shiva shiva/jsontensor shiva/jsonscan shiva/tensor
server/internal/doortest:    server/config server/internal/apps server/internal/gate server/internal/listen server/internal/predict server/internal/regions server/internal/metrics server/state scheduler scheduler/schedtest shiva/budgettest shiva/tensor
server/internal/modelfiles: server/internal/fault server/internal/wake shiva/backoff server/config scheduler/naming golang.org/x/sys
server/doctor:              containers server/admin server/config server/internal/capacity server/internal/listen server/internal/modelfiles server/state shiva/unixsocket shiva/plural golang.org/x/sys
server/internal/operate:    server/internal/pipelines server/internal/modelfiles containers scheduler scheduler/setting server/admin server/config server/internal/access server/internal/apps server/internal/composite server/internal/fault server/internal/gate server/internal/listen server/internal/capacity server/internal/metrics server/internal/parameter server/internal/predict server/internal/regions server/internal/unfinished server/internal/wake shiva/backoff server/selection server/state shiva/jsonscan shiva/jsontensor shiva/tensor shiva/unixsocket server/manual github.com/yuin/goldmark shiva/plural
server/internal/tcp:                  server/internal/fault server/internal/capacity server/internal/unfinished server/internal/wake server/internal/trace server/internal/access server/internal/listen server/internal/gate server/internal/parameter server/internal/regions server/internal/metrics scheduler scheduler/setting shiva shiva/jsonscan shiva/tensor github.com/panjf2000/gnet/v2 golang.org/x/sys shiva/plural | server/internal/apps shiva/unixsocket
server/internal/rest:                 shiva/nested server/internal/fault server/internal/unfinished server/internal/trace server/internal/access server/internal/listen server/internal/gate server/internal/parameter server/internal/predict server/internal/regions server/internal/metrics scheduler shiva/jsontensor shiva/jsonscan shiva/tensor shiva/plural | server/internal/apps shiva/unixsocket
server/grpc/pb:             google.golang.org/grpc google.golang.org/protobuf | github.com/bufbuild/protocompile
server/internal/grpc/wire:   server/internal/fault server/internal/unfinished server/internal/gate scheduler scheduler/setting shiva/tensor google.golang.org/grpc google.golang.org/protobuf
server/internal/grpc:                 server/internal/fault server/internal/unfinished shiva/backoff server/internal/trace server/internal/access server/internal/listen server/internal/grpc/wire server/grpc/pb server/internal/gate server/internal/parameter server/internal/predict server/internal/regions server/internal/metrics scheduler scheduler/naming shiva/tensor golang.org/x/net google.golang.org/genproto google.golang.org/grpc google.golang.org/protobuf shiva/plural | shiva/unixsocket
server/internal/frigate:              server/internal/fault server/internal/unfinished server/internal/access server/internal/listen server/internal/gate server/internal/predict server/internal/metrics containers/zmtp scheduler shiva/jsonscan shiva/tensor shiva/plural | server/config shiva/unixsocket
server:                      server/internal/modelfiles server/internal/capacity server/internal/unfinished server/internal/wake shiva/backoff server/internal/frigate server/internal/trace server/internal/operate server/internal/access server/internal/listen server/internal/apps server/internal/clock server/internal/gate server/internal/latest server/internal/parameter server/internal/predict server/internal/regions server/internal/tcp server/internal/rest server/internal/grpc server/admin server/config server/internal/metrics server/build containers scheduler scheduler/setting shiva/jsonscan shiva/tensor shiva/unixsocket | golang.org/x/sys containers/zmtp containers/container server/grpc/pb google.golang.org/genproto google.golang.org/grpc google.golang.org/protobuf shiva/token server/internal/fault server/selection server/state shiva

server/e2e:                 | containers containers/container shiva shiva/jsonscan shiva/tensor golang.org/x/sys google.golang.org/grpc google.golang.org/protobuf

cmd/shivad:                 shiva/backoff shiva/nearest server cmd/shivad/internal/logqueue server/config server/doctor server/build server/manual | server/admin shiva/tensor
cmd/internal/unit:
cmd/shivactl:               cmd/internal/unit shiva/nested server/picture shiva/backoff shiva/nearest shiva/token bench/load shiva shiva/jsontensor shiva/jsonscan shiva/tensor shiva/unixsocket server/admin server/build github.com/pelletier/go-toml/v2 github.com/spf13/cobra github.com/spf13/pflag golang.org/x/image golang.org/x/term google.golang.org/protobuf server/manual shiva/plural | golang.org/x/sys server/config

examples/client:             shiva shiva/tensor
examples/client/stream:      shiva shiva/tensor
examples/digits:
examples/digits/container:  examples/digits containers/container shiva/tensor | containers scheduler
examples/digits/run:        examples/internal/process
examples/internal/process:
examples/selection:         examples/digits
examples/selection/container: examples/digits examples/selection containers/container shiva/tensor
examples/selection/run:     examples/internal/process examples/selection shiva shiva/tensor gonum.org/v1/plot

bench/internal/declare:     shiva/tensor
bench/internal/direct:      containers/zmtp shiva/tensor
bench/internal/hostile:     bench/load containers/containertest server/grpc/pb shiva shiva/tensor golang.org/x/net golang.org/x/sys google.golang.org/protobuf
bench/internal/process:     golang.org/x/sys
bench/internal/figure:
bench/internal/ratio:
bench/internal/table:
bench/load:                 shiva shiva/jsonscan shiva/tensor golang.org/x/net golang.org/x/sys google.golang.org/protobuf | server/grpc/pb
bench/chart:                bench/internal/figure gonum.org/v1/plot
bench/echo:                 github.com/panjf2000/gnet/v2
bench/door:                 bench/internal/declare server server/config scheduler shiva/tensor
bench/cores:                bench/internal/process
bench/noop:                 bench/internal/declare containers/container shiva/tensor
bench/hostile:              bench/internal/hostile
bench/sleeper:              bench/internal/declare containers/container shiva/tensor golang.org/x/sys
bench/alarm:                shiva
bench/goodput:              bench/internal/figure bench/internal/process bench/internal/ratio bench/load scheduler/sim shiva shiva/tensor
bench/sim:                  scheduler/sim
bench/run:                  bench/load bench/internal/direct bench/internal/hostile bench/internal/process bench/internal/ratio bench/internal/table shiva shiva/tensor
bench/frames:               bench/load bench/internal/figure bench/internal/process bench/internal/ratio bench/internal/table shiva/tensor
bench/callers:              bench/load bench/internal/figure bench/internal/process bench/internal/ratio shiva/tensor
bench/streams:              bench/load bench/internal/process bench/internal/ratio bench/internal/table shiva shiva/tensor
bench/newest:                bench/internal/process bench/internal/ratio bench/internal/table shiva shiva/tensor
bench/pipelines:             bench/internal/process bench/internal/ratio bench/internal/table bench/load shiva/tensor
bench/soak:                 bench/load bench/internal/process containers/container scheduler shiva shiva/tensor
bench/reliability:          bench/internal/process
`

// bans are packages of the standard library that a package must not import, with the reason.
var bans = map[string]map[string]string{
	"shiva/tensor": {"net": "data has no network", "time": "data has no clock"},
	"scheduler":    {"net": "the scheduler has no sockets", "net/http": "the scheduler has no sockets", "os": "the scheduler has no files"},
}

const module = "github.com/shivad/shivad"

func TestImportDirections(t *testing.T) {
	atTop(t)
	rows, tests := map[string][]string{}, map[string][]string{}
	for line := range strings.Lines(imports) {
		if name, row, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			allowed, more, _ := strings.Cut(row, "|")
			rows[name], tests[name] = strings.Fields(allowed), strings.Fields(more)
		}
	}
	for name, p := range packages(t) {
		allowed, ok := rows[name]
		if !ok {
			t.Errorf("%s has no row in the table of imports", name)
			continue
		}
		delete(rows, name)
		for _, imp := range p.Imports {
			if reason, banned := bans[name][imp]; banned {
				t.Errorf("%s imports %s: %s", name, imp, reason)
			}
			if imp == "testing" && !isDouble(name) {
				t.Errorf("%s imports testing: that is for tests and their doubles", name)
			}
			if !covers(allowed, imp) {
				t.Errorf("%s imports %s: not in its row of the table of imports", name, imp)
			}
		}
		tested := slices.Concat(p.TestImports, p.XTestImports)
		for _, a := range allowed {
			if !slices.ContainsFunc(p.Imports, func(imp string) bool { return names(a, imp) }) {
				t.Errorf("the table of imports allows %s to import %s, which it does not", name, a)
			}
		}
		for _, a := range tests[name] {
			if isDouble(a) || slices.Contains(allowed, a) ||
				!slices.ContainsFunc(tested, func(imp string) bool { return names(a, imp) }) {
				t.Errorf("the table of imports allows tests of %s to import %s, which they do not, or may anyway", name, a)
			}
		}
		// Tests of any package may use test doubles.
		allowed = slices.Concat(allowed, tests[name], []string{name})
		for _, imp := range tested {
			if !covers(allowed, imp) && !isDouble(imp) {
				t.Errorf("a test of %s imports %s: not in its row of the table of imports", name, imp)
			}
		}
	}
	for name := range rows {
		t.Errorf("%s has a row in the table of imports, and does not exist", name)
	}
}

// shivactl is also for machines on which no server can run, and small: whatever it imports, of the
// server it has only these, and what checks a configuration stays in shivad.
func TestShivactlHasNoServer(t *testing.T) {
	atTop(t)
	of := []string{"server/admin", "server/build", "server/manual", "server/picture"}
	all, seen := packages(t), map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		if strings.HasPrefix(name, "server/") && !slices.Contains(of, name) {
			t.Errorf("shivactl contains %s", name)
		}
		for _, imp := range all[name].Imports {
			if ours, ok := strings.CutPrefix(imp, module+"/"); ok {
				visit(ours)
			}
		}
	}
	visit("cmd/shivactl")
}

// covers reports whether a row allows an import: one of the standard library, or one that it names.
func covers(allowed []string, imp string) bool {
	if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
		return true
	}
	return slices.ContainsFunc(allowed, func(a string) bool { return names(a, imp) })
}

// names reports whether an entry of a row stands for an import: a package of ours for itself, any
// other module for its packages.
func names(entry, imp string) bool {
	if ours, ok := strings.CutPrefix(imp, module+"/"); ok {
		return entry == ours
	}
	return imp == entry || strings.HasPrefix(imp, entry+"/")
}

// isDouble recognises a package of test doubles (shivatest, containertest) by its name.
func isDouble(path string) bool { return strings.HasSuffix(path, "test") }

// modules are the directories of our modules. Drawing charts has its own, so that the server does
// not depend on its libraries.
var modules = []string{".", "examples", "bench/chart"}

// packages returns the packages of the modules by their folders, including those behind a build
// tag. It reads them itself: "go list" takes as long as the other tests of the tree.
func packages(t *testing.T) map[string]*build.Package {
	t.Helper()
	tagged, all := build.Default, map[string]*build.Package{}
	tagged.BuildTags = []string{"invariants", "e2e"}
	for _, module := range modules {
		err := filepath.WalkDir(module, func(dir string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return err
			}
			if dir != module {
				_, another := os.Stat(filepath.Join(dir, "go.mod"))
				if another == nil || strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") ||
					d.Name() == "testdata" {
					return filepath.SkipDir
				}
			}
			p, err := tagged.ImportDir(dir, 0)
			if errors.As(err, new(*build.NoGoError)) {
				return nil
			}
			all[filepath.ToSlash(dir)] = p
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// The top level has these entries; everything else lives in the folder that it belongs to.
func TestTopLevel(t *testing.T) {
	atTop(t)
	rooms := strings.Fields("shiva server scheduler containers cmd examples bench go.mod go.sum Makefile README.md LICENSE")
	built := []string{"bin"} // by make, and not in the repository
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, e := range entries {
		seen[e.Name()] = true
		if !strings.HasPrefix(e.Name(), ".") && !slices.Contains(rooms, e.Name()) && !slices.Contains(built, e.Name()) {
			t.Errorf("%s does not belong at the top level", e.Name())
		}
	}
	for _, r := range rooms {
		if !seen[r] {
			t.Errorf("%s is missing from the top level", r)
		}
	}
}

// gnet can be replaced as long as only one file of the server imports it.
func TestOneFileKnowsGnet(t *testing.T) {
	atTop(t)
	var files []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && path != "." && d.IsDir() && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), `"github.com/panjf2000/gnet/`) {
			files = append(files, filepath.ToSlash(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"bench/echo/group.go", "bench/echo/main.go", "server/internal/tcp/gnet.go"}
	if !slices.Equal(files, want) {
		t.Errorf("gnet is imported by %v, want %v", files, want)
	}
}

// Sessions of the Shiva door work over any transport: only the door and the transports import
// sockets.
func TestSessionsKnowNoSockets(t *testing.T) {
	atTop(t)
	files, err := filepath.Glob("server/internal/tcp/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var know []string
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		sockets := func(i *ast.ImportSpec) bool {
			name, _ := strconv.Unquote(i.Path.Value)
			return name == "net" || name == "syscall" || name == "golang.org/x/sys/unix"
		}
		if !strings.HasSuffix(path, "_test.go") && slices.ContainsFunc(f.Imports, sockets) {
			know = append(know, filepath.Base(path))
		}
	}
	if want := []string{"door.go", "gnet.go", "pollable.go", "socket.go", "tls.go", "writable.go"}; !slices.Equal(know,
		want) {
		t.Errorf("sockets are known to %v, want %v", know, want)
	}
}

// A field of an exported type of a public package has a type that importers can name, if only by an
// alias that the package gives it.
func TestPublicFieldsHaveNames(t *testing.T) {
	atTop(t)
	for dir := range packages(t) {
		if room, _, _ := strings.Cut(dir, "/"); isDouble(dir) || strings.Contains(dir+"/", "/internal/") ||
			room != "shiva" && room != "scheduler" && room != "containers" && room != "server" {
			continue
		}
		files, _ := filepath.Glob(dir + "/*.go")
		var parsed []*ast.File
		for _, path := range files {
			if f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0); err != nil {
				t.Fatal(err)
			} else if !strings.HasSuffix(path, "_test.go") && !ast.IsGenerated(f) {
				parsed = append(parsed, f)
			}
		}
		for _, name := range nameless(parsed) {
			t.Errorf("%s.%s is not a type that an importer can name", dir, name)
		}
	}
}

// nameless returns the fields, and elements, of exported types whose types are internal and have no
// alias in the package.
func nameless(files []*ast.File) (list []string) {
	aliases := map[string]bool{}
	types := map[*ast.TypeSpec]*ast.File{}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.TypeSpec); ok && s.Name.IsExported() {
				if x, ok := s.Type.(*ast.SelectorExpr); ok && s.Assign.IsValid() {
					aliases[x.X.(*ast.Ident).Name+"."+x.Sel.Name] = true
				} else {
					types[s] = f
				}
			}
			_, body := n.(*ast.BlockStmt)
			return !body
		})
	}
	for s, f := range types {
		ast.Inspect(s.Type, func(n ast.Node) bool {
			if field, ok := n.(*ast.Field); ok && len(field.Names) > 0 &&
				!slices.ContainsFunc(field.Names, (*ast.Ident).IsExported) {
				return false
			}
			x, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			name := x.X.(*ast.Ident).Name
			internal := func(i *ast.ImportSpec) bool {
				path, _ := strconv.Unquote(i.Path.Value)
				return strings.Contains(path, "/internal/") && strings.HasSuffix(path, "/"+name)
			}
			if !aliases[name+"."+x.Sel.Name] && slices.ContainsFunc(f.Imports, internal) {
				list = append(list, s.Name.Name+": "+name+"."+x.Sel.Name)
			}
			return true
		})
	}
	return list
}
