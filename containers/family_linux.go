package containers

import (
	"bytes"
	"crypto/rand"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A family is the supervised processes of this process and all that descend from them. Killing a
// process group misses helpers that have made sessions of their own, as Python's
// start_new_session=True does. This process is the subreaper of all of them: when their parents
// end they become its children, so they can be found, killed with the process that they belong to,
// and reaped.
//
// A descendant belongs to the process whose mark is in its environment, or whose session it is in.
// One that has changed both cannot be attributed. It is left alone, since it may belong to a
// process that runs, and dies with the server's cgroup; it cannot register a model (see Stray).
type family struct {
	// starting is read-locked while a child starts, which nobody may reap or kill before it is a
	// member.
	starting sync.RWMutex

	mu      sync.Mutex
	members map[int]struct{} // supervised processes, until they have been waited for
	alone   chan struct{}    // closed when the last one leaves
	reaped  chan struct{}    // closed when the goroutine that reaps for them has ended then
}

var relatives = family{members: map[int]struct{}{}}

// markEnv is the environment variable that tells to which supervised process a descendant belongs.
// It proves nothing, as any process can set it: it only finds what is to be killed.
const markEnv = "SHIVA_PROCESS"

// newMark returns the environment variable for a process and its descendants.
func newMark() string { return markEnv + "=" + rand.Text() }

// becomeSubreaper is done once, before the first child. Without it orphans become children of
// another process, and are not found; the kernel has it since Linux 3.4.
var becomeSubreaper = sync.OnceValue(func() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
})

// enter starts a member.
func (f *family) enter(start func() (pid int, err error)) error {
	if err := becomeSubreaper(); err != nil {
		return err
	}
	f.starting.RLock()
	defer f.starting.RUnlock()
	pid, err := start()
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.members[pid] = struct{}{}; len(f.members) == 1 {
		alone, reaped := make(chan struct{}), make(chan struct{})
		f.alone, f.reaped = alone, reaped
		go func() { // ends when the last member leaves, which waits for it
			defer close(reaped)
			f.reap(alone)
		}()
	}
	return nil
}

// leave removes a member that has ended, and kills what it has left behind.
func (f *family) leave(pid int, mark string) {
	f.mu.Lock()
	delete(f.members, pid)
	last, reaped := len(f.members) == 0, f.reaped
	if last {
		close(f.alone)
	}
	f.mu.Unlock()
	if last { // a new first member may start another goroutine meanwhile
		<-reaped
	}
	// A dead parent's children are found in the next round. A process that is being killed loses
	// its environment before it can be reaped, so it is known by its number. The bound is for a
	// process that forks faster than it is killed.
	dying := map[int]bool{}
	doomed := func(orphan int, s procStat) bool { return dying[orphan] || s.session == pid || hasMark(orphan, mark) }
	for began, rounds := time.Now(), 0; rounds < 100 && time.Since(began) < leaveTime; {
		if killed, swept := f.sweep(doomed); swept {
			if len(killed) == 0 {
				return
			}
			rounds++
			for _, one := range killed {
				dying[one] = true
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// leaveTime bounds how long leave waits while processes start.
const leaveTime = 10 * time.Second

// sweep kills the orphans that satisfy doomed, with their descendants, reaps those that have ended,
// and returns whom it has killed. While a process starts, which may take long on a slow file
// system, it does nothing, and swept is false.
func (f *family) sweep(doomed func(orphan int, s procStat) bool) (killed []int, swept bool) {
	if !f.starting.TryLock() {
		return nil, false
	}
	defer f.starting.Unlock()
	self, all := os.Getpid(), readStats()
	f.mu.Lock()
	defer f.mu.Unlock()
	for pid, s := range all {
		if _, member := f.members[pid]; member || s.parent != self || !foreign(s) {
			continue
		}
		if s.zombie {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			continue
		}
		if doomed == nil || !doomed(pid, s) {
			continue
		}
		for _, one := range append(descendants(all, pid), pid) {
			_ = syscall.Kill(one, syscall.SIGKILL)
			killed = append(killed, one)
		}
	}
	return killed, true
}

// reapPause bounds how often the children are looked at.
const reapPause = time.Second

// reap reaps orphans that end while members run.
func (f *family) reap(alone <-chan struct{}) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	defer signal.Stop(ended)
	for {
		select {
		case <-ended:
		case <-alone:
			return
		}
		f.sweep(nil)
		select {
		case <-time.After(reapPause):
		case <-alone:
			return
		}
	}
}

// readStats returns the state of every process that this one can see.
func readStats() map[int]procStat {
	all := map[int]procStat{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if s, ok := readStat(pid); ok {
				all[pid] = s
			}
		}
	}
	return all
}

// descendants returns the processes that descend from one.
func descendants(all map[int]procStat, pid int) (list []int) {
	for child, s := range all {
		if s.parent == pid {
			list = append(append(list, child), descendants(all, child)...)
		}
	}
	return list
}

func hasMark(pid int, mark string) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && bytes.Contains(append([]byte{0}, text...), []byte("\x00"+mark+"\x00"))
}
