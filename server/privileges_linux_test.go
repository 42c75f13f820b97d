package server

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/budgettest"
)

// A [[container]] has the privileges that its settings give it, and none of the server's others.
func TestProcessesHaveTheirPrivileges(t *testing.T) {
	t.Setenv("SECRET", "of the server")
	t.Setenv("WANTED", "by the process")
	dir, open := t.TempDir(), t.TempDir()
	s := start(t, func(c *config.Config) {
		c.Supervised = []config.Container{{
			Name: "p",
			Command: []string{"sh", "-c", "echo >" + filepath.Join(dir, "no") + "; echo >" +
				filepath.Join(open, "yes") + "; exec sleep 600"},
			Process: config.Process{
				Replicas: config.Fixed(1), StopTimeout: 10 * time.Second, InheritEnv: []string{"WANTED"},
				ReadOnly: true, Writable: []string{open}, Memory: 1 << 30, FileBytes: 50_000, OpenFiles: 64,
			},
		}}
	})
	budgettest.Until(t, "it to sleep", func() bool { return strings.HasPrefix(ofProcess(t, s, "cmdline"), "sleep") })
	for file, want := range map[string]string{
		"limits":  `Max data size +1073741824 +1073741824 (?s:.*)Max open files +64 +64 |Max file size +50000 +50000 `,
		"status":  `NoNewPrivs:\s+1\n`,
		"environ": `\x00?WANTED=by the process\x00`,
	} {
		if text := ofProcess(t, s, file); !regexp.MustCompile(want).MatchString(text) || strings.Contains(text, "SECRET") {
			t.Errorf("%s: %s, expected %s", file, text, want)
		}
	}
	if _, err := os.Stat(filepath.Join(open, "yes")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "no")); err == nil {
		t.Error("it has written where it may not")
	}
}
