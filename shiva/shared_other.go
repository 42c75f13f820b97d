//go:build !linux

package shiva

import (
	"errors"
	"os"
)

func createShared(string, int64) (*os.File, []byte, error) {
	return nil, nil, errors.New("it is for Linux")
}

func backShared(*os.File, int64, int64) error { return errors.ErrUnsupported }

func unmapShared([]byte) {}
