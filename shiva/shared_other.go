//go:build !linux

package shiva

import (
	"errors"
	"os"
)

func createShared(string, int64) (*os.File, []byte, error) {
	return nil, nil, errors.New("only Linux is supported")
}

func backShared(*os.File, int64, int64) error { return errors.ErrUnsupported }

func unmapShared([]byte) {}
