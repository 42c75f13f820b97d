package capacity

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Processors returns the number of processors that the process may use now: those of its affinity,
// or fewer if the bandwidth of its cgroup, or of one above it, allows less. A part of a processor
// counts as one, as in Go's own default for GOMAXPROCS: with a limit of 1.5, one thread would leave
// a third unused. Unlike that default it may be 1. Processors reads files, so do not call it for
// every request.
func Processors() int { return processorsUnder("/", runtime.NumCPU()) }

// processorsUnder returns the number according to the kernel's files below root, at most most.
func processorsUnder(root string, most int) int {
	limit := float64(most)
	walk(root, "cpu", func(dir string, version int) {
		if version == 2 {
			// "QUOTA PERIOD" in microseconds; the quota "max" is none.
			f := strings.Fields(read(root, dir, "cpu.max"))
			if len(f) == 2 {
				limit = min(limit, ratio(f[0], f[1]))
			}
			return
		}
		// A quota of -1 is none.
		limit = min(limit, ratio(read(root, dir, "cpu.cfs_quota_us"), read(root, dir, "cpu.cfs_period_us")))
	})
	return max(1, int(math.Ceil(limit)))
}

func read(root, dir, file string) string {
	text, _ := os.ReadFile(filepath.Join(root, dir, file))
	return strings.TrimSpace(string(text))
}

// ratio returns the number of processors that a quota allows; infinity if it limits nothing.
func ratio(quota, period string) float64 {
	q, err := strconv.ParseInt(quota, 10, 64)
	p, err2 := strconv.ParseInt(period, 10, 64)
	if err != nil || err2 != nil || q <= 0 || p <= 0 {
		return math.Inf(1)
	}
	return float64(q) / float64(p)
}

// VisibleProcessors returns the number of processors that libraries see which know no bandwidth.
func VisibleProcessors() int { return runtime.NumCPU() }
