package state_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/server/state/statetest"
	"github.com/shivad/shivad/shiva/budgettest"
)

// refused opens a store that cannot be opened, and checks that the error has the parts that an
// operator needs. The store must be nil as well: otherwise a caller that closes the returned store
// would call a method on a nil pointer.
func refused(t *testing.T, target string, parts ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := state.Open(ctx, target, state.Options{Required: true, Settle: time.Millisecond})
	if s != nil {
		t.Errorf("the store of %s is %T, want nil", target, s)
	}
	if err == nil {
		t.Fatalf("%s was opened", target)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %q, want %q in it", target, err, part)
		}
	}
	if strings.ContainsAny(err.Error(), "\n\t") || strings.Contains(err.Error(), "secret") {
		t.Errorf("%s: %q, want one line, without the password", target, err)
	}
}

// For every file that cannot be opened the error says why and what to do, and the file is left as
// it was.
func TestFileRefused(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(at(name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, at("locked"), state.Options{})
	for i := range 200 {
		statetest.Put(t, s, fmt.Sprintf("key/%d", i), strings.Repeat("value", i))
	}
	good, err := os.ReadFile(at("locked"))
	if err != nil {
		t.Fatal(err)
	}
	write("text", bytes.Repeat([]byte("name = \"shivad\"\n"), 1000))
	write("short", []byte("x"))
	write("cut", good[:8192])
	flipped := bytes.Clone(good)
	for i := 8192; i < len(flipped); i += 512 {
		flipped[i] ^= 0x10
	}
	write("flipped", flipped)
	write("format", good)
	db, err := bbolt.Open(at("format"), 0o600, nil)
	if err == nil {
		err = db.Update(func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("shivad state")).Put([]byte("format"), []byte("99"))
		})
	}
	if err != nil || db.Close() != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at("directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, parts := range map[string][]string{
		"locked":     {"in use by another process", "stop the other shivad"},
		"text":       {"corrupt", "left as it is", "backup"},
		"short":      {"corrupt", "left as it is"},
		"cut":        {"corrupt", "left as it is"},
		"flipped":    {"corrupt", "left as it is"},
		"format":     {`format "99", want "1"`, "another release"},
		"directory":  {"not a regular file", at("directory") + "/state.db"},
		"pipe":       {"not a regular file"},
		"text/a":     {"not a directory"},
		"nowhere/at": {"no such file", "make its directory"},
	} {
		var before []byte
		if info, err := os.Stat(at(name)); err == nil && info.Mode().IsRegular() {
			if before, err = os.ReadFile(at(name)); err != nil {
				t.Fatal(err)
			}
		}
		refused(t, at(name), append(parts, at(name))...)
		if before != nil {
			if after, err := os.ReadFile(at(name)); err != nil || !bytes.Equal(before, after) {
				t.Errorf("%s was changed, or cannot be read: %v", name, err)
			}
		}
	}
}

// A file of another user, and one in a directory that is not writable. Root may do everything, so
// another user tries.
func TestFileForbidden(t *testing.T) {
	if os.Getuid() == 0 {
		asNobody(t)
		return
	}
	path := filepath.Join(t.TempDir(), "state.db")
	if err := os.WriteFile(path, nil, 0); err != nil {
		t.Fatal(err)
	}
	refused(t, path, path, "permission denied", "must be able to read and write it")
	if err := os.Chmod(filepath.Dir(path), 0o500); err != nil {
		t.Fatal(err)
	}
	refused(t, path+"2", "permission denied", "directory must not be read-only")
	if err := os.Chmod(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
}

// asNobody runs the calling test again in a process of the user nobody.
func asNobody(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "nobody") // t.TempDir is in a directory of root's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	binary := filepath.Join(dir, "test")
	data, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(binary, data, 0o755)
	}
	if err == nil {
		err = os.Chmod(dir, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534},
		Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Errorf("%v\n%s", err, out)
	}
}

// A new file for which there is no room is removed: half of it would be taken for a damaged file
// later.
func TestFileWithoutRoom(t *testing.T) {
	out, err := child("no room", filepath.Join(t.TempDir(), "state.db")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "good") {
		t.Errorf("%v\n%s", err, out)
	}
}

// openWithoutRoom opens a new file while files are limited to one page, then again without that
// limit.
func openWithoutRoom(path string) {
	fault := func(format string, about ...any) {
		fmt.Printf(format+"\n", about...)
		os.Exit(1)
	}
	limitFileSize(fault, 4096)
	s, err := state.Open(context.Background(), path, state.Options{})
	if err == nil || s != nil || !strings.Contains(err.Error(), "make room on its disk") {
		fault("without room: %v %v", s, err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		fault("left behind: %v", err)
	}
	limitFileSize(fault, 0)
	if s, err = state.Open(context.Background(), path, state.Options{}); err != nil {
		fault("with room again: %v", err)
	}
	if err := s.Close(); err != nil {
		fault("close: %v", err)
	}
	fmt.Println("good")
}

// For a Redis that cannot be read the error says why and what to do.
func TestRedisRefused(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	stranger, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	go func() {
		for {
			c, err := stranger.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"))
			_ = c.Close()
		}
	}()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	r := statetest.NewRedis(t)
	locked := statetest.NewRedis(t, "--requirepass", "secret1")
	socket := func(r *statetest.Redis) string { return strings.TrimPrefix(r.Target(), "unix://") }

	refused(t, "redis://127.0.0.1:1/0", "127.0.0.1:1", "connection refused", "start it or check the address", "state.required = false")
	refused(t, "redis://"+stranger.Addr().String(), "does not speak the protocol of Redis")
	refused(t, "redis://"+silent.Addr().String(), "start it or check the address")
	refused(t, locked.Target(), "NOAUTH", "wants a password")
	refused(t, "unix://:secret2@"+socket(locked), "WRONGPASS", "check user and password")
	refused(t, "unix://nobody:secret2@"+socket(locked), "WRONGPASS", "check user and password")
	refused(t, r.Target()+"?db=99", "DB index is out of range", "name a database")
	r.Do(t, "set", "shivad:entries", "theirs")
	refused(t, r.Target(), "WRONGTYPE", "another state.namespace")
	r.Do(t, "del", "shivad:entries", "shivad:meta")
	r.Do(t, "config", "set", "maxmemory", "1")
	refused(t, r.Target(), "OOM", "maxmemory")
	r.Do(t, "config", "set", "maxmemory", "0")
	r.Do(t, "acl", "setuser", "weak", "on", ">secret3", "~*", "+hgetall")
	refused(t, "unix://weak:secret3@"+socket(r), "NOPERM", "DESIGN.md")
	open(t, r.Target(), state.Options{Required: true})
}
