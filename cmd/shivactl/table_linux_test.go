package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shivad/shivad/server/admin"
)

// Status, top, models and streams fit into the width: columns without a value go first, then those
// that matter least.
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
		models, streams := wide()
		if err := errors.Join(c.printModels(models), c.printStreams(streams)); err != nil {
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

// wide returns models and streams with long values in all columns.
func wide() ([]admin.Model, admin.StreamList) {
	one := []admin.Tensor{{Name: "images", Datatype: "FP32", Shape: []int{3, 640, 640}}}
	m := admin.Model{Name: "plate-detector-large", Version: "1", Platform: "onnx_onnxv1", MaxBatch: 1000, Inputs: one,
		Outputs: one, Cache: &admin.Cache{Bytes: 1 << 20, Hits: 1}}
	s := admin.Stream{Name: strings.Repeat("cam", 10), Frames: 1e6, Answered: 1e6, Superseded: 1e6, Span: 7,
		Silent: 1e6, Keep: "latest"}
	v := admin.VersionStreams{Version: "1", Known: 2, Streams: []admin.Stream{s}}
	return []admin.Model{m}, admin.StreamList{Versions: []admin.VersionStreams{v}}
}
