package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shivad/shivad/server/admin"
)

// Status and top fit into the width: columns without a value go first, then those that matter
// least.
func TestWidth(t *testing.T) {
	for _, width := range []int{0, 80, 100, 200} {
		var out bytes.Buffer
		c := &cli{stdout: &out, columns: width}
		s := fakeStatus
		s.Warnings = nil // sentences, which the terminal wraps
		stage := admin.StageLoad{Stage: "plate-detector-large", Requests: 1e9, Rows: 1e9, LeftOut: 1e9, NotBegun: 1e9}
		s.Pipelines = []admin.PipelineLoad{{Name: "plates-of-all-gates", Stages: []admin.StageLoad{stage}}}
		if err := c.printStatus(s); err != nil {
			t.Fatal(err)
		}
		shown := out.String()
		now := topOf(&fakeStatus, &s)
		if err := c.printTop(&now, &s); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			n := utf8.RuneCountInString(strings.TrimRight(line, " \n"))
			if n > c.width() && n > usualColumns {
				t.Errorf("%d columns for %d: %s", n, c.width(), line)
			}
		}
		all := strings.Contains(shown, "SHARED MEMORY") && strings.Contains(shown, "NO MEMORY")
		if all != (width == 200) {
			t.Errorf("%d columns:\n%s", width, shown)
		}
		for _, always := range []string{"REPLICAS", "REQUESTS", "IN TIME", "BATCHES", "FAILED", "LAST EXIT"} {
			if width != 80 && !strings.Contains(shown, always) {
				t.Errorf("%d columns lack %s:\n%s", width, always, shown)
			}
		}
	}
}
