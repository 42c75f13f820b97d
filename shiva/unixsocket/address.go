// Package unixsocket opens Unix-domain sockets for servers that come and go: it takes over the
// file of a server that was killed, and never that of one that lives.
//
// An address is "unix:/run/shivad/shiva.sock", "unix:shiva.sock" of the working directory, or
// "unix:@name" for an abstract name of Linux, which has no file. "unix:///run/shivad/shiva.sock",
// as URLs have it, is the first.
package unixsocket

import (
	"errors"
	"fmt"
	"strings"
)

// Longest is how many bytes a path or an abstract name has at most: sun_path of Linux, less the
// NUL. Other systems have 103.
const Longest = 107

// Cut returns the path in an address that begins with "unix:", or "@name" for an abstract name. ok
// tells whether addr does.
func Cut(addr string) (path string, ok bool) {
	path, ok = strings.CutPrefix(addr, "unix:")
	return strings.TrimPrefix(path, "//"), ok
}

// Target is an address as net.Dial takes it.
func Target(addr string) (network, address string) {
	if path, ok := Cut(addr); ok {
		return "unix", path
	}
	return "tcp", addr
}

// CheckAddress says what keeps an address that begins with "unix:" from being one. It knows nothing
// of others.
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

// Check says what keeps a path, or an abstract name, from being one.
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

// Abstract tells whether a path is an abstract name, for which there is no file.
func Abstract(path string) bool { return strings.HasPrefix(path, "@") }
