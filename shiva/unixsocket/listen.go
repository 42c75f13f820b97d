//go:build unix

package unixsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Access determines who may connect to a socket: users with write permission for its file. An
// abstract name has no file, and accepts every process in its network namespace.
type Access struct {
	Mode  fs.FileMode // permissions; 0: those that the process's umask allows
	Owner string      // name or number of a user; "": the process's user
	Group string      // name or number of a group; "": the process's group
}

// A Listener accepts connections on a Unix socket. Close removes its file, unless another server
// has replaced it.
type Listener struct {
	*net.UnixListener
	path   string
	file   os.FileInfo // nil: an abstract name
	remove sync.Once
}

// Open listens on an address: "host:port" for TCP, or one that begins with "unix:"; the listener's
// Addr then begins with it, too.
func Open(addr string, access Access) (net.Listener, error) {
	path, ok := Cut(addr)
	if !ok {
		return net.Listen("tcp", addr)
	}
	l, err := Listen(path, access)
	if err != nil {
		return nil, err
	}
	return named{l}, nil
}

// A named listener returns the address that clients dial.
type named struct{ *Listener }

func (n named) Addr() net.Addr { return Addr(n.path) }

// An Addr is the path of a socket, or its abstract name; its text begins with "unix:".
type Addr string

func (Addr) Network() string  { return "unix" }
func (a Addr) String() string { return "unix:" + string(a) }

// Listen opens a socket at path, and takes over a socket file that a killed server left there. It
// fails if a server listens there, if the file there is not a socket, or if the file cannot be
// created or given to the owner. The error names the path.
//
// A lock (flock) on the directory, held during Listen, serialises servers that start at the same
// time: otherwise another server could put a new file there between the check of an old file and
// its removal. A lock file would be left behind, or be removed while another process waits for it.
// The socket gets its permissions before it listens, so no connection is made with other
// permissions.
func Listen(path string, access Access) (*Listener, error) {
	l, err := open(path, access)
	if err != nil {
		return nil, fmt.Errorf("listen unix:%s: %w", path, err)
	}
	return l, nil
}

func open(path string, access Access) (*Listener, error) {
	if err := Check(path); err != nil {
		return nil, err
	}
	if Abstract(path) {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return nil, bare(err)
		}
		return &Listener{UnixListener: l, path: path}, nil
	}
	owner, group, err := access.ids()
	if err != nil {
		return nil, err
	}
	unlock, err := lock(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := clear(path); err != nil {
		return nil, err
	}
	return bind(path, access.Mode, owner, group)
}

// clear removes the socket of a dead server, if there is one at path.
func clear(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return bare(err)
	case info.IsDir():
		return errors.New("the path is a directory, expected the path of a socket")
	case info.Mode()&fs.ModeSocket == 0:
		return errors.New("the existing file is not a socket: remove it, or choose another path")
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return errors.New("another server listens on this socket")
	}
	// Only ECONNREFUSED means that no server listens: one with a full backlog fails with another
	// error.
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("cannot determine whether a server listens on the existing socket: %w", bare(err))
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("cannot remove the socket that no server listens on: %w", bare(err))
	}
	return nil
}

// bind creates the socket and its file. net.Listen would listen before the file has its
// permissions.
func bind(path string, mode fs.FileMode, owner, group int) (l *Listener, err error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close() // net has a duplicate
	switch err = syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("no permission to make a file in %s", filepath.Dir(path))
	case err != nil:
		return nil, os.NewSyscallError("bind", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	info, err := grant(path, mode, owner, group)
	if err != nil {
		return nil, err
	}
	if err := syscall.Listen(fd, backlog); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	n, err := net.FileListener(f)
	if err != nil {
		return nil, bare(err)
	}
	return &Listener{UnixListener: n.(*net.UnixListener), path: path, file: info}, nil
}

// grant sets the permissions and the owner of a socket's file. Others may write to its directory,
// and put a link in its place: the name is resolved once, without following links, and what it
// leads to must be a socket of this process's user.
func grant(path string, mode fs.FileMode, owner, group int) (fs.FileInfo, error) {
	at, release, err := pin(path)
	if err != nil {
		return nil, bare(err)
	}
	defer release()
	info, err := os.Stat(at)
	if err != nil {
		return nil, bare(err)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); info.Mode()&fs.ModeSocket == 0 || ok && int(stat.Uid) != os.Geteuid() {
		return nil, errors.New("somebody else has replaced the socket that was just made: who may write to its directory?")
	}
	if mode != 0 {
		if err := os.Chmod(at, mode); err != nil {
			return nil, fmt.Errorf("mode %#o: %w", mode, bare(err))
		}
	}
	if owner >= 0 || group >= 0 {
		if err := os.Chown(at, owner, group); err != nil {
			return nil, fmt.Errorf("owner %d, group %d (-1: unchanged): %w", owner, group, bare(err))
		}
	}
	return info, nil
}

// backlog is how many connections may wait to be accepted; the system's own limit may be lower.
// Beyond that, connecting to a Unix socket fails at once, whereas TCP would retry.
const backlog = 4096

// Close closes the socket and removes its file. It leaves a file of another server at that path:
// while this socket is open, its inode number is not reused, so the two files differ.
func (l *Listener) Close() error {
	l.remove.Do(func() {
		if l.file == nil {
			return
		}
		if unlock, err := lock(filepath.Dir(l.path)); err == nil {
			defer unlock()
		}
		if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.file) {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}

// lock takes the lock of a directory. The wait is bounded, since any process that may read the
// directory can hold the lock.
func lock(dir string) (unlock func(), err error) {
	const longest = time.Second
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("the directory %s: %w", dir, bare(err))
	}
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return func() { d.Close() }, nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			d.Close()
			return nil, fmt.Errorf("locking the directory %s: %w", dir, err)
		case time.Since(began) > longest:
			d.Close()
			return nil, fmt.Errorf("another process has the directory %s locked for more than %v", dir, longest)
		}
	}
}

// bare returns err without the operation and the path, which the caller adds.
func bare(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		err = path.Err
	}
	return err
}
