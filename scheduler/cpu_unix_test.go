//go:build unix

package scheduler_test

import (
	"syscall"
	"testing"
	"time"
)

// cpuTime is what the process has used of the processors, user and system together.
func cpuTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
