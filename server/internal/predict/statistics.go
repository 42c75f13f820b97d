package predict

import (
	"github.com/shivad/shivad/server/internal/gate"
)

// ModelStatistics counts what one version of a model has done since the server knows it,
// through all doors.
//
// Source: Triton, statistics extension. What has no meaning here (memory, decoupled responses)
// is left out, and so are caches, whose look-ups are not timed: the metrics count them.
type ModelStatistics struct {
	Name           string         `json:"name"`
	Version        string         `json:"version"`
	LastInference  int64          `json:"last_inference"`  // ms since 1970; 0 = never
	InferenceCount uint64         `json:"inference_count"` // rows
	ExecutionCount uint64         `json:"execution_count"` // batches
	InferenceStats InferenceStats `json:"inference_stats"`
	BatchStats     []BatchStats   `json:"batch_stats"` // by rows
}

// InferenceStats are the times of requests.
type InferenceStats struct {
	Success       Duration `json:"success"`        // from the request's last byte to its answer
	Fail          Duration `json:"fail"`           // likewise
	Queue         Duration `json:"queue"`          // until its first row was sent to a container
	ComputeInput  Duration `json:"compute_input"`  // 0: inputs are laid out as they arrive
	ComputeInfer  Duration `json:"compute_infer"`  // of the batch that its last row was in, as long as the container could work on it
	ComputeOutput Duration `json:"compute_output"` // 0: outputs are cut from the batch's where they lie
}

// BatchStats are the times of batches of one size.
type BatchStats struct {
	BatchSize     int      `json:"batch_size"`
	ComputeInput  Duration `json:"compute_input"`
	ComputeInfer  Duration `json:"compute_infer"`
	ComputeOutput Duration `json:"compute_output"`
}

// Duration is how often something took place, and how long all of it took.
type Duration struct {
	Count uint64 `json:"count"`
	Nanos uint64 `json:"ns"`
}

// StatisticsList is the answer about statistics.
type StatisticsList struct {
	Models []ModelStatistics `json:"model_stats"`
}

// Statistics counts for every version of a model, or the one named, or for an application:
// requests by the name that they were sent to, and batches by the model that executed them.
// Name "" means all of both.
func (s *Service) Statistics(name, version string) (StatisticsList, error) {
	list := StatisticsList{Models: []ModelStatistics{}}
	if name != "" {
		// Says what is wrong with names that are not there.
		if _, err := s.gate.Target(name, version); err != nil {
			return list, err
		}
	}
	for _, m := range s.gate.Models() {
		if name != "" && m.Name != name || version != "" && m.Version != version {
			continue
		}
		if t, err := s.gate.Target(m.Name, m.Version); err == nil { // else it was forgotten meanwhile
			list.Models = append(list.Models, statistics(t))
		}
	}
	if version != "" {
		return list, nil // of a model: applications have none
	}
	for _, a := range s.gate.Applications() {
		if name != "" && a.Name != name {
			continue
		}
		if t, err := s.gate.Target(a.Name, ""); err == nil && t.Application != nil { // else it has no candidates, or has gone
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
