//go:build unix

package scheduler_test

import (
	"syscall"
	"testing"
	"time"
)

// cpuTime is the processor time of the process, user and system.
func cpuTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
