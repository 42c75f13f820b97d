//go:build !linux

package process

import (
	"errors"
	"time"
)

var errLinux = errors.New("process: the processor time of another process is known only on Linux")

func cpuOf(int) (time.Duration, error) { return 0, errLinux }
func treeOf(int) ([]int, error)        { return nil, errLinux }
