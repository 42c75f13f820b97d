package regions

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
)

// A file is a region with its file open.
type file struct {
	Region
	data      *os.File     // closed with the last use
	uses      atomic.Int64 // the name in the registry, and requests: see Hold
	directory string
	claim     claim
	owner     uint32
	mode      uint32
	readOnly  bool         // the server or its client may not write the file
	used      atomic.Int64 // last use, in nanoseconds since 1970
	writing   sync.Mutex   // held while one piece is written

	connection any // the region is dropped when this connection ends; nil: not tied to a connection
}

// pathOf returns the name of the file that a key stands for, in the directory.
func pathOf(key string) (string, bool) {
	name := strings.TrimPrefix(key, "/")
	return name, name != "" && name != "." && name != ".." && len(name) <= unix.NAME_MAX && !strings.ContainsAny(name, "/\x00")
}

// open opens the file of a region, if it may be registered.
func open(r Region, m claim, s *Settings) (*file, error) {
	refuse := func(condition error, format string, args ...any) (*file, error) {
		return nil, fmt.Errorf("%w: Unable to open shared memory region: '%s': %s", condition,
			fault.Cut(r.Key, maxName), fmt.Sprintf(format, args...))
	}
	name, ok := pathOf(r.Key)
	if !ok {
		return refuse(scheduler.ErrInvalidInput,
			"expected the name of a file in shared_memory.directory, %s, as shm_open takes it: \"/\" and 1 to %d bytes without a further slash",
			s.Directory, unix.NAME_MAX)
	}
	fd, err := locate(s.Directory, name)
	if err != nil {
		condition, why := scheduler.ErrInvalidInput, err.Error()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			condition, why = scheduler.ErrNotFound, "the server sees no such file; a client in another container must share the directory with it"
		case errors.Is(err, fs.ErrPermission):
			condition, why = fault.ErrPermissionDenied, "the server may not search the directory"
		case errors.Is(err, unix.EXDEV):
			why = "it is a mount point"
		}
		return refuse(condition, "%s in shared_memory.directory, %s: %s", name, s.Directory, why)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return refuse(scheduler.ErrInvalidInput, "%v", err)
	}
	reads, writes := s.belongs(m, st.Uid, st.Mode)
	switch kind := st.Mode & unix.S_IFMT; {
	case kind != unix.S_IFREG:
		return refuse(scheduler.ErrInvalidInput, "expected a regular file, got %s", kinds[kind])
	case !s.owns(st.Uid):
		return refuse(fault.ErrPermissionDenied, "its owner is user %d, expected one of %d (shared_memory.owners)",
			st.Uid, s.Owners)
	case !reads && m.local:
		return refuse(fault.ErrPermissionDenied,
			"user %d may not open it, as its owner or like everybody, and no pattern in regions of identity %q matches",
			m.user, m.identity)
	case !reads:
		return refuse(fault.ErrPermissionDenied,
			"it belongs to nobody who can be told: expected a pattern in regions of identity %q that matches, or a client on a Unix socket whose user may open it",
			m.identity)
	case r.Size > st.Size-r.Offset || r.Offset > st.Size:
		return nil, fault.Invalid("failed to register shared memory region '%s': invalid args: offset %d and byte_size %d lie beyond the end of '%s', which has %d bytes",
			r.Name, r.Offset, r.Size, r.Key, st.Size)
	}
	f := &file{Region: r, directory: s.Directory, claim: m, owner: st.Uid, mode: st.Mode, readOnly: !writes}
	f.used.Store(time.Now().UnixNano())
	if err = fs.ErrPermission; !f.readOnly {
		f.data, err = reopen(fd, unix.O_RDWR, name)
	}
	if errors.Is(err, fs.ErrPermission) {
		f.readOnly = true
		f.data, err = reopen(fd, unix.O_RDONLY, name)
	}
	if err != nil {
		return refuse(fault.ErrPermissionDenied, "the server's user, %d, may not read it: %v", os.Geteuid(), err)
	}
	return f, nil
}

var kinds = map[uint32]string{
	unix.S_IFDIR: "a directory", unix.S_IFLNK: "a symbolic link", unix.S_IFIFO: "a FIFO", unix.S_IFSOCK: "a socket",
	unix.S_IFCHR: "a device", unix.S_IFBLK: "a device",
}

// locate opens a directory entry as a path only. To open it for reading or writing would block on a
// FIFO and could trigger a device. It follows no links and crosses no mount points: a file system
// in user space may block for as long as its owner likes.
func locate(directory, name string) (fd int, err error) {
	dir, err := unix.Open(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	return unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// reopen opens the file that locate has found, even if its name refers to another file by now.
// Without O_NONBLOCK, a lease held by the owner would block the open for a minute.
func reopen(fd, mode int, name string) (*os.File, error) {
	opened, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), mode|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(opened), name), nil
}

// removed reports whether the file has been unlinked.
func (f *file) removed() bool {
	info, err := f.data.Stat()
	return err != nil || info.Sys().(*syscall.Stat_t).Nlink == 0
}

// piece is how much is copied at a time, so that small tensors do not wait for large ones.
const piece = 1 << 20

// inPieces copies size bytes piece by piece.
func inPieces(size int, one func(from, to int) error) error {
	for from := 0; from < size; from += piece {
		if err := one(from, min(from+piece, size)); err != nil {
			return err
		}
	}
	return nil
}

// read fills b with the current content of the place, which has the length of b.
func (h Hold) read(b []byte) error {
	f, at := h.file, h.file.Offset+h.place.Offset
	return inPieces(len(b), func(from, to int) error {
		h.registry.copying <- struct{}{}
		n, err := f.data.ReadAt(b[from:to], at+int64(from))
		<-h.registry.copying
		return f.failed(err, at+int64(from+n), at, len(b))
	})
}

// write writes b at the beginning of the place, which must not be shorter.
func (h Hold) write(b []byte) error {
	f, at := h.file, h.file.Offset+h.place.Offset
	// If the file has been truncated, a write beyond its end would extend it again.
	if info, err := f.data.Stat(); err != nil {
		return f.failed(err, at, at, len(b))
	} else if end := info.Size(); end < at+int64(len(b)) {
		return f.failed(io.EOF, end, at, len(b))
	}
	return inPieces(len(b), func(from, to int) error {
		// The kernel admits one writer of a file at a time; the other writers would spin.
		f.writing.Lock()
		defer f.writing.Unlock()
		if err := h.registry.pages.charge(f.data, at+int64(from), at+int64(to)); err != nil {
			return f.unpaid(err)
		}
		h.registry.copying <- struct{}{}
		n, err := f.data.WriteAt(b[from:to], at+int64(from))
		<-h.registry.copying
		return f.failed(err, at+int64(from+n), at, len(b))
	})
}

// failed returns the error of a copy of size bytes at offset at, which failed at offset failed.
func (f *file) failed(err error, failed, at int64, size int) error {
	condition := scheduler.ErrInvalidInput
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		return fault.Invalid("shared memory region '%s': expected %d bytes from offset %d of '%s' on, but the file ends at %d: it has become shorter since it was registered",
			f.Name, size, at, f.Key, failed)
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM):
		condition = scheduler.ErrOverloaded
	}
	return fmt.Errorf("%w: shared memory region '%s': %d bytes from offset %d of '%s' on: failed at offset %d: %w",
		condition, f.Name, size, at, f.Key, failed, withoutPath(err))
}

// withoutPath strips the path from an error of a system call: clients know the file by its key.
func withoutPath(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}
