package containers_test

import (
	"fmt"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/hosttest"
)

// tryPrivileges is the supervised process: it prints its privileges, one fact a line.
func tryPrivileges() {
	signal.Ignore(syscall.SIGXFSZ) // EFBIG instead
	groups, _ := os.Getgroups()
	fmt.Println("user", os.Getuid(), os.Getgid(), groups, os.Getenv("HOME"), os.Getenv("USER"))
	fmt.Println("environment", os.Getenv("SHIVA_TEST_SECRET"), os.Getenv("EXTRA"), os.Getenv("PATH") != "")
	fmt.Println(fact("/proc/self/status", "NoNewPrivs:"))
	for _, name := range []string{"Max data size", "Max file size", "Max open files", "Max processes"} {
		fmt.Println(fact("/proc/self/limits", name))
	}
	dir := os.Getenv("TRY")
	for _, try := range []struct {
		name string
		err  error
	}{
		{"create", os.WriteFile(dir+"/fixed/new", nil, 0o666)},
		{"truncate", os.Truncate(dir+"/fixed/file", 0)},
		{"remove", os.Remove(dir + "/fixed/file")},
		{"move", os.Rename(dir+"/open/file", dir+"/fixed/moved")},
		{"device", os.WriteFile("/dev/null", []byte("x"), 0)},
		{"shm", os.WriteFile("/dev/shm/"+filepath.Base(dir), nil, 0o666)},
		{"open", os.WriteFile(dir+"/open/new", make([]byte, 1000), 0o666)},
		{"large", os.WriteFile(dir+"/open/large", make([]byte, 100_000), 0o666)},
	} {
		os.Remove("/dev/shm/" + filepath.Base(dir))
		what := "done"
		if try.err != nil {
			what = try.err.Error()[strings.LastIndex(try.err.Error(), ": ")+2:]
		}
		fmt.Println(try.name, what)
	}
	fmt.Println("end")
	time.Sleep(time.Hour)
}

// fact returns the line of a file with that beginning, with single spaces.
func fact(file, begin string) string {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, begin) {
			return strings.Join(strings.Fields(line), " ")
		}
	}
	return begin + " missing"
}

// tried returns the output of a process with those privileges.
func tried(t *testing.T, p containers.Privileges) (*containers.Supervisor, []string) {
	t.Helper()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{".": 0o777, "open": 0o777, "fixed": 0o777} {
		if err := os.MkdirAll(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
		os.Chmod(filepath.Join(dir, name), mode)
	}
	for up := dir; up != os.TempDir() && up != "/"; up = filepath.Dir(up) {
		os.Chmod(up, 0o777) // for another user
	}
	for _, name := range []string{"open/file", "fixed/file"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("content"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if p.ReadOnly {
		p.Writable = []string{filepath.Join(dir, "open")}
	}
	cmd := child("confined")
	cmd.Privileges = p
	cmd.Env["TRY"] = dir
	if p.User != "" { // that user may not enter the directory of this program
		program, err := os.ReadFile(os.Args[0])
		if err != nil {
			t.Fatal(err)
		}
		cmd.Args[0] = filepath.Join(dir, "program")
		if err := os.WriteFile(cmd.Args[0], program, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s, _ := supervise(t, cmd)
	budgettest.Until(t, "the process to tell", func() bool { return slices.Contains(s.Status()[0].LastLines, "end") })
	return s, s.Status()[0].LastLines
}

func want(t *testing.T, lines []string, facts ...string) {
	t.Helper()
	for _, f := range facts {
		if !slices.Contains(lines, f) {
			t.Errorf("no %q in %q", f, lines)
		}
	}
}

// TestEnvironment: processes inherit only the named variables, and those that every program needs.
func TestEnvironment(t *testing.T) {
	t.Setenv("SHIVA_TEST_SECRET", "password")
	_, lines := tried(t, containers.Privileges{})
	want(t, lines, "environment  a=b true")
	for _, names := range [][]string{{"*"}, {"SHIVA_TEST_*"}, {"x", "SHIVA_TEST_SECRET"}} {
		_, lines = tried(t, containers.Privileges{InheritEnv: names})
		want(t, lines, "environment password a=b true")
	}
}

// TestFallback: a variable that a process neither inherits nor is given is that of Fallback. Each
// process knows its number.
func TestFallback(t *testing.T) {
	t.Setenv("SHIVA_TEST_INHERITED", "of this process")
	cmd := child("")
	cmd.Args = []string{"sh", "-c", "echo $SHIVA_TEST_INHERITED, $EXTRA, $SHIVA_TEST_FALLBACK, $SHIVA_REPLICA"}
	cmd.Replicas = 2
	cmd.Privileges.InheritEnv = []string{"*"}
	cmd.Fallback = map[string]string{"SHIVA_TEST_INHERITED": "1", "EXTRA": "2", "SHIVA_TEST_FALLBACK": "3"}
	s, _ := supervise(t, cmd)
	for i := range cmd.Replicas {
		budgettest.Until(t, "a line", func() bool { return len(s.Status()[i].LastLines) > 0 })
		if line, want := s.Status()[i].LastLines[0], fmt.Sprintf("of this process, a=b, 3, %d", i); line != want {
			t.Errorf("%q, want %q", line, want)
		}
	}
}

// TestNewPrivileges: a process cannot gain privileges, unless that is allowed; the other processes
// are not affected, and no thread stays behind with fewer privileges than the rest.
func TestNewPrivileges(t *testing.T) {
	if fact(fmt.Sprintf("/proc/%d/status", os.Getppid()), "NoNewPrivs:") == "NoNewPrivs: 1" {
		hosttest.Lacks(t, "the tests were started without the right to gain privileges")
	}
	budgettest.Until(t, "the threads of other tests to end", func() bool { return confinedThreads() == 0 })
	_, lines := tried(t, containers.Privileges{NewPrivileges: true})
	want(t, lines, "NoNewPrivs: 0", "create done", "truncate done", "remove done", "move done", "shm done", "large done")
	s, lines := tried(t, containers.Privileges{})
	want(t, lines, "NoNewPrivs: 1", "create done", "large done")
	if n := confinedThreads(); n != 1 {
		t.Errorf("%d threads of this process cannot gain privileges, want that of the supervisor", n)
	}
	s.Close()
	budgettest.Until(t, "the thread to end", func() bool { return confinedThreads() == 0 })
}

// confinedThreads counts the threads of this process that cannot gain privileges.
func confinedThreads() (n int) {
	tasks, _ := filepath.Glob("/proc/self/task/*/status")
	for _, file := range tasks {
		if fact(file, "NoNewPrivs:") == "NoNewPrivs: 1" {
			n++
		}
	}
	return n
}

// TestReadOnly: changes fail except to devices and in allowed directories, while the other
// processes write.
func TestReadOnly(t *testing.T) {
	t.Parallel() // it mostly waits
	s, lines := tried(t, containers.Privileges{ReadOnly: true, NewPrivileges: true})
	const no = "permission denied"
	want(t, lines, "create "+no, "truncate "+no, "remove "+no, "move "+no, "shm "+no, "device done", "open done",
		"large done", "NoNewPrivs: 1")
	if err := os.WriteFile(filepath.Join(t.TempDir(), "file"), nil, 0o600); err != nil {
		t.Errorf("this process cannot write: %v", err)
	}
	// A second process of the same thread is as confined as the first.
	syscall.Kill(s.Status()[0].PID, syscall.SIGKILL)
	budgettest.Until(t, "the process to tell again", func() bool {
		lines = s.Status()[0].LastLines
		return s.Status()[0].Restarts > 0 && len(lines) > 0 && lines[len(lines)-1] == "end" &&
			slices.Index(lines, "end") < len(lines)-1
	})
	want(t, lines[slices.Index(lines, "end"):], "create "+no, "truncate "+no, "open done")
}

// TestUser: the user's number, group, groups and home; without the right to change the user the
// reason is in the status.
func TestUser(t *testing.T) {
	u, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	p := containers.Privileges{User: "nobody"}
	if os.Geteuid() != 0 {
		if u.Uid == strconv.Itoa(os.Geteuid()) {
			hosttest.Lacks(t, "another user than nobody")
		}
		cmd := child("confined")
		cmd.Privileges = p
		s, _ := supervise(t, cmd)
		budgettest.Until(t, "the refusal", func() bool { return strings.Contains(s.Status()[0].LastExit, "CAP_SETUID") })
		return
	}
	_, lines := tried(t, p)
	groups, _ := u.GroupIds()
	want(t, lines, fmt.Sprintf("user %s %s %s %s nobody", u.Uid, u.Gid, groups, u.HomeDir), "open done")
}

// TestLimits: each limit holds from the first instruction on.
func TestLimits(t *testing.T) {
	_, lines := tried(t, containers.Privileges{Memory: 1 << 30, FileBytes: 50_000, OpenFiles: 64})
	want(t, lines, "Max data size 1073741824 1073741824 bytes", "Max file size 50000 50000 bytes",
		"Max open files 64 64 files", "open done", "large file too large")
	// The rights that another user's limits require are in the status where they are missing.
	cmd := child("confined")
	cmd.Args = []string{"/bin/cat", "/proc/self/limits"}
	cmd.Privileges = containers.Privileges{User: "nobody", Processes: 200}
	s, _ := supervise(t, cmd)
	budgettest.Until(t, "a process with limits, or the reason why there is none", func() bool {
		p := s.Status()[0]
		return strings.Contains(p.LastExit, "CAP_S") || strings.Contains(strings.Join(p.LastLines, " "), "Max processes             200                  200")
	})
}

// TestPrivilegesFaults: each fault is named; a fault that may go away is retried, and in the
// status.
func TestPrivilegesFaults(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, c := range []struct {
		p    containers.Privileges
		want string
	}{
		{containers.Privileges{User: "no-such-user"}, `user: "no-such-user" is not a user of this machine`},
		{containers.Privileges{InheritEnv: []string{"A*B"}}, `inherit_env: "A*B" is not the name of`},
		{containers.Privileges{InheritEnv: []string{""}}, `inherit_env: "" is not the name of`},
		{containers.Privileges{ReadOnly: true, Writable: []string{"tmp"}}, `writable: "tmp" is not an absolute path`},
		{containers.Privileges{Writable: []string{"/tmp"}}, "writable: has no meaning without read_only"},
		{containers.Privileges{Memory: -1}, "memory: expected 0B to 16TiB, got -1B"},
		{containers.Privileges{Processes: 5}, "processes: counts all processes of a user"},
	} {
		cmd := child("confined")
		cmd.Privileges = c.p
		if s, err := containers.Supervise(cmd); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.p, err, c.want)
			if err == nil {
				s.Close()
			}
		}
	}
	cmd := child("confined")
	missing := filepath.Join(t.TempDir(), "later")
	cmd.Privileges = containers.Privileges{ReadOnly: true, Writable: []string{missing}}
	cmd.Env["TRY"] = t.TempDir()
	s, _ := supervise(t, cmd)
	budgettest.Until(t, "the reason", func() bool {
		return s.Status()[0].LastExit == "writable: open "+missing+": no such file or directory"
	})
	if err := os.Mkdir(missing, 0o700); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "it to start", func() bool { return slices.Contains(s.Status()[0].LastLines, "end") })
}
