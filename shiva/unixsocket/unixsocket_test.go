//go:build unix

package unixsocket

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/shivad/shivad/shiva/hosttest"
)

// TestMain also runs as a server that will be killed, or one without privileges, for the tests that
// run this program again.
func TestMain(m *testing.M) {
	if path := os.Getenv("UNIXSOCKET_LISTEN"); path != "" {
		l, err := Listen(path, Access{})
		if err != nil {
			os.Stdout.WriteString(err.Error())
			os.Exit(1)
		}
		os.Stdout.WriteString("listening\n")
		// Until it is killed. A garbage collection would close a listener that is out of use.
		for {
			_, _ = l.Accept()
		}
	}
	os.Exit(m.Run())
}

// again runs this program as a server that listens at path.
func again(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "UNIXSOCKET_LISTEN="+path)
	return c
}

func mustListen(t *testing.T, path string, a Access) *Listener {
	t.Helper()
	l, err := Listen(path, a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// abandon leaves a socket behind, like a server that was killed.
func abandon(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

func dials(path string) error {
	c, err := net.Dial("unix", path)
	if err == nil {
		c.Close()
	}
	return err
}

func TestCut(t *testing.T) {
	for addr, want := range map[string]string{
		"unix:/run/a.sock": "/run/a.sock", "unix:///run/a.sock": "/run/a.sock", "unix:a.sock": "a.sock",
		"unix:@a": "@a", "unix:": "",
	} {
		if path, ok := Cut(addr); !ok || path != want {
			t.Errorf("%s: %q, %v; expected %q", addr, path, ok, want)
		}
	}
	for _, addr := range []string{"", ":1", "/run/a.sock", "unix.example.org:6174"} {
		if path, ok := Cut(addr); ok {
			t.Errorf("%s is taken for the path %q", addr, path)
		}
	}
}

func TestTarget(t *testing.T) {
	for addr, want := range map[string][2]string{"unix:/a": {"unix", "/a"}, "unix:@a": {"unix", "@a"}, "h:1": {"tcp", "h:1"}} {
		if network, address := Target(addr); network != want[0] || address != want[1] {
			t.Errorf("%s: %s, %s; expected %v", addr, network, address, want)
		}
	}
}

func TestPathsThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	long := filepath.Join(dir, strings.Repeat("x", Longest-len(dir)))
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	living := filepath.Join(dir, "living")
	mustListen(t, living, Access{})
	for _, k := range []struct{ path, want string }{
		{"", "without a path"},
		{"@", "without a name"},
		{"a\x00b", "NUL"},
		{long, "at most 107 bytes, this one has 108"},
		{file, "not a socket"},
		{dir, "a directory"},
		{filepath.Join(dir, "missing", "a.sock"), filepath.Join(dir, "missing") + ": no such file or directory"},
		{filepath.Join(file, "a.sock"), "not a directory"},
		{living, "another server listens on this socket"},
	} {
		l, err := Listen(k.path, Access{})
		if err == nil {
			l.Close()
			t.Errorf("%q can be opened", k.path)
		} else if !strings.Contains(err.Error(), k.want) || !strings.HasPrefix(err.Error(), "listen unix:") {
			t.Errorf("%q: %v; expected %q", k.path, err, k.want)
		}
	}
	if text, err := os.ReadFile(file); string(text) != "precious" {
		t.Errorf("the file that was there: %q, %v", text, err)
	}
	if err := dials(living); err != nil {
		t.Errorf("the server that was there: %v", err)
	}
	mustListen(t, long[:len(long)-1], Access{}) // the longest allowed
}

// A socket that a server of another kind listens on does not count as abandoned.
func TestOtherKindsOfSockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := Listen(path, Access{}); err == nil || !strings.Contains(err.Error(), "cannot determine") {
		t.Errorf("where a socket for datagrams is: %v", err)
	}
}

// A server that does not accept counts as alive, even when its backlog is full.
func TestFullBacklog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if c, err := net.Dial("unix", path); err == nil {
			defer c.Close()
		}
	}
	if l, err := Listen(path, Access{}); err == nil {
		l.Close()
		t.Error("its socket was taken from a server that is busy")
	}
}

func TestRelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	abandon(t, "a.sock")
	l := mustListen(t, "a.sock", Access{})
	if err := dials("a.sock"); err != nil {
		t.Error(err)
	}
	l.Close()
	if _, err := os.Lstat("a.sock"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
}

func TestAbstractName(t *testing.T) {
	name := "@shiva-unixsocket-test-" + strconv.Itoa(os.Getpid())
	l := mustListen(t, name, Access{Mode: 0o600, Owner: "nobody"}) // an abstract name has neither
	if err := dials(name); err != nil {
		t.Error(err)
	}
	if _, err := Listen(name, Access{}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("where a server listens: %v", err)
	}
	l.Close()
	mustListen(t, name, Access{})
}

// A server that is killed leaves its socket behind, and the next one takes it over.
func TestAfterKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	c := again(t, path)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("listening\n"))); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, Access{}); err == nil {
		t.Error("a living server's socket can be taken")
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	if _, err := os.Lstat(path); err != nil {
		t.Fatalf("nothing is left behind: %v", err)
	}
	mustListen(t, path, Access{})
	if err := dials(path); err != nil {
		t.Error(err)
	}
}

// Of servers that start at the same time on a dead server's socket, exactly one gets the socket,
// and clients reach that one.
func TestManyStartAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	for range 30 {
		abandon(t, path)
		var won []*Listener
		var mu sync.Mutex
		var all sync.WaitGroup
		begin := make(chan struct{})
		for range 8 {
			all.Go(func() {
				<-begin
				if l, err := Listen(path, Access{}); err == nil {
					mu.Lock()
					won = append(won, l)
					mu.Unlock()
				}
			})
		}
		close(begin)
		all.Wait()
		if len(won) != 1 {
			t.Fatalf("%d servers listen at one path", len(won))
		}
		if err := dials(path); err != nil {
			t.Fatal(err)
		}
		won[0].Close()
	}
}

// Close leaves a file that has replaced its own, and a missing file is not an error.
func TestCloseRemovesItsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	first := mustListen(t, path, Access{})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second := mustListen(t, path, Access{})
	first.Close()
	if err := dials(path); err != nil {
		t.Errorf("the second server's socket: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if err := second.Close(); err == nil {
		t.Error("closed twice, and told of it never")
	}
}

func TestAccess(t *testing.T) {
	dir := t.TempDir()
	for _, mode := range []fs.FileMode{0o600, 0o660, 0o666} {
		path := filepath.Join(dir, strconv.FormatUint(uint64(mode), 8))
		mustListen(t, path, Access{Mode: mode})
		if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("mode %v, %v; expected %v", info.Mode(), err, mode)
		}
	}
	for _, k := range []struct {
		access Access
		want   string
	}{
		{Access{Owner: "no-such-user"}, `no user "no-such-user"`},
		{Access{Group: "no-such-group"}, `no group "no-such-group"`},
		{Access{Owner: "4294967295"}, "maximum"},
		{Access{Group: "-1"}, `no group "-1"`},
	} {
		path := filepath.Join(dir, "refused")
		if _, err := Listen(path, k.access); err == nil || !strings.Contains(err.Error(), k.want) {
			t.Errorf("%+v: %v; expected %q", k.access, err, k.want)
		}
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%+v leaves a socket behind", k.access)
		}
	}
	me, err := user.Current()
	if err != nil {
		hosttest.Lacks(t, "this user has no name: "+err.Error())
	}
	mustListen(t, filepath.Join(dir, "mine"), Access{Owner: me.Username, Group: me.Gid})
}

// Operations that need root, or that root may do regardless of permissions, are tested as both
// users.
func TestPrivileges(t *testing.T) {
	if os.Getuid() != 0 {
		l, err := Listen(filepath.Join(t.TempDir(), "a.sock"), Access{Owner: "0"})
		if err == nil {
			l.Close()
		}
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("a socket given to root by another: %v", err)
		}
		return
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "a.sock")
	mustListen(t, path, Access{Owner: "12345", Group: "54321"})
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if s := info.Sys().(*syscall.Stat_t); s.Uid != 12345 || s.Gid != 54321 {
		t.Errorf("owner %d and group %d", s.Uid, s.Gid)
	}
	for parent := dir; parent != os.TempDir() && parent != "/"; parent = filepath.Dir(parent) {
		if err := os.Chmod(parent, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "b.sock"): "no permission to make a file in " + dir,
		path:                         "permission denied", // to check that the server is alive
	} {
		c := again(t, path)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		c.Path = copied(t, dir)
		if out, err := c.Output(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s, by somebody without privileges: %q, %v; expected %q", path, out, err, want)
		}
	}
}

// copied copies this program to where every user may execute it.
func copied(t *testing.T, dir string) string {
	t.Helper()
	program, err := os.ReadFile(os.Args[0])
	at := filepath.Join(dir, "program")
	if err == nil {
		err = os.WriteFile(at, program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// While another process holds the directory's lock, Listen fails after a bounded wait.
func TestLockedDirectory(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := Listen(filepath.Join(dir, "a.sock"), Access{}); err == nil || !strings.Contains(err.Error(), "locked") {
		t.Errorf("opened beside a lock: %v", err)
	}
}

// TestGrantFollowsNoLink: if the socket's file is replaced by a link between bind and chmod, the
// file that the link leads to keeps its permissions.
func TestGrantFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	victim, path := filepath.Join(dir, "victim"), filepath.Join(dir, "socket")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, path); err != nil {
		t.Fatal(err)
	}
	if _, err := grant(path, 0o666, os.Getuid(), -1); err == nil || !strings.Contains(err.Error(), "replaced") {
		t.Errorf("a link is taken for the socket: %v", err)
	}
	if info, err := os.Stat(victim); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the other file is %v, %v", info.Mode(), err)
	}
}
