package unixsocket

import (
	"fmt"
	"os"
	"syscall"
)

// pathOnly is O_PATH: a descriptor of the file itself, which for a socket is the only one.
const pathOnly = 0x200000

// pin resolves a path once, without following a link at its end. at names the same file until
// release, whatever becomes of the path.
func pin(path string) (at string, release func(), err error) {
	fd, err := syscall.Open(path, pathOnly|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fmt.Sprintf("/proc/self/fd/%d", fd), func() { _ = syscall.Close(fd) }, nil
}
