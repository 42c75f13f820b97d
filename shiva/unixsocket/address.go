// Package unixsocket opens Unix-domain sockets for servers that are restarted: it takes over the
// file of a server that was killed, and never that of a running one.
//
// An address is "unix:/run/shivad/shiva.sock", "unix:shiva.sock" in the working directory, or
// "unix:@name" for an abstract name of Linux, which has no file. The URL form
// "unix:///run/shivad/shiva.sock" equals the first.
package unixsocket

import (
	"errors"
	"fmt"
	"strings"
)

// Longest is the maximum length in bytes of a path or an abstract name: Linux's sun_path without
// the NUL. Other systems allow 103.
const Longest = 107

// Cut returns the path in an address that begins with "unix:", or "@name" for an abstract name. ok
// reports whether addr has that prefix.
func Cut(addr string) (path string, ok bool) {
	path, ok = strings.CutPrefix(addr, "unix:")
	return strings.TrimPrefix(path, "//"), ok
}

// Target returns the arguments of net.Dial for an address.
func Target(addr string) (network, address string) {
	if path, ok := Cut(addr); ok {
		return "unix", path
	}
	return "tcp", addr
}

// CheckAddress reports what is wrong with an address that begins with "unix:". It accepts any other
// text.
func CheckAddress(addr string) error {
	path, ok := Cut(addr)
	if !ok {
		return nil
	}
	if err := Check(path); err != nil {
		return fmt.Errorf("expected unix:PATH, or unix:@NAME: %w", err)
	}
	return nil
}

// Check reports what is wrong with a path or an abstract name.
func Check(path string) error {
	switch {
	case path == "":
		return errors.New("a Unix socket without a path")
	case path == "@":
		return errors.New(`an abstract Unix socket without a name: expected "@name"`)
	case strings.ContainsRune(path, 0):
		return errors.New("the path of a Unix socket has a NUL in it")
	case len(path) > Longest:
		return fmt.Errorf("the path of a Unix socket has at most %d bytes, this one has %d", Longest, len(path))
	}
	return nil
}

// Abstract reports whether a path is an abstract name, which has no file.
func Abstract(path string) bool { return strings.HasPrefix(path, "@") }
