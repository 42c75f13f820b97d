//go:build unix

package unixsocket

import (
	"fmt"
	"math"
	"os/user"
	"strconv"
)

// ids returns the numbers of owner and group; -1: unchanged.
func (a Access) ids() (owner, group int, err error) {
	owner, err = id(a.Owner, "user", func(name string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	})
	if err != nil {
		return 0, 0, err
	}
	group, err = id(a.Group, "group", func(name string) (string, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", err
		}
		return g.Gid, nil
	})
	return owner, group, err
}

// id returns the number of a user or group, given by name or number; -1 if name is empty.
func id(name, kind string, lookup func(string) (string, error)) (int, error) {
	if name == "" {
		return -1, nil
	}
	text := name
	if n, err := strconv.ParseUint(name, 10, 64); err != nil {
		if text, err = lookup(name); err != nil {
			return 0, fmt.Errorf("this system has no %s %q", kind, name)
		}
	} else if n >= math.MaxUint32 { // MaxUint32 is -1 to the kernel
		return 0, fmt.Errorf("%s %s: the maximum is %d", kind, name, uint32(math.MaxUint32-1))
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%s %q has the number %q", kind, name, text)
	}
	return n, nil
}
