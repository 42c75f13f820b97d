package predict

import (
	"cmp"

	"github.com/shivad/shivad/server/internal/gate"
)

// ModelStatistics counts the requests and batches of one version of a model since it was
// registered, through all doors.
//
// Source: Triton, statistics extension. Memory and decoupled responses do not exist here and are
// omitted. So are caches, whose look-ups are not timed: the metrics count them.
type ModelStatistics struct {
	Name           string         `json:"name"`
	Version        string         `json:"version"`
	LastInference  int64          `json:"last_inference"`  // ms since 1970; 0: never
	InferenceCount uint64         `json:"inference_count"` // rows
	ExecutionCount uint64         `json:"execution_count"` // batches
	InferenceStats InferenceStats `json:"inference_stats"`
	BatchStats     []BatchStats   `json:"batch_stats"` // by rows
}

// InferenceStats are the times of requests.
type InferenceStats struct {
	Success       Duration `json:"success"`        // from the request's last byte to its answer
	Fail          Duration `json:"fail"`           // from the request's last byte to its answer
	Queue         Duration `json:"queue"`          // until its first row was sent to a container
	ComputeInput  Duration `json:"compute_input"`  // 0: inputs are written in place as they arrive
	ComputeInfer  Duration `json:"compute_infer"`  // of the batch with its last row
	ComputeOutput Duration `json:"compute_output"` // 0: outputs are slices of the batch's outputs
}

// BatchStats are the times of batches of one size.
type BatchStats struct {
	BatchSize     int      `json:"batch_size"`
	ComputeInput  Duration `json:"compute_input"`
	ComputeInfer  Duration `json:"compute_infer"`
	ComputeOutput Duration `json:"compute_output"`
}

// Duration is how often something happened, and how long it took in total.
type Duration struct {
	Count uint64 `json:"count"`
	Nanos uint64 `json:"ns"`
}

// StatisticsList is the answer to a request for statistics.
type StatisticsList struct {
	Models []ModelStatistics `json:"model_stats"`
}

// Statistics returns the statistics of every version of a model, of one version, or of an
// application: requests under the name that they were sent to, batches under the model that
// executed them. The empty name means all models and applications.
func (s *Service) Statistics(name, version string) (StatisticsList, error) {
	list := StatisticsList{Models: []ModelStatistics{}}
	if name != "" {
		// The error names what does not exist.
		if _, err := s.view.Behind(name, version); err != nil {
			return list, err
		}
		if d := s.view.Redirect(name); d != nil { // its requests count under what it stands for
			name, version = d.Model, cmp.Or(version, d.Version)
		}
	}
	for _, t := range s.view.Targets() {
		if (name == "" || t.ID.Name == name) && (version == "" || t.ID.Version == version) {
			list.Models = append(list.Models, statistics(t))
		}
	}
	if version != "" {
		return list, nil // composites have no versions
	}
	for _, a := range s.view.Composites() {
		if name != "" && a.Name != name {
			continue
		}
		// A composite without models, or just deleted, has no statistics.
		if t, err := s.view.Target(a.Name, ""); err == nil && t.Composite != nil {
			list.Models = append(list.Models, statistics(t))
		}
	}
	return list, nil
}

func statistics(t *gate.Target) ModelStatistics {
	c := t.Metrics.Totals()
	out := ModelStatistics{
		Name: t.ID.Name, Version: t.ID.Version,
		InferenceStats: InferenceStats{
			Success:       Duration(c.Succeeded),
			Fail:          Duration(c.Failed),
			Queue:         Duration(c.Queued),
			ComputeInput:  Duration{Count: c.Executed.Count},
			ComputeInfer:  Duration(c.Executed),
			ComputeOutput: Duration{Count: c.Executed.Count},
		},
		BatchStats: []BatchStats{},
	}
	if !c.Last.IsZero() {
		out.LastInference = c.Last.UnixMilli()
	}
	for _, b := range c.Batches {
		out.InferenceCount += uint64(b.Rows) * b.Took.Count
		out.ExecutionCount += b.Took.Count
		out.BatchStats = append(out.BatchStats, BatchStats{
			BatchSize:     b.Rows,
			ComputeInput:  Duration{Count: b.Took.Count},
			ComputeInfer:  Duration(b.Took),
			ComputeOutput: Duration{Count: b.Took.Count},
		})
	}
	return out
}
