//go:build !linux

package process

import (
	"errors"
	"time"
)

var errLinux = errors.New("process: the processor time and the memory of another process are known only on Linux")

func cpuOf(int) (time.Duration, error)          { return 0, errLinux }
func treeOf(int) ([]int, error)                 { return nil, errLinux }
func processors() (idle, all uint64, err error) { return 0, 0, errLinux }
func memoryOf(int) (now, most int64, err error) { return 0, 0, errLinux }
