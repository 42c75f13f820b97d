//go:build linux

package arena_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/containers/internal/arena"
	"github.com/shivad/shivad/shiva/tensor"
)

const mib = 1 << 20

// TestMain is also the other process of TestOtherProcess.
func TestMain(m *testing.M) {
	if path := os.Getenv("ARENA_TEST_PATH"); path != "" {
		os.Exit(other(path))
	}
	os.Exit(m.Run())
}

// other maps the segment that the environment describes, prints what it finds, and tries what it
// must not do.
func other(path string) int {
	size, _ := strconv.ParseInt(os.Getenv("ARENA_TEST_SIZE"), 10, 64)
	at, _ := strconv.ParseInt(os.Getenv("ARENA_TEST_AT"), 10, 64)
	token, _ := hex.DecodeString(os.Getenv("ARENA_TEST_TOKEN"))
	mem, err := arena.Map(path, size, token, false)
	if err != nil {
		os.Stdout.WriteString(err.Error())
		return 0
	}
	os.Stdout.Write(mem[at : at+5])
	if err := unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		os.Stdout.WriteString(" mprotect made it writable")
	}
	if _, err := arena.Map(path, size, token, true); !errors.Is(err, unix.EPERM) {
		os.Stdout.WriteString(" mapped for writing")
	}
	fd, err := unix.Open(path, unix.O_RDWR, 0)
	if err != nil {
		os.Stdout.WriteString(err.Error())
		return 0
	}
	if unix.Ftruncate(fd, 4096) == nil {
		os.Stdout.WriteString(" truncated")
	}
	if _, err := unix.Pwrite(fd, []byte("x"), at); err == nil {
		os.Stdout.WriteString(" written")
	}
	if unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 0, size) == nil {
		os.Stdout.WriteString(" punched")
	}
	return 0
}

// open makes an arena and a pool of it.
func open(t *testing.T, size, budget int64) (*arena.Arena, *tensor.Pool, *[]*arena.Segment) {
	t.Helper()
	var retired []*arena.Segment
	a := arena.New(size, func(err error) { t.Error(err) })
	a.OnRetire(func(s *arena.Segment) { retired = append(retired, s) })
	t.Cleanup(func() {
		a.Renew()
		if n := a.Resident(); n != 0 && !tensor.Invariants {
			t.Errorf("%d bytes left", n)
		}
	})
	return a, tensor.NewPoolFrom(a, budget), &retired
}

func get(t *testing.T, p *tensor.Pool, n int) *tensor.Buffer {
	t.Helper()
	b, err := p.Get(n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestOtherProcess(t *testing.T) {
	a, pool, _ := open(t, 8*mib, 0)
	b := get(t, pool, mib)
	copy(b.Bytes(), "hello")
	s, at := a.Find(b.Bytes())
	run := func(token string) string {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "ARENA_TEST_PATH="+s.Path, "ARENA_TEST_TOKEN="+token,
			"ARENA_TEST_SIZE="+strconv.FormatInt(s.Size(), 10), "ARENA_TEST_AT="+strconv.FormatInt(at, 10))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if got := run(s.Token); got != "hello" {
		t.Errorf("the other process: %s", got)
	}
	if got := run(strings.Repeat("0", 32)); !strings.Contains(got, "another segment") {
		t.Errorf("with another token: %s", got)
	}
	if string(b.Bytes()[:5]) != "hello" {
		t.Error("the memory has changed")
	}
	b.Release()
}

// TestMapRefuses: only a segment of the right size is mapped.
func TestMapRefuses(t *testing.T) {
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	a, _, _ := open(t, 8*mib, 0)
	s := a.Current()
	defer s.Release()
	for path, want := range map[string]string{file: "another file", s.Path: "another file", "/proc/1/nothing": "no such file"} {
		if _, err := arena.Map(path, 8192, make([]byte, 16), false); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %q", path, err, want)
		}
	}
}

// TestPool: large buffers lie in the arena, small ones and those without a place there do not, and
// memory is reused.
func TestPool(t *testing.T) {
	for _, n := range []int{1, 32 << 10, 33 << 10, mib, 7 * mib, 64 * mib, 64*mib + 1, 100*mib + 1, 128 * mib,
		129 * mib} {
		a, pool, _ := open(t, 128*mib, 0)
		b := get(t, pool, n)
		s, at := a.Find(b.Bytes())
		if inside := n > 32<<10 && n < 128*mib; inside != (s != nil) || at%4096 != 0 {
			t.Errorf("%d bytes: in the arena: %v, at %d", n, s != nil, at)
		}
		b.Release()
	}
	if tensor.Invariants {
		return // released memory waits before it is reused
	}
	a, pool, _ := open(t, 128*mib, 0)
	get(t, pool, 7*mib).Release()
	before := a.Resident()
	for range 100 {
		x, y := get(t, pool, mib), get(t, pool, 2*mib)
		x.Release()
		y.Release()
	}
	if a.Resident() != before || pool.InUse() != 0 || pool.Idle() != a.Idle() || a.Idle() != before-4096 {
		t.Errorf("%d bytes after %d; %d in use, %d idle", a.Resident(), before, pool.InUse(), pool.Idle())
	}
}

// TestFull: buffers for which the arena has no place are ordinary memory.
func TestFull(t *testing.T) {
	a, pool, _ := open(t, 4*mib, 0)
	var all []*tensor.Buffer
	outside := 0
	for range 6 {
		b := get(t, pool, mib)
		if s, _ := a.Find(b.Bytes()); s == nil {
			outside++
		}
		all = append(all, b)
	}
	if outside != 3 { // no tensor lies in the first page
		t.Errorf("%d of 6 buffers of 1 MiB lie outside of a segment of 4 MiB", outside)
	}
	for _, b := range all {
		b.Release()
	}
	if pool.InUse() != 0 {
		t.Errorf("%d bytes in use", pool.InUse())
	}
}

// TestBudget: memory of the arena counts, used or idle, and idle memory does not cause refusals for
// ever: an idle segment is freed with the last session that maps it, and a session that maps it for
// ever takes memory from the arena alone.
func TestBudget(t *testing.T) {
	a, pool, retired := open(t, 8*mib, 16*mib)
	mapped := a.Current()
	var all []*tensor.Buffer
	for {
		b, err := pool.Get(mib)
		if err != nil {
			if !errors.Is(err, tensor.ErrBudget) {
				t.Fatal(err)
			}
			break
		}
		all = append(all, b)
	}
	if len(all) != 16 {
		t.Errorf("%d MiB fit into a budget of 16", len(all))
	}
	for _, b := range all[1:] {
		b.Release()
	}
	if _, err := pool.Get(12 * mib); !errors.Is(err, tensor.ErrBudget) || len(*retired) > 0 {
		t.Errorf("beside a segment of which a MiB is used: %v, %d segments retired", err, len(*retired))
	}
	all[0].Release()
	if _, err := pool.Get(12 * mib); !errors.Is(err, tensor.ErrBudget) {
		t.Errorf("beside 8 MiB that a container maps: %v", err)
	}
	if len(*retired) != 1 || (*retired)[0] != mapped {
		t.Fatalf("%d segments retired", len(*retired))
	}
	b := get(t, pool, 4*mib)
	if s, _ := a.Find(b.Bytes()); s != nil {
		t.Error("the arena has more than its size")
	}
	b.Release()
	mapped.Release() // the session's
	b = get(t, pool, 4*mib)
	if s, _ := a.Find(b.Bytes()); s == nil || s == mapped {
		t.Error("the next buffer is not in a new segment")
	}
	b.Release()
	get(t, pool, 12*mib).Release()
}

// TestTrim: after a peak the memory returns to the system, and none in use is touched.
func TestTrim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const soon = 10 * time.Second // as a server trims
		a, pool, retired := open(t, 256*mib, 0)
		var all []*tensor.Buffer
		for range 32 {
			b := get(t, pool, 2*mib)
			clear(b.Bytes())
			all = append(all, b)
		}
		last := all[0]
		copy(last.Bytes(), "last")
		for _, b := range all[1:] {
			b.Release()
		}
		before := shmem(t)
		quiet := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(soon) {
				pool.Trim()
			}
		}
		quiet(4 * time.Minute)
		if !tensor.Invariants {
			get(t, pool, 20*mib).Release() // a smaller peak begins it anew
		}
		quiet(4 * time.Minute)
		if len(*retired) != 0 && !tensor.Invariants {
			t.Error("a segment was retired four minutes after a peak")
		}
		quiet(2 * time.Minute)
		if len(*retired) != 1 {
			t.Fatalf("%d segments retired after a peak", len(*retired))
		}
		next := get(t, pool, mib)
		was, _ := a.Find(last.Bytes())
		is, _ := a.Find(next.Bytes())
		if was == nil || is == nil || was == is || !bytes.HasPrefix(last.Bytes(), []byte("last")) {
			t.Error("the last buffer of the old segment is not where it was, or the next one is there too")
		}
		next.Release()
		last.Release()
		if freed := before - shmem(t); freed < 60*mib {
			t.Errorf("%d bytes were freed of 64 MiB", freed)
		}
	})
}

// TestTrimAfterLargePeak: what is far more than a burst of frames returns within twenty seconds.
func TestTrimAfterLargePeak(t *testing.T) {
	if tensor.Invariants {
		return // the strict build does not reuse what was released last
	}
	synctest.Test(t, func(t *testing.T) {
		_, pool, retired := open(t, 1<<30, 0)
		small := get(t, pool, mib)
		get(t, pool, 300*mib).Release()
		for range 2 {
			if time.Sleep(10 * time.Second); len(*retired) != 0 {
				t.Fatal("retired at once")
			}
			pool.Trim()
		}
		if len(*retired) != 1 {
			t.Errorf("%d segments were retired in twenty seconds", len(*retired))
		}
		small.Release()
	})
}

// shmem is the resident shared memory of this process in bytes.
func shmem(t *testing.T) int {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "RssShmem:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// TestWatch: the function that limits the heap learns of all shared memory, of inputs and outputs.
func TestWatch(t *testing.T) {
	a, pool, _ := open(t, 16*mib, 0)
	var last int64
	a.Watch(func() { last = a.Shared() })
	b := get(t, pool, 4*mib)
	if last < 4*mib || last != a.Shared() {
		t.Errorf("told of %d bytes after 4 MiB for inputs", last)
	}
	s, err := a.NewOutputs(2*mib, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if last < 6*mib || last != a.Shared() || a.Usage().Outputs != 2*mib {
		t.Errorf("told of %d bytes after 2 MiB for outputs; usage %+v", last, a.Usage())
	}
	s.Release()
	b.Release()
	if a.Renew(); last != 0 && !tensor.Invariants {
		t.Errorf("told of %d bytes after the end", last)
	}
}

// TestRegion: no range of outputs reaches beyond the segment.
func TestRegion(t *testing.T) {
	gone := false
	a, _, _ := open(t, 8*mib, 0)
	s, err := a.NewOutputs(mib, func() { gone = true })
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		offset, size int64
		ok           bool
	}{
		{4160, 100, true}, {4160, mib - 4160, true}, {mib - 64, 64, true}, {mib, 0, false},
		{4160, mib - 4159, false}, {4161, 1, false}, {4096, 1, false}, {0, 1, false}, {-64, 1, false},
		{mib + 64, 0, false}, {4160, -1, false}, {1 << 62, 1 << 62, false}, {4160, 1<<63 - 1, false},
	} {
		b, ok := s.Region(c.offset, c.size)
		if ok != c.ok || ok && int64(len(b)) != c.size {
			t.Errorf("%d bytes at %d: %d bytes, %v", c.size, c.offset, len(b), ok)
		}
		if ok {
			s.Put(b)
		}
	}
	b, _ := s.Region(4160, 10)
	lent := tensor.Lend(b, s)
	s.Release()
	if lent.Retain(); gone {
		t.Error("gone while a buffer lies in it")
	}
	lent.Release()
	lent.Release()
	if !gone {
		t.Error("not gone after the last buffer")
	}
}

// TestFileLimit: with a limit on the size of files there is no arena, and no SIGXFSZ.
func TestFileLimit(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: mib, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_FSIZE, &old)
	var reason error
	pool := tensor.NewPoolFrom(arena.New(64*mib, func(err error) { reason = err }), 0)
	b, err := pool.Get(mib)
	if err != nil || reason == nil || !strings.Contains(reason.Error(), "ulimit -f") {
		t.Errorf("%v, reason %v", err, reason)
	}
	b.Release()
}
