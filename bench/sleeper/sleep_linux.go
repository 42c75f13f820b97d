package main

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// sleepUntil sleeps by the kernel's timer. Those of Go's runtime wait in epoll_wait, in whole
// milliseconds, when the process has nothing else to do: up to a millisecond would be added to
// every batch.
func sleepUntil(t time.Time) error {
	for d := time.Until(t); d > 0; d = time.Until(t) {
		left := unix.NsecToTimespec(int64(d))
		if err := unix.Nanosleep(&left, nil); err != nil && err != unix.EINTR {
			return os.NewSyscallError("nanosleep", err)
		}
	}
	return nil
}
