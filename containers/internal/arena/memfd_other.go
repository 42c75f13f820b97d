//go:build !linux

package arena

import "errors"

var errLinux = errors.New("arena: shared memory needs Linux")

func create(int64, []byte, bool) (int, []byte, error) { return 0, nil, errLinux }

func shut(int) {}

// Map maps a segment of another process, as described by its offer, for a container. It always
// fails outside Linux.
func Map(string, int64, []byte, bool) ([]byte, error) { return nil, errLinux }

// Unmap unmaps memory of Map.
func Unmap([]byte) {}
