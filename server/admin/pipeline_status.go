package admin

import (
	"fmt"
	"strings"
)

// A PipelineList is the answer to /v1/pipelines.
type PipelineList struct {
	Pipelines []PipelineStatus `json:"pipelines"`
}

// A PipelineStatus is a pipeline as the server has it.
type PipelineStatus struct {
	Pipeline
	// Origin is OriginFile or OriginStore.
	Origin string `json:"origin"`
	// Faults say why requests are refused: models that are missing, and inputs that do not fit what
	// they should get.
	Faults []string `json:"faults"`
	// Load says how each stage has done, in the order of the stages.
	Load []StageLoad `json:"load"`
}

// Origins of a pipeline.
const (
	OriginFile  = "file"  // the server's configuration file, where alone it changes
	OriginStore = "store" // made by an operator, and shared by the servers of the store
)

// A PipelineCheck is the answer to POST /v1/pipelines?dry_run=true: what would be wrong with a
// pipeline that is sound in itself, with the models that serve now.
type PipelineCheck struct {
	Pipeline Pipeline `json:"pipeline"`
	Faults   []string `json:"faults"`
}

// A PipelineLoad is how the stages of a pipeline have done.
type PipelineLoad struct {
	Name   string      `json:"name"`
	Stages []StageLoad `json:"stages"`
}

// A StageLoad says how a stage has done in the last minute.
type StageLoad struct {
	Stage    string `json:"stage"`
	Requests uint64 `json:"requests"` // that came to it, also without a row
	Rows     uint64 `json:"rows"`
	LeftOut  uint64 `json:"left_out"`  // elements that keep left out
	NotBegun uint64 `json:"not_begun"` // rows that could not be in time, and were not begun
	// Lost are rows without a result, by why; those that were not begun are deadline_exceeded.
	Lost map[string]uint64 `json:"lost"`
	// Of requests with rows that were begun: the mean time from when the inputs were there to the
	// last row, the time that 99 % did not exceed, to a factor of two, the mean part of it until
	// the first row was sent to a container, and the mean part that it was of the time from the
	// arrival of the request to its deadline.
	Took   float64 `json:"took_seconds"`
	Took99 float64 `json:"took99_seconds"`
	Waited float64 `json:"waited_seconds"`
	Share  float64 `json:"share"`

	Batch    float64 `json:"batch_rows"` // mean rows of the batches of its model; 0: none were sent
	Replicas int     `json:"replicas"`   // live ones of its model
	Summary  string  `json:"summary"`    // all this in a few words
}

// LostRows is the number of rows without a result.
func (l StageLoad) LostRows() (n uint64) {
	for _, one := range l.Lost {
		n += one
	}
	return n
}

// Words returns the Summary.
func (l StageLoad) Words() string {
	if l.Requests == 0 {
		return "no requests"
	}
	text := fmt.Sprintf("%.3g rows a request", float64(l.Rows)/float64(l.Requests))
	if l.Rows == l.Requests {
		text = "1 row a request"
	}
	if l.Took > 0 {
		text += fmt.Sprintf(", %.3g ms", 1000*l.Took)
	}
	if lost := l.LostRows(); lost > 0 {
		text += fmt.Sprintf(", %.3g %% lost", 100*float64(lost)/float64(max(l.Rows, 1)))
	}
	return text
}

// Conditions says in a few words which elements become rows; none if all do.
func (f *Filter) Conditions() (list []string) {
	if f == nil {
		return nil
	}
	if len(f.Classes) > 0 {
		list = append(list, strings.Join(f.Classes, " or "))
	}
	if f.Score != 0 {
		list = append(list, fmt.Sprintf("score ≥ %.4g", f.Score))
	}
	if f.Most > 0 {
		list = append(list, fmt.Sprintf("at most %d", f.Most))
	}
	if f.Smallest != 0 {
		list = append(list, fmt.Sprintf("side ≥ %.4g", f.Smallest))
	}
	return list
}

// A PipelineDrawing is the answer to /v1/pipelines/{name}/drawing.
type PipelineDrawing struct {
	SVG string `json:"svg"`
}
