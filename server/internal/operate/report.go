package operate

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/modelfiles"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/server/internal/unfinished"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Report describes the state of the server. Its methods may be called from any goroutine.
type Report struct {
	Host      string // the machine's name
	Version   string // of the server
	Started   time.Time
	Phase     func() string // admin.Starting, Serving, Draining
	Listening func() admin.Addresses
	Expiring  func() map[string]time.Time // certificates that need a warning, by door

	Settings   *Settings
	Store      *Store
	Gate       *gate.Gate
	Scheduler  *scheduler.Scheduler
	Metrics    *metrics.Metrics
	Pool       *tensor.Pool
	Unpacked   *tensor.Pool                 // the part of Pool for compressed requests
	Unfinished *unfinished.Room             // of Pool, for messages that are arriving
	Arena      func() containers.ArenaUsage // shared memory of containers on this machine
	Regions    *regions.Registry            // and of clients
	Sessions   *Sessions
	Processes  *Processes
	Files      *modelfiles.Manager

	Identities *access.Identities
	Addresses  *access.Addresses
}

// Ready reports whether the server takes requests, and if not, why.
func (r *Report) Ready() admin.Readiness {
	state := r.Phase()
	file := r.Settings.File().Server
	required := file.RequiredModels
	if state == admin.Serving && file.ReadyWhen == config.ReadyModels {
		required = r.awaited()
	}
	a := judge(state, required, r.Models())
	if state == admin.Serving && !a.Ready {
		a.Reason += r.Processes.WhyMissing(a.Missing)
	}
	if a.State == admin.Serving { // so the store is open
		if k := r.Store.Health(); !k.Healthy {
			a.Degraded = fmt.Sprintf("since %s changes of applications, pipelines, settings and policy state cannot be stored: %s",
				k.Since.Format(time.RFC3339), k.Error)
		}
		if dead := r.failingModels(); dead != "" {
			a.Degraded = strings.TrimPrefix(a.Degraded+"; "+dead, "; ")
		}
		if faults := r.Files.Faults(); len(faults) > 0 {
			a.Degraded = strings.TrimPrefix(a.Degraded+"; "+strings.Join(faults, "; "), "; ")
		}
	}
	return a
}

// Models describes every version of every model, by name, the newest version first, as the gate
// routes to them.
func (r *Report) Models() []admin.Model {
	var out []admin.Model
	for _, m := range r.Gate.Models() {
		target, err := r.Gate.Target(m.Name, m.Version)
		if err != nil {
			continue // forgotten meanwhile
		}
		stats := target.Model.Stats()
		out = append(out, admin.Model{
			Name:       m.Name,
			Version:    m.Version,
			Default:    m.Default,
			Ready:      m.Ready,
			Replicas:   m.Replicas,
			Platform:   target.Spec.Platform,
			MaxBatch:   maxBatch(stats),
			Batched:    target.Spec.Batched(),
			Inputs:     declared(target.Spec.Inputs),
			Outputs:    declared(target.Spec.Outputs),
			QueueRows:  stats.QueueRows,
			QueueBytes: stats.QueueBytes,
			Policy:     r.effective(m.Name, stats),
			Cache:      r.cache(target),
		})
	}
	return out
}

// cache describes what the cache does for a target; nil if its model has none.
func (r *Report) cache(t *gate.Target) *admin.Cache {
	usage, ok := r.Gate.Cache(t.ID.Name)
	if !ok {
		return nil
	}
	c := t.Metrics.Cache().Counts()
	return &admin.Cache{
		Limit: usage.Limit, Entries: c.Entries, Bytes: c.Bytes, Hits: c.Hits, Shared: c.Shared, Misses: c.Misses,
		Evicted: c.Evicted, Expired: c.Expired, NotKept: c.NotKept,
	}
}

// effective returns a model's settings, with the actual values of settings that were left to the
// server or the container.
func (r *Report) effective(model string, stats scheduler.Stats) config.Model {
	m := r.Settings.Now().Model(model)
	m.BatchBytes = config.Bytes(stats.Config.BatchBytes)
	m.MaxBatch = cmp.Or(maxBatch(stats), m.MaxBatch)
	return m
}

// maxBatch returns the largest batch that one of a model's replicas takes; 0 while there is no
// replica.
func maxBatch(s scheduler.Stats) int {
	return greatest(s, func(r scheduler.ReplicaStats) int { return r.MaxBatch })
}

func declared(specs []tensor.Spec) []admin.Tensor {
	out := make([]admin.Tensor, len(specs))
	for i, t := range specs {
		out[i] = admin.Tensor{Name: t.Name, Datatype: t.DType.V2(), Shape: append([]int{}, t.Shape...),
			Optional: t.Optional, Ragged: t.Ragged}
		if t.Image != nil {
			out[i].Image = t.Image.String()
		}
	}
	return out
}

// Status returns the state of the whole server.
func (r *Report) Status() admin.Status {
	st := admin.Status{
		Host:      r.Host,
		Version:   r.Version,
		PID:       os.Getpid(),
		Started:   r.Started,
		Uptime:    time.Since(r.Started).Seconds(),
		Readiness: r.Ready(),
		Listen:    r.Listening(),
		Clients:   r.clients(),
		Shared:    r.shared(),
		Regions:   clientRegions(r.Regions.Usage()),
		Payload:   admin.Usage{Used: r.Pool.InUse(), Limit: r.Pool.Budget(), Refused: r.Pool.Refused()},
		Models:    r.health(math.MaxInt),
		Routes:    r.routes(),
		Pipelines: r.pipelineLoads(),
		State:     r.Store.Health(),
		Sessions:  sessionDocuments(r.Sessions.List()),
		Processes: processDocuments(r.Processes.List()),
		Limits:    r.Settings.Now().Limits,
	}
	for name, listen := range st.Listen.Doors() {
		if len(*listen) > 0 {
			m := r.Metrics.Door(name)
			st.Doors = append(st.Doors, admin.Door{Name: name, Connections: m.Connections(), InFlight: m.InFlight()})
		}
	}
	for _, stats := range r.Stats() {
		st.Queue.Rows += stats.QueueRows
		st.Queue.Bytes += stats.QueueBytes
		st.Queue.OldestRow = max(st.Queue.OldestRow, stats.OldestWait.Seconds())
		st.Queue.OldestBatch = max(st.Queue.OldestBatch, stats.OldestBatch.Seconds())
	}
	st.Newest, st.Streams = r.newest(), r.seen()
	st.Warnings = slices.Concat(warnings(st), pipelineWarnings(st.Pipelines), expiring(r.Expiring()),
		r.Files.Faults(), r.Files.Ignored(), r.Processes.Refused())
	if st.Warnings == nil {
		st.Warnings = []string{} // clients want a list
	}
	return st
}

// routes describes the routes of the configuration.
func (r *Report) routes() []admin.Route {
	out := []admin.Route{}
	for _, d := range r.Gate.Redirects() {
		out = append(out, admin.Route(d))
	}
	return out
}

// shared describes the memory that containers on this machine share.
func (r *Report) shared() admin.Shared {
	u := r.Arena()
	return admin.Shared{
		Inputs: u.Resident, Used: u.Used, Readable: r.Sessions.Readable(), Replaced: u.Replaced, Limit: u.Limit,
		Outputs: u.Outputs,
	}
}

// clientRegions describes the shared memory of clients.
func clientRegions(u regions.Usage) admin.Regions {
	refused := uint64(0)
	for _, n := range u.Refused {
		refused += n
	}
	return admin.Regions{Used: u.Regions, Limit: u.Limit, Bytes: u.Bytes, Made: u.Made, Refused: refused}
}

// Stats returns the scheduler's figures for every version of every model.
func (r *Report) Stats() []scheduler.Stats {
	models := r.Scheduler.Models()
	out := make([]scheduler.Stats, len(models))
	for i, m := range models {
		out[i] = m.Stats()
	}
	return out
}

// Gauges returns the server's values for the metrics.
func (r *Report) Gauges() metrics.ServerGauges {
	shared, clients, half := r.shared(), r.Regions.Usage(), r.Unfinished.Stats()
	files, faulty, changes := r.Files.Count()
	return metrics.ServerGauges{
		PayloadBytes: r.Pool.InUse(),
		PayloadLimit: r.Pool.Budget(),
		PayloadIdle:  r.Pool.Idle(),
		ArenaBytes:   shared.Inputs,
		ArenaUsed:    shared.Used,
		Readable:     shared.Readable,
		Replaced:     shared.Replaced,
		Outputs:      shared.Outputs,
		Unpacked:     r.Unpacked.InUse(),
		UnpackLimit:  r.Unpacked.Budget(),
		Unfinished:   half.Held,
		Strangers:    half.Strangers,
		Ended:        map[string]uint64{"most": half.Most, "slow": half.Slow, "refused": half.Refused},
		Refusals:     r.Pool.Refused(),
		Regions:      clients.Regions,
		RegionBytes:  clients.Bytes,
		RegionsMade:  clients.Made,
		NoRegions:    clients.Refused,
		Newest:       metrics.NewestGauges(r.Gate.Newest().Usage()),
		Sessions:     r.Sessions.Count(),
		Restarts:     r.Processes.Restarts(),
		StateUp:      r.Store.Health().Healthy,
		ModelFiles:   files,
		FaultyFiles:  faulty,
		FileChanges:  map[string]uint64{"taken": changes.Taken, "kept": changes.Kept, "retired": changes.Retired},
	}
}
