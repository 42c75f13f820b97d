package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/tensor"
)

func TestFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.toml")
	if err := os.WriteFile(file, []byte("[tcp]\nlisten = \":1\"\nloops = 3\n[admin]\nlisten = \":2\"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	o, err := parseFlags([]string{"--config", file, "--tcp=:5", "--containers", "127.0.0.1:6,ipc:///x", "--log-level",
		"debug", "--log-format", "json"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := o.load()
	if err != nil {
		t.Fatal(err)
	}
	if c.TCP.Listen[0] != ":5" || c.TCP.Loops != 3 || c.Admin.Listen != ":2" || len(c.Containers.Listen) != 2 ||
		c.Log.Level != "debug" || c.Log.Format != "json" {
		t.Errorf("defaults, file and flags gave %+v", c)
	}
}

func TestHelp(t *testing.T) {
	var out bytes.Buffer
	if _, err := parseFlags([]string{"-h"}, &out); err != flag.ErrHelp {
		t.Errorf("got %v", err)
	}
	for _, want := range []string{
		"  --tcp HOST:PORT,...          endpoint of the Shiva protocol (default :6174)\n",
		"  --rest HOST:PORT,...         endpoint of the Predict Protocol V2 over HTTP\n                               (default :8000)\n",
		"  --containers HOST:PORT,...   address that model containers connect to; also\n                               ipc://PATH (default 127.0.0.1:7000)\n",
		"  --admin HOST:PORT            admin API over HTTP, with page, health and\n                               metrics (default 127.0.0.1:8002)\n",
		"Exit code: 0 stopped on request",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("help lacks %q:\n%s", want, out.String())
		}
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > helpColumns+1 {
			t.Errorf("too long: %s", line)
		}
	}
}

// The manual page and the completions, which packages have, know every flag and its help.
func TestManual(t *testing.T) {
	var out bytes.Buffer
	if _, err := parseFlags([]string{"-h"}, &out); err != flag.ErrHelp {
		t.Fatal(err)
	}
	type option struct{ name, help string }
	var options []option
	unwrapped := regexp.MustCompile(`\n {31}`).ReplaceAllString(out.String(), " ")
	known := regexp.MustCompile(`(?m)^  (?:-h, )?--([\w-]+)(?: (?:[A-Z]|auto|raw)\S*)? +(\S.*)$`)
	for _, found := range known.FindAllStringSubmatch(unwrapped, -1) {
		options = append(options, option{found[1], found[2]})
	}
	if len(options) != len(settings)+len(readingFlags)+8 {
		t.Fatalf("the help has %d flags", len(options))
	}
	escaped := strings.NewReplacer("-", `\-`, "'", `\(aq`).Replace
	quoted := strings.NewReplacer("'", "’").Replace
	for file, forms := range map[string]func(o option) []string{
		"shivad.8":    func(o option) []string { return []string{escaped("--" + o.name), escaped(o.help)} },
		"shivad.bash": func(o option) []string { return []string{"--" + o.name} },
		"_shivad":     func(o option) []string { return []string{"--" + o.name + "[" + quoted(o.help) + "]"} },
		"shivad.fish": func(o option) []string { return []string{" -l " + o.name + " ", "'" + quoted(o.help) + "'"} },
	} {
		text, err := os.ReadFile(filepath.Join("manual", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range options {
			for _, form := range forms(o) {
				if !strings.Contains(string(text), form) {
					t.Errorf("manual/%s lacks %s", file, form)
				}
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.toml")
	if err := os.WriteFile(bad, []byte("[tcp]\nlisten = 5\nlisen = \"x\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--nope"}, "shivad: there is no flag --nope; shivad -h lists the flags\n"},
		{[]string{"--cert", "x"}, "shivad: there is no flag --cert; did you mean --tls-cert or --rest? shivad -h lists the flags\n"},
		{[]string{"--admn="}, "shivad: there is no flag --admn; did you mean --admin? shivad -h lists the flags\n"},
		{[]string{"shivad.toml"}, "shivad: unexpected argument \"shivad.toml\"; settings are read with --config FILE, and models served with shivad serve FILE; shivad -h lists the flags\n"},
		{[]string{"server", "x.onnx"}, "shivad: unexpected argument \"server\"; did you mean shivad serve? shivad -h lists the flags\n"},
		{[]string{"--config", filepath.Join(dir, "none")}, "shivad: config: open " + filepath.Join(dir, "none") + ": no such file or directory\n"},
		{[]string{"--config", bad}, "shivad: config: 2 faults:\n  " + bad +
			":2:1: tcp.listen: expected an address or a list of addresses, got the integer 5\n  " + bad + ":3:1: tcp.lisen: unknown key; did you mean listen?\n"},
		{[]string{"--tcp", "none"}, "shivad: config: --tcp: tcp.listen: \"none\" is not an address: \"\" opens none\n"},
		{[]string{"--tcp", "6174"}, "shivad: config: --tcp: tcp.listen: \"6174\" is not an address: want host:port, as \"127.0.0.1:6174\" or \":6174\"\n"},
		{[]string{"--check", "--log-level", "loud"}, "shivad: config: --log-level: log.level: expected one of debug, info, warn, error, got \"loud\"\n"},
	} {
		if strings.HasPrefix(c.want, "shivad: config") {
			c.want += "  -> shivactl manual settings\n"
		}
		var stdout, stderr bytes.Buffer
		if code := run(c.args, &stdout, &stderr, nil); code != exitBadUsage || stderr.String() != c.want ||
			stdout.Len() > 0 {
			t.Errorf("%q: exit %d\n%s\nwant\n%s", c.args, code, stderr.String(), c.want)
		}
	}
}

func TestVersionAndCheck(t *testing.T) {
	var stdout bytes.Buffer
	if code := run([]string{"--version"}, &stdout, io.Discard, nil); code != exitOK ||
		!strings.HasPrefix(stdout.String(), "shivad 0.") {
		t.Errorf("exit %d, %s", code, stdout.String())
	}
	stdout.Reset()
	if code := run([]string{"--check", "--tcp", ":7"}, &stdout, io.Discard, nil); code != exitOK {
		t.Errorf("exit %d", code)
	}
	// The output of --check is a valid file.
	file := filepath.Join(t.TempDir(), "a.toml")
	if err := os.WriteFile(file, stdout.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := config.Load(file); err != nil || c.TCP.Listen[0] != ":7" {
		t.Errorf("%v %+v", err, c.TCP)
	}
}

// --doctor prints what it finds as a document, and its exit code tells whether anything is wrong.
func TestDoctor(t *testing.T) {
	const closed = "tcp.listen = []\nrest.listen = []\ngrpc.listen = []\nadmin.listen = \"\"\n" +
		"containers.listen = \"127.0.0.1:0\"\n"
	file := filepath.Join(t.TempDir(), "shivad.toml")
	for wrong, settings := range []string{"", "state.at = \"no/state.db\"\n"} {
		if err := os.WriteFile(file, []byte(closed+settings), 0o600); err != nil {
			t.Fatal(err)
		}
		var stdout bytes.Buffer
		var found admin.Diagnosis
		code := run([]string{"--doctor", "--config", file}, &stdout, io.Discard, nil)
		err := json.Unmarshal(stdout.Bytes(), &found)
		if err != nil || code != wrong || found.Wrong != wrong || found.Config != file {
			t.Errorf("%v, exit %d, %s", err, code, stdout.String())
		}
	}
	for _, args := range [][]string{{"--doctor", "--tcp", ":7"}, {"serve", "--doctor", file}} {
		if code := run(args, io.Discard, io.Discard, nil); code != exitBadUsage {
			t.Errorf("%q: exit %d", args, code)
		}
	}
}

// journal is a log that a test can wait on.
type journal struct {
	mu    sync.Mutex
	lines []map[string]any
	more  chan struct{}
}

func (j *journal) Write(p []byte) (int, error) {
	for text := range bytes.Lines(p) {
		var line map[string]any
		if err := json.Unmarshal(text, &line); err != nil {
			return 0, err
		}
		j.mu.Lock()
		j.lines = append(j.lines, line)
		j.mu.Unlock()
	}
	select {
	case j.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

// wait returns the first line with a message.
func (j *journal) wait(t *testing.T, msg string) map[string]any {
	t.Helper()
	patience := time.After(20 * time.Second)
	for {
		j.mu.Lock()
		for _, line := range j.lines {
			if line["msg"] == msg {
				j.mu.Unlock()
				return line
			}
		}
		j.mu.Unlock()
		select {
		case <-j.more:
		case <-patience:
			t.Fatalf("never logged %q", msg)
		}
	}
}

// start runs the whole program on free ports.
func start(t *testing.T, args ...string) (j *journal, signals chan os.Signal, ended chan int) {
	t.Helper()
	j = &journal{more: make(chan struct{}, 1)}
	signals, ended = make(chan os.Signal, 2), make(chan int, 1)
	args = append([]string{"--tcp", "127.0.0.1:0", "--rest", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--containers",
		"127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json"}, args...)
	go func() { ended <- run(args, io.Discard, j, signals) }()
	return j, signals, ended
}

func end(t *testing.T, ended chan int) int {
	t.Helper()
	select {
	case code := <-ended:
		return code
	case <-time.After(20 * time.Second):
		t.Fatal("it did not end")
		return 0
	}
}

func TestServesUntilASignal(t *testing.T) {
	j, signals, ended := start(t, "--log-level", "debug")
	serving := j.wait(t, "serving")
	for _, door := range []string{"tcp", "containers", "admin"} {
		addr, _ := serving[door].(string)
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Errorf("door %s at %q: %v", door, addr, err)
			continue
		}
		c.Close()
	}
	resp, err := http.Get("http://" + serving["admin"].(string) + "/readyz")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("not ready: %v %v", resp, err)
	}
	if err == nil {
		resp.Body.Close()
	}
	effective, _ := j.wait(t, "configuration")["effective"].(map[string]any)
	if tcp, _ := effective["tcp"].(map[string]any); fmt.Sprint(tcp["listen"]) != "[127.0.0.1:0]" {
		t.Errorf("the configuration in the log is %v", effective)
	}
	signals <- syscall.SIGTERM
	if code := end(t, ended); code != exitOK {
		t.Errorf("exit %d", code)
	}
	j.wait(t, "stopped")
}

// The second of two signals does not wait for the drain that the first one began, which a request
// holds up here.
func TestSecondSignal(t *testing.T) {
	j, signals, ended := start(t)
	serving := j.wait(t, "serving")
	asked := make(chan struct{}, 1)
	c, err := containertest.Dial(t.Context(), serving["containers"].(string), containertest.Model{
		Name: "m", Version: "1", Outputs: []tensor.Spec{{Name: "y", DType: tensor.Uint8, Shape: tensor.Shape{-1}}},
		Answer: func(*containertest.Batch) containertest.Reply {
			asked <- struct{}{}
			return containertest.Reply{Silent: true}
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() { // its answer is lost with the server
		url := "http://" + serving["rest"].(string) + "/v2/models/m/infer"
		if r, err := http.Post(url, "application/json", strings.NewReader(`{"inputs":[]}`)); err == nil {
			r.Body.Close()
		}
	}()
	select {
	case <-asked:
	case <-time.After(20 * time.Second):
		t.Fatal("the container was not asked")
	}
	signals <- syscall.SIGTERM
	j.wait(t, "draining")
	signals <- os.Interrupt
	if code := end(t, ended); code != exitFailed {
		t.Errorf("exit %d", code)
	}
	if line := j.wait(t, "ended without draining"); line["signal"] != "interrupt" {
		t.Errorf("logged %v", line)
	}
}

func TestTakenAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	j, _, ended := start(t, "--admin", l.Addr().String())
	if code := end(t, ended); code != exitFailed {
		t.Errorf("exit %d", code)
	}
	line := j.wait(t, "cannot start")
	if text, _ := line["error"].(string); !strings.Contains(text, "address already in use") {
		t.Errorf("logged %q", text)
	}
	if text, _ := line["remedy"].(string); !strings.Contains(text, fmt.Sprintf("(process %d) has it: ", os.Getpid())) {
		t.Errorf("the remedy is %q", text)
	}
}

// State that cannot be opened ends the process with exit code 1 and one line with the reason and
// advice; an absent Redis that is not required does not.
func TestStateThatCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	for target, want := range map[string][]string{
		dir:                       {"not a regular file", filepath.Join(dir, "state.db")},
		filepath.Join(dir, "a/b"): {"no such file or directory", "make its directory first"},
		"redis://127.0.0.1:1/0":   {"connection refused", "state.required"},
	} {
		j, _, ended := start(t, "--state", target)
		if code := end(t, ended); code != exitFailed {
			t.Errorf("%s: exit %d", target, code)
		}
		text, _ := j.wait(t, "cannot start")["error"].(string)
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%s: logged %q, want %q in it", target, text, part)
			}
		}
	}
	file := filepath.Join(dir, "shivad.toml")
	if err := os.WriteFile(file, []byte("[state]\nat = \"redis://127.0.0.1:1/0\"\nrequired = false\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	j, signals, ended := start(t, "--config", file)
	j.wait(t, "serving")
	signals <- syscall.SIGTERM
	if code := end(t, ended); code != exitOK {
		t.Errorf("exit %d", code)
	}
}

func TestLogger(t *testing.T) {
	var b bytes.Buffer
	log, _ := logger(config.Log{Level: "warn", Format: "text"}, &b)
	log.Info("no")
	log.Warn("yes", "config", asText{config.Default()})
	if got := b.String(); strings.Contains(got, "msg=no") || !strings.Contains(got, "msg=yes") ||
		!strings.Contains(got, `\"drain\":\"30s\"`) {
		t.Errorf("logged %s", got)
	}
	if log.Enabled(t.Context(), slog.LevelInfo) {
		t.Error("info is not below warn")
	}
}

// SIGHUP reads the file again, beneath the flags: settings that can change do, and an invalid file
// is named in the log and changes nothing. Without a file SIGHUP does nothing. In no case does the
// process end.
func TestReloadBySignal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shivad.toml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("[log]\nlevel = \"warn\"\n[server]\nrepository = \"local\"\n")
	j, signals, ended := start(t, "--config", file, "--log-level", "info")
	serving := j.wait(t, "serving")
	write("[tcp]\nconnections = -1\n[server]\nrepository = \"none\"\n")
	signals <- syscall.SIGHUP
	if text, _ := j.wait(t, "the configuration was not reloaded")["error"].(string); !strings.Contains(text, file+":2:1: tcp.connections") {
		t.Errorf("logged %q", text)
	}
	write("[tcp]\nloops = 9\n[server]\nrepository = \"none\"\n")
	signals <- syscall.SIGHUP
	line := j.wait(t, "configuration reloaded")
	if changed, waiting := fmt.Sprint(line["changed"]),
		fmt.Sprint(line["wait for a restart"]); changed != "[server.repository]" || waiting != "[tcp.loops]" {
		t.Errorf("changed %s, waiting %s", changed, waiting)
	}
	resp, err := http.Get("http://" + serving["admin"].(string) + "/v1/config")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var now struct{ Server struct{ Repository string } }
	if err := json.NewDecoder(resp.Body).Decode(&now); err != nil || now.Server.Repository != "none" {
		t.Errorf("in effect is %+v, %v", now, err)
	}
	signals <- syscall.SIGTERM
	if code := end(t, ended); code != exitOK {
		t.Errorf("exit %d", code)
	}

	j, signals, ended = start(t, "--config", file)
	j.wait(t, "serving")
	write("\n") // as an editor leaves it for a moment
	signals <- syscall.SIGHUP
	if text, _ := j.wait(t, "the configuration was not reloaded")["error"].(string); !strings.Contains(text, file+" is empty") {
		t.Errorf("logged %q", text)
	}
	signals <- syscall.SIGTERM
	if code := end(t, ended); code != exitOK {
		t.Errorf("exit %d", code)
	}

	j, signals, ended = start(t)
	j.wait(t, "serving")
	signals <- syscall.SIGHUP
	if text, _ := j.wait(t, "the configuration was not reloaded")["error"].(string); !strings.Contains(text, "without a configuration file") {
		t.Errorf("logged %q", text)
	}
	signals <- syscall.SIGTERM
	if code := end(t, ended); code != exitOK {
		t.Errorf("exit %d", code)
	}
}

// The level of the log is that of the file that was read last.
func TestReloadOfTheLevel(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shivad.toml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j, signals, ended := start(t, "--config", file)
	serving := j.wait(t, "serving")
	if err := os.WriteFile(file, []byte("[log]\nlevel = \"error\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post("http://"+serving["admin"].(string)+"/v1/config/reload", "application/json", nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
	signals <- syscall.SIGTERM
	if code := end(t, ended); code != exitOK {
		t.Errorf("exit %d", code)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, line := range j.lines {
		if line["msg"] == "draining" || line["msg"] == "stopped" {
			t.Errorf("at level error the log says %v", line)
		}
	}
}
