//go:build e2e

package e2e

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/certtest"
	"github.com/shivad/shivad/shiva/hosttest"
)

// The pages for users are the manual and the README files of the tree. Every block of commands in
// them is run unchanged, from the first to the last, in a directory that looks like the top of the
// tree, with a server that has the digits model, or one that the page starts. A
// comment before a block says what it is for:
//
//	<!-- file NAME -->     a command below reads it by this name
//	<!-- source PATH -->   it is this file of the tree
//	<!-- serve PATH -->    it is this file, which the server has from here on
//	<!-- variant NAME -->  the source before, by this name, with the block in the place of the line
//	                       that begins with the same word as the block's last
//	<!-- ready MODEL -->   the previous block started a container of this model; wait for it
//
// A page of commands that take minutes or hours, or need rare equipment, is exempt, with the
// reason, unless -page names it.
var exempt = map[string]string{
	"bench/METHODS.md":              "benchmarks and soaks, which take minutes to hours",
	"bench/README.md":               "benchmarks and soaks, which take minutes to hours",
	"examples/gstreamer/README.md":  "it needs GStreamer; make gst-test installs that and runs it",
	"examples/mqtt/README.md":       "it needs a broker; python/test_mqtt.py runs its program with one",
	"examples/kubernetes/README.md": "its commands need a cluster; make k8s reads what they name",
	"server/manual/docker.md":       "it needs Docker; make dist-check runs the image",
	"server/manual/gpu.md":          "it needs a GPU",
	"server/manual/gstreamer.md":    "its commands are those of examples/gstreamer",
	"server/manual/kubernetes.md":   "its commands are those of examples/kubernetes",
	"server/manual/systemd.md":      "it needs systemd; make dist-check installs the packages",
}

var onePage = flag.String("page", "", "run this page alone")

// patience is how long the commands of a block may take: one that waits for what never comes fails
// with what it printed.
const patience = 3 * time.Minute

// pages finds the pages in the tree, so that a new one cannot escape the test.
func pages(t *testing.T) (list []string) {
	t.Helper()
	err := filepath.WalkDir(root(t), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root(t), path)
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		manual := filepath.Dir(name) == "server/manual" && filepath.Ext(name) == ".md"
		if (d.Name() == "README.md" || manual) && exempt[name] == "" {
			list = append(list, name)
		}
		return nil
	})
	if err != nil || len(list) < 11 {
		t.Fatalf("%d pages: %v", len(list), err)
	}
	return list
}

func TestE2EPages(t *testing.T) {
	names := pages(t)
	if *onePage != "" {
		names = []string{*onePage}
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(strings.TrimSuffix(name, ".md"), "/README"), func(t *testing.T) {
			p := newPage(t, name)
			switch {
			case strings.Contains(p.text, "\n```sh\nmake run\n```\n"):
			case strings.Contains(p.text, "\nbin/shivad serve "):
				p.reserve()
			default:
				p.serve()
			}
			p.run()
		})
	}
}

// A page is a document whose commands are run.
type page struct {
	t      *testing.T
	name   string
	text   string
	dir    string // where its commands run
	source string // the last source that it showed
	server *shivad
}

func newPage(t *testing.T, name string) *page {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), name))
	if err != nil {
		t.Fatal(err)
	}
	p := &page{t: t, name: name, text: string(text), dir: t.TempDir()}
	entries, err := os.ReadDir(root(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Symlink(filepath.Join(root(t), e.Name()), filepath.Join(p.dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// serve starts a server with a TLS port, whose authority is ca.pem in the commands' directory.
func (p *page) serve() {
	p.t.Helper()
	authority := certtest.New(p.t, "page")
	issue, dir := authority.Server(nil), p.t.TempDir()
	certtest.Write(p.t, p.dir, "ca.pem", authority.PEM())
	paths := certtest.Write(p.t, dir, "server.pem", issue.Cert, "server.key", issue.Key, "shivad.toml",
		[]byte(config(p.t, digits+settled)))
	p.server = startWith(p.t,
		[]string{binary(p.t, "shivad"), "--config", paths[2], "--log-format", "json", "--tls-cert", paths[0], "--tls-key", paths[1],
			"--tcp", "127.0.0.1:0,tls://127.0.0.1:0", "--rest", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin",
			"127.0.0.1:0", "--containers", "127.0.0.1:0"})
	p.server.waitReplicas("digits", 1)
}

// reserve takes addresses for the server that the page itself starts.
func (p *page) reserve() {
	p.t.Helper()
	s := &shivad{t: p.t, sockets: map[string]string{"tcp": hosttest.Addr(p.t)}}
	for _, address := range []*string{&s.tcp, &s.rest, &s.grpc, &s.admin, &s.containers} {
		*address = hosttest.Addr(p.t)
	}
	p.server = s
}

var block = regexp.MustCompile("(?m)(?:^<!-- (\\w+) (\\S+) -->\n)?^( *)```(\\w*)\n((?s:.*?))^ *```$")

// commandLine matches a line that a reader would type into a shell.
var commandLine = regexp.MustCompile(`(?m)^ *(\$ |(go|make|bin/\w+|curl|pip|python3?|grpcurl|cc|docker|kill) |export \w+=)`)

// run runs or compares each block. A block that is neither run nor compared is a mistake, and so
// are commands in a block or an indented paragraph that is not run.
func (p *page) run() {
	rest := block.ReplaceAllString(p.text, "")
	if found := regexp.MustCompile(`(?m)^(    |\t)` + commandLine.String()[len(`(?m)^ *`):]).FindString(rest); found != "" ||
		strings.Contains(rest, "```") || strings.Contains(rest, "~~~") {
		p.t.Errorf("%s has code outside the blocks that are run: %q", p.name, found)
	}
	for _, found := range block.FindAllStringSubmatch(p.text, -1) {
		does, argument, indent, language := found[1], found[2], found[3], found[4]
		body := strings.ReplaceAll("\n"+found[5], "\n"+indent, "\n")[1:]
		switch does {
		case "ready":
			budgettest.Until(p.t, "the admin endpoint", func() bool { // of a server that the page has started
				c, err := net.Dial("tcp", p.server.admin)
				if err == nil {
					c.Close()
				}
				return err == nil
			})
			p.server.waitReplicas(argument, 1)
		case "file":
			if err := os.WriteFile(filepath.Join(p.dir, argument), []byte(p.here(body)), 0o600); err != nil {
				p.t.Fatal(err)
			}
			continue
		case "source":
			if source, err := os.ReadFile(filepath.Join(root(p.t), argument)); err != nil || string(source) != body {
				p.t.Errorf("%s does not show %s as it is (%v)", p.name, argument, err)
			}
			p.own(argument, body)
			p.source = body
			continue
		case "serve":
			file := filepath.Join(root(p.t), argument)
			if source, err := os.ReadFile(file); err != nil || string(source) != body {
				p.t.Errorf("%s does not show %s as it is (%v)", p.name, argument, err)
			}
			p.t.Setenv("PATH", filepath.Dir(python(p.t))+":"+os.Getenv("PATH"))
			p.server = startWith(p.t,
				[]string{binary(p.t, "shivad"), "--config", file, "--log-format", "json", "--tcp", "127.0.0.1:0",
					"--rest", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--containers", "127.0.0.1:0"})
			budgettest.Until(p.t, "the file's containers", func() bool {
				return p.server.get("/readyz", nil) == http.StatusOK
			})
			continue
		case "variant":
			lines := strings.Split(strings.TrimSuffix(body, "\n"), "\n")
			word, _, _ := strings.Cut(lines[len(lines)-1], " ")
			like := regexp.MustCompile("(?m)^" + regexp.QuoteMeta(word) + " .*\n")
			if n := len(like.FindAllString(p.source, -1)); n != 1 {
				p.t.Errorf("%s: %d lines of the source begin with %q", p.name, n, word)
			}
			text := p.here(like.ReplaceAllLiteralString(p.source, body))
			if err := os.WriteFile(filepath.Join(p.dir, argument), []byte(text), 0o600); err != nil {
				p.t.Fatal(err)
			}
			continue
		case "":
		default:
			p.t.Errorf("%s: the comment before a block says %q, which is none of file, source, serve, variant and ready",
				p.name, does)
		}
		switch language {
		case "sh":
			if body == "make run\n" {
				p.server = p.makeRun()
			} else {
				p.command(body)
			}
		case "console":
			p.session(body)
		case "toml":
			p.check(body)
		case "", "json", "text":
			if found := commandLine.FindString(body); found != "" {
				p.t.Errorf("%s: %q is in a block that is not run: mark it sh or console", p.name, found)
			}
		default:
			p.t.Errorf("%s: nothing runs this, and nothing compares it:\n%s", p.name, body)
		}
	}
}

// here replaces the default ports by those of the server under test.
func (p *page) here(text string) string {
	for port, address := range map[string]string{"6174": p.server.tcp, "6175": p.server.sockets["tcp"],
		"8000": p.server.rest, "8001": p.server.grpc, "8002": p.server.admin, "7000": p.server.containers} {
		_, mine, err := net.SplitHostPort(strings.TrimPrefix(address, "tls://"))
		if err != nil {
			continue // this door has no address
		}
		before := `((?:localhost|127\.0\.0\.1)(?::|", )|htons\(|\./\w+ )`
		text = regexp.MustCompile(before+port+`\b`).ReplaceAllString(text, "${1}"+mine)
	}
	return text
}

// command runs a script as a user's shell would, and returns its output. Background processes end
// with the page.
func (p *page) command(script string) string {
	p.t.Helper()
	s := p.server
	prelude := fmt.Sprintf("bin/shivactl() { command bin/shivactl \"$@\" --addr %s --admin %s; }\n", s.tcp, s.admin)
	// A server that the page starts in the background has to have the number that the page stores.
	prelude += fmt.Sprintf(`bin/shivad() {
  [ "$1" = serve ] && set -- "$@" --tcp %s --rest %s --grpc %s --admin %s --containers %s
  [ $BASHPID = $$ ] || exec bin/shivad "$@"
  command bin/shivad "$@"
}
`, s.tcp, s.rest, s.grpc, s.admin, s.containers)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-e", "-o", "pipefail", "-c", prelude+p.here(script))
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Dir = p.dir
	path := grpcurlDir(p.t) + ":" + filepath.Dir(python(p.t)) + ":" + os.Getenv("PATH")
	if strings.Contains(p.name, "gstreamer") { // it takes python3 from there, and that has to be the system's
		path = "/usr/bin:" + path
	}
	cmd.Env = append(p.server.env(), "GOFLAGS=-trimpath", "GOWORK=off", "PATH="+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// No pipe: a background process would keep it open.
	out, err := os.CreateTemp(p.t.TempDir(), "out")
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	err = cmd.Wait()
	printed, _ := os.ReadFile(out.Name())
	if err != nil {
		p.t.Errorf("%s: %v\n$ %s%s", p.name, err, script, printed)
	}
	return string(printed)
}

// session runs the commands of a console block, and compares the output below each.
func (p *page) session(text string) {
	p.t.Helper()
	var script, expected string
	flush := func() {
		if script == "" {
			return
		}
		if printed := p.command(script); printed != expected {
			p.t.Errorf("%s\n$ %s%s(the page says)\n%s", p.name, script, printed, expected)
		}
		script, expected = "", ""
	}
	for line := range strings.Lines(text) {
		first, begins := strings.CutPrefix(line, "$ ")
		switch {
		case begins:
			flush()
			script = first
		case strings.HasSuffix(script, "\\\n") || strings.Count(script, "'")%2 == 1:
			script += line
		default:
			expected += line
		}
	}
	flush()
}

// check runs shivad --check on a piece of a configuration, next to the certificates and models that
// it may name.
func (p *page) check(toml string) {
	p.t.Helper()
	authority := certtest.New(p.t, "page")
	server := authority.Server(nil)
	dir := p.t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "models"), 0o700); err != nil {
		p.t.Fatal(err)
	}
	file := certtest.Write(p.t, dir, "piece.toml", []byte(toml), "yolo11n.onnx", []byte{},
		"server.pem", server.Cert, "server.key", server.Key, "clients.pem", authority.PEM())[0]
	cmd := exec.Command(binary(p.t, "shivad"), "--config", file, "--check")
	cmd.Env = append(os.Environ(), "SHIVAD_PYTHON="+python(p.t))
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Errorf("%s: %v\n%s%s", p.name, err, toml, out)
	}
}

// makeRun runs `make run` and waits until it serves.
func (p *page) makeRun() *shivad {
	p.t.Helper()
	s := &shivad{t: p.t}
	var flags []string
	for name, address := range map[string]*string{"tcp": &s.tcp, "rest": &s.rest, "grpc": &s.grpc,
		"containers": &s.containers, "admin": &s.admin} {
		*address = hosttest.Addr(p.t)
		flags = append(flags, "-"+name, *address)
	}
	out, err := os.Create(filepath.Join(p.t.TempDir(), "out"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command("make", "run")
	cmd.Dir, cmd.Stdout, cmd.Stderr = root(p.t), out, out
	// Readers do not run it inside another make, whose flags would hold its output back until it
	// ends.
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "RUNFLAGS="+strings.Join(flags, " "))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	p.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) // as Ctrl-C does
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			p.t.Error("make run goes on after Ctrl-C")
		}
	})
	printed := func() string {
		text, _ := os.ReadFile(out.Name())
		return string(text)
	}
	budgettest.Until(p.t, "make run", func() bool {
		return strings.Contains(printed(), "Serving until Ctrl-C.") || len(ended) > 0
	})
	if text := printed(); !strings.Contains(text, " of 20 right") || len(ended) > 0 {
		p.t.Fatalf("make run:\n%s", text)
	}
	return s
}

// own gives the page a copy of a file of the tree that connects to the server under test.
func (p *page) own(path, text string) {
	p.t.Helper()
	top, _, _ := strings.Cut(path, "/")
	if info, err := os.Lstat(filepath.Join(p.dir, top)); err == nil && info.Mode()&os.ModeSymlink != 0 {
		if err := os.Remove(filepath.Join(p.dir, top)); err != nil {
			p.t.Fatal(err)
		}
		if out, err := exec.Command("cp", "-as", filepath.Join(root(p.t), top), p.dir).CombinedOutput(); err != nil {
			p.t.Fatalf("%v: %s", err, out)
		}
	}
	file := filepath.Join(p.dir, path)
	if err := os.Remove(file); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(p.here(text)), 0o600); err != nil {
		p.t.Fatal(err)
	}
}
