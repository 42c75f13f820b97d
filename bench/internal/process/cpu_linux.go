package process

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// cpuOf reads the clock of a process, of which the kernel makes the number so (CPUCLOCK_SCHED).
// The times in /proc are in steps of 10 ms.
func cpuOf(pid int) (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
		return 0, os.NewSyscallError("clock_gettime", err)
	}
	return time.Duration(t.Nano()), nil
}
