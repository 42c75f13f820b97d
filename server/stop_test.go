package server

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/server/config"
)

// TestStubbornProcess: a process that does not stop before it is killed takes no time away from the other containers, which are parted from
// in good order.
func TestStubbornProcess(t *testing.T) {
	var log logged
	s := startLogging(t, slog.New(slog.NewTextHandler(&log, nil)), func(c *config.Config) {
		c.Supervised = []config.Container{called(t), {Name: "stubborn", Replicas: 1, StopTimeout: 5500 * time.Millisecond,
			Command: []string{"/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"}}}
	})
	eventually(t, "both to be there", func() bool {
		p := s.supervised()
		return s.dialers[0].Session().State == "serving" && len(p) == 1 && len(p[0].Log) == 1
	})
	last := version(t, s, "2")
	if err := s.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	<-last.Gone()
	if strings.Contains(log.String(), "cut off") {
		t.Error("containers were cut off")
	}
}
