package containers_test

import (
	"strings"
	"testing"

	"github.com/shivad/shivad/containers"
)

// TestConfig: all faults are reported at once.
func TestConfig(t *testing.T) {
	_, err := containers.Listen(containers.Config{
		Addrs:    []string{"7000", "udp://x:1", "ipc://"},
		Settings: containers.Settings{Heartbeat: -1, Limits: containers.Limits{Sessions: -1}},
	})
	for _, want := range []string{"no scheduler", `"7000"`, "udp", "ipc://path",
		"heartbeat: expected 10ms to 24h, got -1ns", "sessions: expected 1 to 1048576, got -1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}
