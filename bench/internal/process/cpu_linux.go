package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpuOf reads the processor clock of a process, whose id is made in this way (CPUCLOCK_SCHED). The
// times in /proc are in steps of 10 ms.
func cpuOf(pid int) (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
		return 0, os.NewSyscallError("clock_gettime", err)
	}
	return time.Duration(t.Nano()), nil
}

// processors reads the first line of /proc/stat: all processors since the machine began, in user
// programs, in nice ones, in the kernel, idle, waiting for a disk, and others.
func processors() (idle, all uint64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("process: expected /proc/stat to begin with \"cpu\" and eight times, got %q", line)
	}
	for i, field := range fields[1:9] { // the fields after these count the time of guests once more
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("process: /proc/stat has %q: %w", line, err)
		}
		if all += n; i == 3 || i == 4 {
			idle += n
		}
	}
	return idle, all, nil
}

// treeOf returns a process and all its descendants, by their parents' ids in /proc.
func treeOf(root int) ([]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := make(map[int][]int)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// The name, in parentheses, may contain anything; the state and the parent follow it.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || len(fields) < 2 {
			return nil, fmt.Errorf("process: %s has %q", file, text)
		}
		parent, err := strconv.Atoi(fields[1])
		if err != nil {
			return nil, fmt.Errorf("process: %s has %q", file, text)
		}
		children[parent] = append(children[parent], pid)
	}
	tree := []int{root}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, children[tree[i]]...)
	}
	return tree, nil
}
