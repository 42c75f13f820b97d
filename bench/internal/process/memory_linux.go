package process

import (
	"fmt"
	"os"
	"strings"
)

// memoryOf returns the resident memory of a process, now and at its peak, in bytes.
func memoryOf(pid int) (now, most int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		of := map[string]*int64{"VmRSS": &now, "VmHWM": &most}[name]
		if of == nil {
			continue
		}
		if _, err := fmt.Sscanf(value, "%d kB", of); err != nil {
			return 0, 0, fmt.Errorf("process: %q: %w", line, err)
		}
		*of <<= 10
	}
	if now == 0 || most == 0 {
		return 0, 0, fmt.Errorf("process: /proc/%d/status does not say what is in memory:\n%s", pid, text)
	}
	return now, most, nil
}
