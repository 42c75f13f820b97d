package regions

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// A file of shared memory that nobody has written to has no pages: a client can make one of any
// size at no cost. When the server writes an output there it makes pages, and the kernel charges
// them to the server's control group for as long as the file exists, be it registered, open or only
// mapped by somebody. An accounts therefore charges them to the payload budget for as long.
//
// To know when a file has ended without keeping it open, it watches the inode: the kernel reports
// its deletion after the last name, descriptor and mapping have gone.
type accounts struct {
	pool    *tensor.Pool           // a part of the payload budget
	changed atomic.Pointer[func()] // called without mu each time that the charges have changed

	mu    sync.Mutex
	watch int           // the inotify descriptor; -1: not open
	files map[int]int64 // watch of a file -> bytes of the pages that the server has made there
	timer *time.Timer   // of the next sweep; nil: no file is watched
}

const (
	// pagesPart is the part of the payload budget for pages in clients' files: unlike the memory of
	// requests, they stay for as long as their clients like.
	pagesPart = 4
	// maxWatched is the most files with such pages. The kernel queues two events for each that
	// ends, and at least 16,384 events (fs.inotify.max_queued_events).
	maxWatched = 4096
	sweepEvery = time.Second
)

func newAccounts(pool *tensor.Pool) *accounts {
	return &accounts{pool: pool.Part(pool.Budget() / pagesPart), watch: -1, files: make(map[int]int64)}
}

// charge charges the pages that writing a range of a file will make.
func (a *accounts) charge(f *os.File, from, to int64) error {
	fd := int(f.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	n, err := holes(fd, from, to, int64(st.Blksize)) // an int32 on arm64
	if n == 0 || err != nil {
		return err
	}
	defer a.notify()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sweep()
	file, err := a.watched(fd)
	if err != nil {
		return fmt.Errorf("the server cannot watch the file to know when its memory is free: %w", err)
	}
	// The client may have freed pages since: the server has made no more than the file has.
	had := min(a.files[file], st.Blocks*512)
	a.pool.Unreserve(a.files[file] - had)
	a.files[file] = had // even if it is 0: its watch counts
	if a.timer == nil {
		a.timer = time.AfterFunc(sweepEvery, a.tick)
	}
	if err := a.pool.Reserve(n); err != nil {
		return fmt.Errorf("%d bytes of the file have no memory yet, and the server may take a %dth of limits.payload_bytes for files: %w; write zeros to a file before it is registered, and remove files that are no longer used",
			n, pagesPart, err)
	}
	a.files[file] = had + n
	return nil
}

// watched returns the watch of a file, which is made if there is none. The caller holds mu.
func (a *accounts) watched(fd int) (file int, err error) {
	if a.watch < 0 {
		if a.watch, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err != nil {
			a.watch = -1
			return 0, err
		}
	}
	// The same inode has the same watch.
	if file, err = unix.InotifyAddWatch(a.watch, fmt.Sprintf("/proc/self/fd/%d", fd), unix.IN_DELETE_SELF); err != nil {
		return 0, err
	}
	if _, known := a.files[file]; !known && len(a.files) >= maxWatched {
		_, _ = unix.InotifyRmWatch(a.watch, uint32(file))
		return 0, fmt.Errorf("there are %d already: %w", maxWatched, unix.ENOSPC)
	}
	return file, nil
}

// sweep gives back what files that have ended were charged. The caller holds mu.
func (a *accounts) sweep() {
	var events [128 * unix.SizeofInotifyEvent]byte // of files, which have no names in them
	for a.watch >= 0 {
		n, err := unix.Read(a.watch, events[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return // EAGAIN: that is all
		}
		for b := events[:max(n, 0)]; len(b) >= unix.SizeofInotifyEvent; b = b[unix.SizeofInotifyEvent:] {
			file, mask := int(int32(binary.NativeEndian.Uint32(b))), binary.NativeEndian.Uint32(b[4:])
			if mask&unix.IN_IGNORED != 0 { // the last event of a watch
				a.pool.Unreserve(a.files[file])
				delete(a.files, file)
			}
		}
	}
}

// tick sweeps as long as there is a file.
func (a *accounts) tick() {
	defer a.notify()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer == nil { // closed
		return
	}
	if a.sweep(); len(a.files) == 0 {
		a.timer = nil
		unix.Close(a.watch)
		a.watch = -1
		return
	}
	a.timer.Reset(sweepEvery)
}

// close ends all accounts.
func (a *accounts) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	if a.watch >= 0 {
		unix.Close(a.watch)
		a.watch = -1
	}
	for _, n := range a.files {
		a.pool.Unreserve(n)
	}
	clear(a.files)
}

func (a *accounts) notify() {
	if f := a.changed.Load(); f != nil {
		(*f)()
	}
}

// charged returns the bytes that are charged.
func (a *accounts) charged() int64 { return a.pool.InUse() }

// holes returns how many bytes of a range, in whole pages of that size, have no memory.
func holes(fd int, from, to, page int64) (n int64, err error) {
	from, to = from/page*page, (to+page-1)/page*page
	for from < to {
		data, err := unix.Seek(fd, from, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // none up to the file's end
			return n + to - from, nil
		}
		if err != nil {
			return n, err
		}
		data = min(data, to)
		n += data - from
		if data == to {
			return n, nil
		}
		if from, err = unix.Seek(fd, data, unix.SEEK_HOLE); err != nil {
			return n, err
		}
	}
	return n, nil
}

// unpaid is the error of a write for which the pages could not be charged.
func (f *file) unpaid(err error) error {
	return fmt.Errorf("%w: shared memory region '%s' takes no more outputs: %w", scheduler.ErrOverloaded, f.Name, err)
}
