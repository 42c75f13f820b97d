package main

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// sleepUntil sleeps by a kernel timer. Timers of Go's runtime wait in epoll_wait, in whole
// milliseconds, when the process is idle, which would add up to a millisecond to every batch.
func sleepUntil(t time.Time) error {
	for d := time.Until(t); d > 0; d = time.Until(t) {
		left := unix.NsecToTimespec(int64(d))
		if err := unix.Nanosleep(&left, nil); err != nil && err != unix.EINTR {
			return os.NewSyscallError("nanosleep", err)
		}
	}
	return nil
}
