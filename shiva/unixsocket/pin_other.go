//go:build unix && !linux

package unixsocket

import (
	"errors"
	"io/fs"
	"os"
)

// pin refuses links. The system has no name for a file that was resolved once, so the directory of
// the socket should be writable only by this process's user.
func pin(path string) (at string, release func(), err error) {
	info, err := os.Lstat(path)
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		err = errors.New("it has been replaced by a link")
	}
	return path, func() {}, err
}
