package main

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
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

// Texts are wrapped beside names that are long, of which none is cut, in every table.
func TestWrapped(t *testing.T) {
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	name, why := strings.Repeat("gate", 6), strings.Repeat("it did not answer ", 10)+"altogether"
	h := admin.History{Name: name, Events: []admin.Event{{At: at, Until: &at, What: "changed", Version: "2026-11-28",
		By: "operator-of-line-1", Server: strings.Repeat("box", 9), Detail: why}}}
	a := admin.Audit{Entries: []admin.Entry{{At: at, Source: admin.Source{Identity: "operator", Address: "10.0.0.7:41000",
		Door: "admin"}, Action: "change", What: "model", Name: name, Refused: true, Error: why}}}
	k := admin.Container{Name: name, Model: name + "/1", State: "UNAVAILABLE", Reason: why}
	l := admin.Learned{Application: name, Policy: "exp4", Users: []admin.LearnedUser{{User: strings.Repeat("u", 30),
		Rounds: 1e6, Models: []admin.LearnedModel{{Model: name + "/1", Share: 1, Loss: 1, Count: 1e6}}}}}
	stage := admin.Stage{Name: "find", Model: name, Each: "boxes",
		Inputs: map[string]string{"image": "find.image", "to": "find.boxes"}}
	p := admin.PipelineStatus{Pipeline: admin.Pipeline{Name: name, Stages: []admin.Stage{stage, stage},
		Inputs: strings.Fields(strings.Repeat("input ", 20))}}
	p.Load = []admin.StageLoad{{Summary: why}, {Summary: why}}
	for _, width := range []int{100, 120} {
		var out bytes.Buffer
		c := &cli{stdout: &out, columns: width}
		models, _ := wide()
		models[0].Inputs = slices.Repeat(models[0].Inputs, 4)
		models[0].Outputs = models[0].Inputs
		if err := errors.Join(c.printHistory(h), c.printAudit(a), c.printContainers([]admin.Container{k}),
			c.printLearned(l), c.printPipeline(p), c.printModels(models),
			c.printPipelines([]admin.PipelineStatus{p})); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
				t.Errorf("%d columns for %d: %s", n, width, line)
			}
		}
		if n := strings.Count(out.String(), name); n != 10 || strings.Count(out.String(), "altogether") != 5 {
			t.Errorf("%d names and reasons are whole:\n%s", n, &out)
		}
	}
}
