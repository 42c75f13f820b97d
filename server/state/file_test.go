package state_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/server/state/statetest"
	"github.com/shivad/shivad/shiva/budgettest"
)

// The test binary is also the process that is killed, and the one with little room.
func TestMain(m *testing.M) {
	switch path := os.Getenv("STATE_FILE"); os.Getenv("STATE_CHILD") {
	case "write":
		writeForEver(path)
	case "fill":
		fill(path)
	case "no room":
		openWithoutRoom(path)
	default:
		os.Exit(budgettest.RunClean(m))
	}
}

func child(what, path string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "STATE_CHILD="+what, "STATE_FILE="+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// writeForEver counts in several keys at once, prints each acknowledged count, and ends only by
// being killed.
func writeForEver(path string) {
	s, err := state.Open(context.Background(), path, state.Options{MaxIDs: 200})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				// Values grow and shrink, keys come and go: the file's pages are split, merged
				// and freed.
				key := fmt.Sprintf("%d/%d", i, rand.N(50))
				value := strings.Repeat("v", rand.N(3000)) + fmt.Sprintf("-%d-%d", os.Getpid(), n)
				if n%5 == 4 {
					value = ""
				}
				fmt.Printf("try %s %s.\n", key, value)
				if _, err := s.Update(context.Background(), key, value, func([]byte) ([]byte, error) {
					if value == "" {
						return nil, nil
					}
					return []byte(value), nil
				}); err != nil && !errors.Is(err, state.ErrApplied) {
					fmt.Println("error", err)
					os.Exit(1)
				}
				fmt.Printf("done %s %s.\n", key, value)
			}
		})
	}
	wg.Wait()
}

// A file has every update that a killed process acknowledged, and of the others at most the one
// that was in progress.
func TestFileSurvivesKills(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	path := filepath.Join(t.TempDir(), "state.db")
	acknowledged, tried := map[string]string{}, map[string]string{}
	total, rounds := 0, 2+budgettest.Rounds(15)
	for round := range rounds {
		cmd := child("write", path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		clear(tried)
		left := 20 + rand.N(200)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			// A line without its end was cut off by the kill.
			line, whole := strings.CutSuffix(lines.Text(), ".")
			what, rest, _ := strings.Cut(line, " ")
			key, value, _ := strings.Cut(rest, " ")
			if what == "error" {
				t.Errorf("round %d: %s", round, lines.Text())
			}
			if !whole {
				continue
			}
			if what == "try" {
				tried[key] = value
				continue
			}
			acknowledged[key] = value
			delete(tried, key)
			total++
			if left--; left == 0 {
				_ = cmd.Process.Kill()
			}
		}
		_ = cmd.Wait()
		s := open(t, path, state.Options{})
		for key, value := range acknowledged {
			if statetest.Has(s, key, value) {
				continue
			}
			if other, ok := tried[key]; ok && statetest.Has(s, key, other) {
				acknowledged[key] = other
				continue
			}
			e, err := s.Get(key)
			t.Errorf("round %d: %s is %.20q, %v; acknowledged was %.20q, tried %.20q", round, key, e.Value, err, value,
				tried[key])
		}
		// Keys that were never acknowledged may have been written, too.
		all, err := s.List("")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			if _, ok := acknowledged[e.Key]; !ok {
				if !statetest.Has(s, e.Key, tried[e.Key]) {
					t.Errorf("round %d: %s is %.20q, which nobody wrote", round, e.Key, e.Value)
				}
				acknowledged[e.Key] = string(e.Value)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if total < rounds*20 {
		t.Errorf("only %d updates were acknowledged", total)
	}
}

func TestFileRemembers(t *testing.T) {
	budgettest.Goroutines(t)
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path, state.Options{})
	statetest.Put(t, s, "apps/a", "1")
	statetest.Put(t, s, "apps/empty", "")
	statetest.Put(t, s, "apps/deleted", "1")
	statetest.Delete(t, s, "apps/deleted")
	e, err := s.Update(statetest.Context(t), "n", "id", statetest.Add(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, state.Options{})
	if all, err := s.List(""); err != nil || len(all) != 3 || !statetest.Has(s, "apps/a", "1") {
		t.Errorf("after reopening: %v %v", all, err)
	}
	if _, err := s.Update(statetest.Context(t), "n", "id", statetest.Add(1)); !errors.Is(err, state.ErrApplied) {
		t.Errorf("an id of before: %v", err)
	}
	if next := statetest.Put(t, s, "n", "2"); next.Revision <= e.Revision {
		t.Errorf("revision %d after %d", next.Revision, e.Revision)
	}
}

func TestFileInUse(t *testing.T) {
	t.Parallel() // it waits
	budgettest.Goroutines(t)
	path := filepath.Join(t.TempDir(), "state.db")
	open(t, path, state.Options{})
	_, err := state.Open(context.Background(), path, state.Options{})
	if err == nil || !strings.Contains(err.Error(), "in use by another process") ||
		!strings.Contains(err.Error(), path) {
		t.Errorf("a file that is in use: %v", err)
	}
}

// Opening a damaged file returns an error that names the file, unless the damage is in an unused
// part.
func TestFileDamaged(t *testing.T) {
	budgettest.Goroutines(t)
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path, state.Options{})
	for i := range 200 {
		statetest.Put(t, s, fmt.Sprintf("key/%d", i), strings.Repeat("value", i))
	}
	want, err := s.List("")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := func(name string, data []byte, must bool) {
		t.Helper()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := state.Open(context.Background(), path, state.Options{})
		if err != nil {
			if !errors.Is(err, state.ErrCorrupt) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v, want ErrCorrupt with the name of the file", name, err)
			}
			return
		}
		defer s.Close()
		if must {
			t.Errorf("%s: opened", name)
		}
		if got, err := s.List(""); err != nil ||
			!slices.EqualFunc(got, want, func(a, b state.Entry) bool {
				return a.Key == b.Key && bytes.Equal(a.Value, b.Value)
			}) {
			t.Errorf("%s: opened, and has other contents", name)
		}
	}
	damaged("text", bytes.Repeat([]byte("this is not a state file\n"), 2000), true)
	damaged("short text", []byte("hello"), true)
	damaged("zeros", make([]byte, len(good)), true)
	damaged("cut", good[:20*4096], true) // its values take 24 pages, which half of the file may hold
	damaged("two pages", good[:2*4096], true)
	random := rand.New(rand.NewPCG(1, 2))
	for n := range budgettest.Rounds(200) {
		bad := bytes.Clone(good)
		at := random.IntN(len(bad))
		bad[at] ^= byte(1 + random.IntN(255))
		damaged(fmt.Sprintf("flip %d at %d", n, at), bad, false)
	}
	for n := range budgettest.Rounds(60) {
		bad := bytes.Clone(good)
		page := random.IntN(len(bad) / 4096)
		clear(bad[page*4096 : (page+1)*4096])
		damaged(fmt.Sprintf("blank %d: page %d", n, page), bad, false)
	}
	damaged("good", good, false)
}

func TestFileOfSomethingElse(t *testing.T) {
	budgettest.Goroutines(t)
	path := filepath.Join(t.TempDir(), "other.db")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket([]byte("theirs"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := state.Open(context.Background(), path, state.Options{}); !errors.Is(err, state.ErrCorrupt) ||
		!strings.Contains(err.Error(), "theirs") {
		t.Errorf("somebody else's file: %v", err)
	}
}

// limitFileSize bounds the files of this process, as a full disk would; 0 restores the original
// limit.
func limitFileSize(fault func(string, ...any), bytes uint64) {
	signal.Ignore(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		fault("getrlimit: %v", err)
	}
	if limit.Cur = bytes; bytes == 0 {
		limit.Cur = limit.Max
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		fault("setrlimit: %v", err)
	}
}

// fill writes until the limit on the size of files stops it, as a full disk would; then it lifts
// the limit.
func fill(path string) {
	check := func(ok bool, what string, about ...any) {
		if !ok {
			fmt.Printf("FAULT "+what+"\n", about...)
			os.Exit(1)
		}
	}
	fault := func(what string, about ...any) { check(false, what, about...) }
	limitFileSize(fault, 4<<20)
	ctx := context.Background()
	s, err := state.Open(ctx, path, state.Options{})
	check(err == nil, "open: %v", err)
	large := bytes.Repeat([]byte("large"), 50_000)
	put := func(i int) error {
		_, err := s.Update(ctx, fmt.Sprint("key/", i), fmt.Sprint(i), func([]byte) ([]byte, error) {
			return large, nil
		})
		return err
	}
	n := 0
	for ; err == nil; n++ {
		check(n < 100, "never full")
		err = put(n)
	}
	check(errors.Is(err, state.ErrFull) && strings.Contains(err.Error(), path), "full: %v", err)
	h := s.Health()
	check(errors.Is(h.Err, state.ErrFull) && time.Since(h.Since) < time.Minute, "health when full: %+v", h)
	check(errors.Is(put(n), state.ErrFull), "full again")
	all, err := s.List("")
	check(err == nil && len(all) == n-1, "reading when full: %d of %d, %v", len(all), n-1, err)
	limitFileSize(fault, 0)
	for i := n - 1; i < n+20; i++ {
		err := put(i)
		check(err == nil, "with room again: %v", err)
	}
	check(s.Health().Err == nil, "health with room again: %v", s.Health().Err)
	check(s.Close() == nil, "close")
	s, err = state.Open(ctx, path, state.Options{})
	check(err == nil, "open again: %v", err)
	all, err = s.List("")
	check(err == nil && len(all) == n+20, "after reopening: %d of %d, %v", len(all), n+20, err)
	for _, e := range all {
		check(bytes.Equal(e.Value, large), "%s has other contents", e.Key)
	}
	fmt.Println("good")
}

func TestFileFull(t *testing.T) {
	budgettest.Goroutines(t)
	out, err := child("fill", filepath.Join(t.TempDir(), "state.db")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "good") {
		t.Errorf("%v\n%s", err, out)
	}
}
