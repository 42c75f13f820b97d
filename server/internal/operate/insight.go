package operate

import (
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/metrics"
)

// worstStreams is how many streams of a version a watch shows.
const worstStreams = 20

// Batches returns the batches of every version of every model, by name, the newest version first.
func (r *Report) Batches() []admin.Batches {
	all := []admin.Batches{}
	for _, target := range r.Gate.Targets() {
		s := target.Model.Stats()
		n := &s.Recent
		one := admin.Batches{
			Name: target.ID.Name, Version: target.ID.Version, Span: s.Span.Seconds(), Ago: s.Ago.Seconds(),
			Batches: n.Batches, Rows: n.Rows, Failed: n.BatchesFailed,
			Closed: map[string]uint64{}, Outcomes: map[string]uint64{},
			Waits: n.Waits, WaitedRows: n.WaitedRows, WaitsInVain: n.WaitsInVain, LastWait: lastWait(s),
		}
		for reason, count := range n.Closed {
			one.Closed[reason.String()] = count
		}
		for outcome, count := range n.Outcomes {
			one.Outcomes[outcome.String()] = count
		}
		all = append(all, one)
	}
	return all
}

// Insights describes how an application, or every version of a model, works and why; it is empty
// for an unknown name.
func (r *Report) Insights(name string) []admin.Insight {
	all := []admin.Insight{}
	streams := map[string]admin.VersionStreams{}
	for _, v := range r.Streams(name, worstStreams) {
		streams[v.Version] = v
	}
	for _, e := range r.Explain(name) {
		v := streams[e.Version]
		one := admin.Insight{Version: e.Version, Sentences: e.Sentences,
			Streams: append([]admin.Stream{}, v.Streams...), Known: v.Known, Replicas: []admin.Replica{},
			Sent: []admin.Batch{}}
		if target, err := r.Gate.Target(name, e.Version); err == nil && e.Version != "" {
			one.Replicas = replicas(target.Model.Stats())
			one.Sent = sentBatches(target.Metrics.Sent())
		}
		all = append(all, one)
	}
	return all
}

func replicas(s scheduler.Stats) []admin.Replica {
	all := []admin.Replica{}
	for _, r := range s.Replicas {
		one := admin.Replica{
			Name: name(r), State: r.State, InFlight: r.InFlight, Slots: r.Slots, MostRows: r.Limit, Batches: r.Batches,
			Rows: r.Rows, Failed: r.Failed,
			Measured: []admin.Measured{}, Fitted: []admin.Fitted{},
		}
		if r.LastError != nil {
			one.LastError = access.Printable(r.LastError.Error(), mostSentence)
		}
		for _, m := range r.Measured {
			one.Measured = append(one.Measured, admin.Measured{Rows: m.Rows, Took: m.Took.Seconds()})
		}
		for _, p := range r.Profile {
			one.Fitted = append(one.Fitted,
				admin.Fitted{Rows: p.Rows, Typical: p.Typical.Seconds(), Planned: p.Planned.Seconds()})
		}
		all = append(all, one)
	}
	return all
}

func sentBatches(list []metrics.Batch) []admin.Batch {
	all := []admin.Batch{}
	for _, b := range list {
		all = append(all, admin.Batch{At: float64(b.At.UnixMilli()) / 1000, Rows: b.Rows, Closed: b.Closed.String()})
	}
	return all
}
