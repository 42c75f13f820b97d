package modelfiles

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// openRegular opens a regular file, and no other: a pipe of that name would block.
func openRegular(path string) (*os.File, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	i, err := f.Stat()
	if err == nil && !i.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, i, nil
}

// mostSettings bounds a file that says something about a model, in bytes.
const mostSettings = 1 << 20

// readSettings reads such a file.
func readSettings(path string) ([]byte, error) {
	f, i, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if i.Size() > mostSettings {
		return nil, fmt.Errorf("%s has %d bytes, and %d is the most", path, i.Size(), mostSettings)
	}
	return io.ReadAll(io.LimitReader(f, mostSettings)) // it may grow
}

// stampOf identifies the state of files without reading them: which they are, and their sizes and
// times. Links are followed, so that one that points elsewhere is a change.
func stampOf(files []string) string {
	var b strings.Builder
	for _, path := range files {
		i, err := os.Stat(path)
		if err != nil {
			fmt.Fprintf(&b, "%s: %v\n", path, err)
			continue
		}
		fmt.Fprintf(&b, "%s %s\n", path, identity(i))
	}
	return b.String()
}

// identity tells a file or directory from what was there before, and from its own earlier states.
func identity(i os.FileInfo) string {
	var device, inode uint64
	if s, ok := i.Sys().(*syscall.Stat_t); ok {
		device, inode = uint64(s.Dev), s.Ino
	}
	return fmt.Sprintf("%d:%d %v %d %d", device, inode, i.Mode(), i.Size(), i.ModTime().UnixNano())
}

// contentOf returns a hash of the files' contents: files that are touched, copied onto themselves
// or swapped together with others have not changed.
func contentOf(files []string) (string, error) {
	all := sha256.New()
	for _, path := range files {
		f, i, err := openRegular(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(all, "%q %d\n", path, i.Size())
		_, err = io.Copy(all, f)
		f.Close()
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
	}
	return hex.EncodeToString(all.Sum(nil)), nil
}
