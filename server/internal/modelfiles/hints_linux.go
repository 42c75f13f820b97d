package modelfiles

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/server/internal/wake"
)

// hints tell that something in some directories may have changed. They may be wrong, late or
// missing: on a network's file system nothing tells what other machines do. Their methods are for
// one goroutine.
type hints struct {
	poke chan<- struct{}
	file *os.File // of inotify; nil: nothing is followed, or there is none
}

// changesOf are the events of a directory that may change what is served. Writing is none of them:
// a file is looked at again anyway until it stays the same, and at its end.
const changesOf = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_CLOSE_WRITE |
	unix.IN_ONLYDIR

// newHints returns hints, which go to poke, until close.
func newHints(poke chan<- struct{}) *hints { return &hints{poke: poke} }

// open begins to listen. A server that follows nothing has no descriptor and no goroutine for it.
func (h *hints) open() {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return // the clock tells, too
	}
	h.file = os.NewFile(uintptr(fd), "inotify")
	go h.listen(h.file) // ends with close
}

func (h *hints) listen(file *os.File) {
	events := make([]byte, 64<<10)
	for {
		if _, err := file.Read(events); err != nil {
			return // the clock tells, too
		}
		wake.Up(h.poke)
	}
}

// follow watches directories, besides those that it watches already. One that cannot be watched, as
// there may be too many, is looked at by the clock alone.
func (h *hints) follow(dirs []string) {
	if h.file == nil && len(dirs) > 0 {
		h.open()
	}
	if h.file == nil {
		return
	}
	raw, err := h.file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		for _, dir := range dirs {
			// Again and again: the path may lead to another directory by now.
			_, _ = unix.InotifyAddWatch(int(fd), dir, changesOf)
		}
	})
}

func (h *hints) close() {
	if h.file != nil {
		h.file.Close()
	}
}
