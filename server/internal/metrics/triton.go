package metrics

import "github.com/prometheus/client_golang/prometheus"

// Triton's names and labels, for dashboards made for Triton, shown if Sources.Triton returns true.
// Durations are in microseconds, summed over all requests. Inputs are written in place as they
// arrive and outputs are slices of the batch's outputs, so compute_input and compute_output stay 0.
//
// Source: Triton's docs/user_guide/metrics.md.
var (
	tritonSuccessDesc = triton("request_success", "Requests answered with a result.")
	tritonFailureDesc = triton("request_failure", "Requests answered with an error, by reason.", "reason")
	tritonRowsDesc    = triton("count", "Rows executed.")
	tritonBatchesDesc = triton("exec_count", "Batches executed.")
	tritonPendingDesc = triton("pending_request_count", "Requests of which no container has got a row.")
	tritonTimeDesc    = triton("request_duration_us", "Time of the requests answered with a result, in microseconds.")
	tritonQueueDesc   = triton("queue_duration_us", "Time that requests waited for their batch, in microseconds.")
	tritonInputDesc   = triton("compute_input_duration_us", "Always 0: inputs are not copied.")
	tritonInferDesc   = triton("compute_infer_duration_us", "Time that the batches of requests were executed, in microseconds.")
	tritonOutputDesc  = triton("compute_output_duration_us", "Always 0: outputs are not copied.")
)

func triton(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("nv_inference_"+name, help, append([]string{"model", "version"}, labels...), nil)
}

// tritonReasons are Triton's reasons for failures.
var tritonReasons = [...]string{"REJECTED", "CANCELED", "BACKEND", "OTHER"}

// tritonReason returns the index of the reason for an outcome other than a result.
func tritonReason(o Outcome) int {
	switch o {
	case Overloaded, Superseded, DeadlineExceeded, Unavailable, Draining:
		return 0
	case Canceled, Undelivered:
		return 1
	case ContainerFailed, ContainerLost:
		return 2
	}
	return 3
}

// collectTriton sends under Triton's names what collectRequests and collectWork send under ours.
func (m *Model) collectTriton(out collection) {
	var failures [len(tritonReasons)]uint64
	for i := range m.doors {
		for o := range outcomes {
			if o != OK && o != Default {
				failures[tritonReason(o)] += m.doors[i].requests[o].Load()
			}
		}
	}
	for i, n := range failures {
		out.counter(tritonFailureDesc, n, m.name, m.version, tritonReasons[i])
	}
	t := m.Totals()
	rows, batches := uint64(0), uint64(0)
	for _, b := range t.Batches {
		rows += uint64(b.Rows) * b.Took.Count
		batches += b.Took.Count
	}
	for _, c := range []struct {
		desc *prometheus.Desc
		n    uint64
	}{
		{tritonSuccessDesc, t.Succeeded.Count},
		{tritonRowsDesc, rows},
		{tritonBatchesDesc, batches},
		{tritonTimeDesc, t.Succeeded.Nanos / 1e3},
		{tritonQueueDesc, t.Queued.Nanos / 1e3},
		{tritonInputDesc, 0},
		{tritonInferDesc, t.Executed.Nanos / 1e3},
		{tritonOutputDesc, 0},
	} {
		out.counter(c.desc, c.n, m.name, m.version)
	}
}
