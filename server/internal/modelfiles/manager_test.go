package modelfiles

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/budgettest"
)

// A rig is a Manager of a folder whose clock the test moves, and a fleet that does nothing.
type rig struct {
	*Manager
	t   *testing.T
	dir string
	at  time.Time

	fleetMu sync.Mutex
	serves  map[string]config.Container
	puts    []string // in order: name, version and the text of the file
	fails   func(ctx context.Context, text string) error
	cleared []string
}

func newRig(t *testing.T, files ...config.ModelFile) *rig {
	r := &rig{t: t, dir: t.TempDir(), at: time.Now().Add(time.Hour), serves: map[string]config.Container{}}
	r.fails = func(context.Context, string) error { return nil }
	r.Manager = New(Config{Fleet: r, Log: slog.New(slog.DiscardHandler),
		Changed: func(model string) { r.cleared = append(r.cleared, model) }})
	r.Manager.now = func() time.Time { return r.at }
	r.find = func(found) (string, error) { return "/python", nil }
	c := config.Default()
	c.ModelFiles, c.ModelFolders = files, []config.ModelFolder{config.NewModelFolder(r.dir)}
	c.Supervised = []config.Container{{Name: "taken"}}
	r.Configure(c)
	return r
}

func (r *rig) Put(ctx context.Context, c config.Container, _ Standing) error {
	text, _ := os.ReadFile(c.Command[4])
	r.fleetMu.Lock()
	r.puts = append(r.puts, fmt.Sprintf("%s/%s %s", c.Name, c.Version, text))
	fails := r.fails
	r.fleetMu.Unlock()
	if err := fails(ctx, string(text)); err != nil {
		return err
	}
	r.fleetMu.Lock()
	defer r.fleetMu.Unlock()
	r.serves[c.Name] = c
	return nil
}

func (r *rig) Drop(name string) error {
	r.fleetMu.Lock()
	defer r.fleetMu.Unlock()
	delete(r.serves, name)
	return nil
}

func (r *rig) Served(name string) bool {
	r.fleetMu.Lock()
	defer r.fleetMu.Unlock()
	_, ok := r.serves[name]
	return ok
}

func (r *rig) Troubled(string) string { return "" }

// write writes a file as a program does that replaces it; its time is that of the test's clock.
func (r *rig) write(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) remove(name string) {
	r.t.Helper()
	if err := os.RemoveAll(filepath.Join(r.dir, name)); err != nil {
		r.t.Fatal(err)
	}
}

// look looks once, and waits for what it begins.
func (r *rig) look() {
	r.t.Helper()
	r.merge(r.scan())
	r.idle()
}

func (r *rig) idle() {
	r.t.Helper()
	budgettest.Until(r.t, "what was begun to end", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, s := range r.slots {
			if s.cancel != nil {
				return false
			}
		}
		return true
	})
}

// pass lets time pass, and looks as Run does.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	for step := lookEvery / 4; d > 0; d -= step {
		r.at = r.at.Add(step)
		r.look()
	}
}

// expect checks what serves, as "name/version", and what was started since the last time.
func (r *rig) expect(serves string, puts ...string) {
	r.t.Helper()
	r.fleetMu.Lock()
	defer r.fleetMu.Unlock()
	var list []string
	for name, c := range r.serves {
		list = append(list, name+"/"+c.Version)
	}
	slices.Sort(list)
	if got := strings.Join(list, " "); got != serves {
		r.t.Errorf("%q serve, want %q", got, serves)
	}
	slices.Sort(r.puts)
	if !slices.Equal(r.puts, slices.Sorted(slices.Values(puts))) {
		r.t.Errorf("%q were started, want %q", r.puts, puts)
	}
	r.puts = nil
}

func (r *rig) faults(want ...string) {
	r.t.Helper()
	got := r.Faults()
	ok := len(got) == len(want)
	for i := range want {
		ok = ok && strings.Contains(got[i], want[i])
	}
	if !ok {
		r.t.Errorf("the faults are %q, want %q", got, want)
	}
}

func TestFilesAreFollowed(t *testing.T) {
	r := newRig(t)
	r.write("a.onnx", "one")
	r.look()
	r.expect("a/1", "a/1 one") // what is there from the start need not settle

	r.write("b.onnx", "half")
	r.look()
	r.expect("a/1")
	r.faults() // a file that has just come does not keep changing
	r.write("b.onnx", "half and half")
	r.pass(settleTime / 2)
	r.expect("a/1")
	r.pass(2 * settleTime)
	r.expect("a/1 b/1", "b/1 half and half")

	r.write("a.onnx", "two")
	r.pass(2 * settleTime)
	r.expect("a/2 b/1", "a/2 two")

	// Equal contents are no change, whatever else is another.
	if err := os.Chtimes(filepath.Join(r.dir, "a.onnx"), r.at, r.at); err != nil {
		t.Fatal(err)
	}
	r.remove("b.onnx")
	r.write("b.onnx", "half and half")
	r.pass(3 * settleTime)
	r.expect("a/2 b/1")

	if err := os.Rename(filepath.Join(r.dir, "a.onnx"), filepath.Join(r.dir, "c.onnx")); err != nil {
		t.Fatal(err)
	}
	r.pass(3 * settleTime)
	r.expect("b/1 c/1", "c/1 two")
	r.write("a.onnx", "three")
	r.remove("b.onnx")
	r.remove("c.onnx")
	r.pass(3 * settleTime)
	r.expect("a/2", "a/2 three") // the number of what has ended before
	if _, _, counts := r.Count(); counts != (Counts{Taken: 1, Retired: 3}) {
		t.Errorf("counted %+v", counts)
	}
	r.faults()
}

// A file that cannot be served leaves the old one, is tried again from time to time, and soon after
// it has changed.
func TestBrokenFiles(t *testing.T) {
	r := newRig(t)
	r.fails = func(_ context.Context, text string) error {
		if strings.HasPrefix(text, "broken") {
			return errors.New("it is " + text)
		}
		return nil
	}
	r.write("a.onnx", "one")
	r.look()
	r.expect("a/1", "a/1 one")
	r.write("a.onnx", "broken")
	r.pass(2 * settleTime)
	r.expect("a/1", "a/2 broken")
	r.faults("a serves what its file was: the change cannot be served: it is broken")
	r.pass(retryMin * 2)
	r.expect("a/1", "a/2 broken")
	r.pass(10 * time.Minute)
	if n := len(r.puts); n < 2 || n > 6 {
		t.Errorf("within ten minutes it was tried %d times again", n)
	}
	r.puts = nil
	r.write("a.onnx", "two")
	r.pass(2 * settleTime)
	r.expect("a/2", "a/2 two")
	r.faults()
	if _, faulty, counts := r.Count(); faulty != 0 || counts != (Counts{Taken: 1, Kept: 1}) {
		t.Errorf("%d faults, counted %+v", faulty, counts)
	}

	// A client that asks does not wait for the next try.
	r.write("a.onnx", "broken again")
	r.pass(2 * settleTime)
	r.expect("a/2", "a/3 broken again")
	r.fails = func(context.Context, string) error { return nil }
	refreshed := make(chan error, 1)
	go func() { refreshed <- r.Refresh(t.Context(), "a") }()
	for len(refreshed) == 0 {
		r.look()
	}
	if err := <-refreshed; err != nil {
		t.Error(err)
	}
	r.expect("a/3", "a/3 broken again")
	if err := r.Refresh(t.Context(), "none"); err != nil {
		t.Error(err)
	}
}

// A file that changes all the time costs a start now and then, one at a time.
func TestRestlessFile(t *testing.T) {
	r := newRig(t)
	r.write("a.onnx", "0")
	r.look()
	r.puts = nil
	for i := range 400 {
		r.write("a.onnx", fmt.Sprint("text ", i))
		r.pass(1500 * time.Millisecond)
	}
	if n := len(r.puts); n < 5 || n > 25 {
		t.Errorf("it was started %d times in ten minutes", n)
	}
	r.puts = nil
	for i := range 100 {
		r.write("a.onnx", fmt.Sprint("faster ", i))
		r.pass(settleTime / 2)
	}
	r.faults("a waits for its file to stay the same")
	if len(r.puts) != 0 {
		t.Errorf("it never settled, and %q were started", r.puts)
	}
}

// A change that is being taken is given up for the next one, and holds others up for a while only.
func TestOneStartAtATime(t *testing.T) {
	r := newRig(t)
	r.write("a.onnx", "one")
	r.write("b.onnx", "one")
	r.look()
	r.expect("a/1 b/1", "a/1 one", "b/1 one")
	r.fails = func(ctx context.Context, text string) error {
		if text == "slow" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	r.write("a.onnx", "slow")
	r.at = r.at.Add(settleTime / 2)
	r.merge(r.scan())
	r.at = r.at.Add(2 * settleTime)
	r.merge(r.scan())
	budgettest.Until(t, "the start", func() bool {
		r.fleetMu.Lock()
		defer r.fleetMu.Unlock()
		return len(r.puts) == 1
	})
	r.write("b.onnx", "two")
	for range 4 {
		r.at = r.at.Add(settleTime / 2)
		r.merge(r.scan())
	}
	r.expect("a/1 b/1", "a/2 slow")
	r.write("a.onnx", "three")
	for range 4 {
		r.at = r.at.Add(settleTime / 2)
		r.merge(r.scan())
	}
	r.idle()
	r.pass(4 * settleTime)
	r.expect("a/2 b/2", "b/2 two", "a/2 three")
	r.faults()
}

func TestNamesAndKinds(t *testing.T) {
	other := t.TempDir()
	named := config.NewModelFile(filepath.Join(other, "x.onnx"))
	named.Name = "b"
	gone := config.NewModelFile(filepath.Join(other, "gone.onnx"))
	r := newRig(t, named, gone)
	if err := os.WriteFile(named.Path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"b.onnx": "also b", "taken.tflite": "", "c.onnx": "1", "c.tflite": "2", "tree.txt": "tree\nversion=v4\n",
		"readme.txt": "how to", "labels.txt": "cat\n",
		"boost.json": `{"learner":{}}`, "data.json": `{"a":1}`, "ir.xml": `<?xml version="1.0"?><net name="x">`,
		"page.xml": "<html>", "code.py": "", "p.pkl": "",
		".hidden.onnx": "", "a b/1/model.onnx": "", " bad.onnx": "", "notes.md": "",
	} {
		r.write(name, text)
	}
	r.look()
	r.expect("a b/1 b/1 boost/1 c/1 ir/1 tree/1", r.puts...)
	r.faults("b.onnx is not served", "c.tflite is not served: "+filepath.Join(r.dir, "c.onnx")+` has the same name, "c"`,
		`taken.tflite is not served: "taken" is the name of a [[container]]`,
		"bad is not served: ", "gone is not served: stat ")
	if want := "--name=b"; r.serves["b"].Command[5] != want ||
		r.serves["b"].Command[4] != named.Path {
		t.Errorf("the command of b is %q", r.serves["b"].Command)
	}

	c := config.Default()
	trusting := config.NewModelFolder(r.dir)
	trusting.Trust = true
	c.ModelFolders = []config.ModelFolder{trusting}
	r.Configure(c)
	r.pass(3 * settleTime)
	for _, name := range []string{"code", "p", "taken", "b"} {
		if !r.Served(name) {
			t.Errorf("%s is not served: %q", name, r.Faults())
		}
	}
	if got := r.serves["code"]; !slices.Equal(got.Serve, []string{"code-*"}) || slices.Contains(got.Command, "--version") {
		t.Errorf("a program is %+v", got)
	}
}

// What only a trusted folder has is said once, is no fault, and goes with the files and with trust.
func TestUntrustedFiles(t *testing.T) {
	r := newRig(t)
	var log bytes.Buffer
	r.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	for _, name := range []string{"a.pkl", "b.py", "c/model.py", "d/1/model.joblib", "e/2/model.onnx", "e/model.pkl"} {
		r.write(name, "")
	}
	r.write("f/model.toml", `file = "f.pkl"`)
	r.write("f/1/f.pkl", "")
	r.look()
	r.pass(time.Minute)
	r.expect("e/2", "e/2 ")
	r.faults("expected f/1/f.pkl; without trust = true, pickles and Python programs are ignored")
	want := r.dir + ": ignored, because reading them executes code: a.pkl, b.py, c, d; "
	if got := r.Ignored(); len(got) != 1 || !strings.HasPrefix(got[0], want) || !strings.Contains(got[0], "trust = true") {
		t.Errorf("ignored: %q, want %q", got, want)
	}
	if n := strings.Count(log.String(), want); n != 1 {
		t.Errorf("it was logged %d times:\n%s", n, &log)
	}
	for _, name := range []string{"a.pkl", "b.py", "c", "d", "f"} {
		r.remove(name)
	}
	r.pass(3 * settleTime)
	if got := r.Ignored(); got != nil {
		t.Errorf("without such files: %q", got)
	}
	r.write("a.pkl", "")
	c := config.Default()
	c.ModelFolders = []config.ModelFolder{config.NewModelFolder(r.dir)}
	c.ModelFolders[0].Trust = true
	r.Configure(c)
	r.pass(3 * settleTime)
	if got := r.Ignored(); got != nil || !r.Served("a") {
		t.Errorf("with trust: %q, %q", got, r.Faults())
	}
}

// What is no file, or too large, is a fault of its model alone, and holds no look.
func TestOddSettings(t *testing.T) {
	r := newRig(t)
	r.write("a.onnx", "one")
	for _, name := range []string{overrideFile, tritonFile} {
		r.write("large "+name+"/model.onnx", "x")
		r.write("large "+name+"/"+name, strings.Repeat("#\n", mostSettings/2+1))
		r.write("pipe "+name+"/model.onnx", "x")
		if err := syscall.Mkfifo(filepath.Join(r.dir, "pipe "+name, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.look()
	r.expect("a/1", "a/1 one")
	r.faults("large config.pbtxt is not served: ", "large model.toml is not served: ",
		"config.pbtxt is not a regular file", "model.toml is not a regular file")
}

// A folder that cannot be read says nothing about its models.
func TestUnreadableFolder(t *testing.T) {
	r := newRig(t)
	r.write("a.onnx", "one")
	r.look()
	away := r.dir + ".away"
	if err := os.Rename(r.dir, away); err != nil {
		t.Fatal(err)
	}
	r.pass(time.Minute)
	r.expect("a/1", "a/1 one")
	r.faults("the models of a folder stay as they are, as it cannot be read")
	if err := os.Rename(away, r.dir); err != nil {
		t.Fatal(err)
	}
	r.pass(time.Minute)
	r.expect("a/1")
	r.faults()
}

// A ConfigMap of Kubernetes is a link to a directory, which is swapped.
func TestSwappedLink(t *testing.T) {
	r := newRig(t)
	link := func(to, from string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(r.dir, from+".new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(r.dir, from+".new"), filepath.Join(r.dir, from)); err != nil {
			t.Fatal(err)
		}
	}
	r.write("..2024_1/a.onnx", "one")
	r.write("..2024_1/b.onnx", "same")
	link("..2024_1", "..data")
	link("..data/a.onnx", "a.onnx")
	link("..data/b.onnx", "b.onnx")
	r.look()
	r.expect("a/1 b/1", "a/1 one", "b/1 same")
	r.write("..2024_2/a.onnx", "two")
	r.write("..2024_2/b.onnx", "same")
	link("..2024_2", "..data")
	r.remove("..2024_1")
	r.pass(4 * settleTime)
	r.expect("a/2 b/1", "a/2 two")
	r.faults()
}

// Other files are not looked at, and a directory is not read again while it is the same.
func TestManyOtherFiles(t *testing.T) {
	r := newRig(t)
	r.write("a.onnx", "one")
	for i := range 10000 {
		r.write(fmt.Sprintf("other-%d.jpeg", i), "")
	}
	r.at = time.Now().Add(time.Hour)
	r.look()
	if l := r.listings.dirs[r.dir]; len(l.names) != 1 || len(r.listings.signs) != 0 {
		t.Errorf("it keeps %d names and %d signs", len(l.names), len(r.listings.signs))
	}
	read := r.listings.dirs[r.dir].read
	r.pass(time.Minute)
	if now := r.listings.dirs[r.dir].read; now != read {
		t.Errorf("the directory was read again after %v", now.Sub(read))
	}
	r.write("b.onnx", "two")
	r.pass(2 * settleTime)
	r.expect("a/1 b/1", "a/1 one", "b/1 two")
}

// A directory NAME/VERSION has a version that its name gives, and the newest one is served.
func TestVersions(t *testing.T) {
	r := newRig(t)
	r.write("a/1/model.onnx", "one")
	r.write("a/2/model.onnx", "two")
	r.write("a/02/model.onnx", "none")
	r.write("a/notes/model.onnx", "none")
	r.write("b/model.tflite", "plain")
	r.look()
	r.expect("a/2 b/1", "a/2 two", "b/1 plain")
	if err := os.Mkdir(filepath.Join(r.dir, "a", "10"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.pass(3 * settleTime)
	r.expect("a/2 b/1")
	r.write("a/10/model.onnx", "ten")
	r.pass(3 * settleTime)
	r.expect("a/10 b/1", "a/10 ten")
	r.write("a/10/model.onnx", "ten again")
	r.pass(3 * settleTime)
	r.expect("a/10 b/1", "a/10 ten again")
	if !slices.Equal(r.cleared, []string{"a"}) {
		t.Errorf("cached answers of %q were forgotten", r.cleared)
	}
	r.write("a/model.toml", "versions = [\"1\", \"10\"]\nbatch = 16\nas = \"raw\"\ndevice = [\"cpu\", \"cuda:0\"]\nreplicas = 2\ncpus = 3\n")
	r.pass(3 * settleTime)
	if !r.Served("a@1") || !r.Served("a@10") || r.Served("a") {
		t.Fatalf("%v serve: %q", r.serves, r.Faults())
	}
	c := r.serves["a@1"]
	if got := strings.Join(c.Command[5:], " "); got != "--name=a --device cpu,cuda:0 --batch 16 --as raw --version 1" ||
		c.CPUs != 3 || c.Replicas != config.Fixed(2) || c.Model != "a" {
		t.Errorf("%q: %+v", got, c)
	}
	r.write("a/model.toml", "batches = 16\n")
	r.pass(3 * settleTime)
	r.faults(`a is not served: ` + filepath.Join(r.dir, "a", "model.toml") + ":1:1: batches: unknown key")
	r.write("a/model.toml", "as = \"raw\"\nbatch = \n")
	r.pass(3 * settleTime)
	r.faults(`a is not served: ` + filepath.Join(r.dir, "a", "model.toml") + ":2:")
	if !r.Served("a@1") || !r.Served("a@10") {
		t.Errorf("%v serve", r.serves)
	}
}

// Run follows the files by itself, and ends at once.
func TestRun(t *testing.T) {
	r := newRig(t)
	r.Manager.now = time.Now
	r.write("a.onnx", "one")
	stopping := make(chan struct{})
	var all sync.WaitGroup
	r.Begin(&all, stopping)
	budgettest.Until(t, "the first file", func() bool { return r.Served("a") })
	r.write("b.onnx", "two")
	budgettest.Until(t, "a new file", func() bool { return r.Served("b") })
	r.write("c.onnx", "three")
	if err := r.Look(t.Context()); err != nil || !slices.Contains(r.Models(), "c") {
		t.Errorf("after a look that was asked for, %q are known: %v", r.Models(), err)
	}
	close(stopping)
	all.Wait()
}

// A server without model files and folders looks at none, until it is told of some.
func TestRunWithoutFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{Log: slog.New(slog.DiscardHandler)})
		looks := func() uint64 {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.looks
		}
		stopping := make(chan struct{})
		var all sync.WaitGroup
		m.Begin(&all, stopping)
		time.Sleep(time.Hour)
		if n := looks(); n != 1 {
			t.Errorf("it looked %d times within an hour, expected once", n)
		}
		m.Configure(config.Default())
		time.Sleep(time.Minute)
		if n := looks(); n != 2 {
			t.Errorf("it looked %d times after it was configured, expected twice", n)
		}
		close(stopping)
		all.Wait()
	})
}
