//go:build !linux

package process

import (
	"errors"
	"time"
)

func cpuOf(int) (time.Duration, error) {
	return 0, errors.New("process: the processor time of another process is known only on Linux")
}
