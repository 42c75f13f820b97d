package server

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/metrics"
	"github.com/shivad/shivad/shiva/tensor"
)

// sources is what the admin door shows.
func (s *Server) sources() admin.Sources {
	return admin.Sources{
		Version: Version,
		Access:  s.access,
		Ready:   s.readiness,
		Models:  s.models,
		Status:  s.status,
		Config: func() any {
			c := s.settings.Load().Redacted()
			c.TCP, c.REST, c.GRPC, c.Containers = s.cfg.TCP, s.cfg.REST, s.cfg.GRPC, s.cfg.Containers // as the descriptors allow
			return c
		},
		Reload:  s.Reload,
		Explain: s.explain,
		Set:     s.set,

		ClearCache: s.gate.ClearCache,

		Apps:      s.applications,
		CheckApp:  s.checkApplication,
		CreateApp: s.createApplication,
		ChangeApp: s.changeApplication,
		DeleteApp: s.deleteApplication,
		Learned:   s.learned,
		Forget:    s.forget,
		Feedback:  s.feedback,
		Policies:  selectionPolicies,

		History: s.told,
		Changed: s.changed,

		Containers: repository{s}.shown,
		Start:      repository{s}.Start,
		Stop:       repository{s}.Stop,
		Restart:    repository{s}.Restart,

		Export:      s.export,
		CheckImport: s.checkImport,
		Import:      s.importDocument,

		Metrics: s.metrics.Handler(),
		Log:     s.log,
	}
}

func (s *Server) readiness() admin.Readiness {
	state := *s.state.Load()
	required := s.base.Load().Server.RequiredModels
	if state == admin.Serving && s.base.Load().Server.ReadyWhen == config.ReadyModels {
		required = s.awaited()
	}
	r := admin.Judge(state, required, s.models())
	if state == admin.Serving && !r.Ready {
		r.Reason += s.whyMissing(r.Missing)
	}
	if r.State == admin.Serving { // so the store is open: to ask earlier would wait for it
		if k := s.keeping(); !k.Healthy {
			r.Degraded = fmt.Sprintf("since %s applications, settings and what policies learn cannot be changed: %s", k.Since.Format(time.RFC3339), k.Error)
		}
		if dead := s.dead(); dead != "" {
			r.Degraded = strings.TrimPrefix(r.Degraded+"; "+dead, "; ")
		}
	}
	return r
}

// keeping tells how the store is doing.
func (s *Server) keeping() admin.State {
	k := admin.State{At: s.cfg.State.Redacted(), Since: s.started}
	_, store, err := s.kept()
	if err != nil {
		k.Error = err.Error()
		return k
	}
	health := store.Health()
	k.Since = health.Since
	if k.Healthy = health.Err == nil; !k.Healthy {
		k.Error = strings.TrimPrefix(health.Err.Error(), "state: ")
	}
	return k
}

// models describes every version of every model, by name and then the newest first, as the gate routes
// to them.
func (s *Server) models() []admin.Model {
	var out []admin.Model
	for _, m := range s.gate.Models() {
		target, err := s.gate.Target(m.Name, m.Version)
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
			Policy:     s.effective(m.Name, stats),
			Cache:      s.cache(target),
		})
	}
	return out
}

// cache describes what the cache does for a target; nil if its model has none.
func (s *Server) cache(t *gate.Target) *admin.Cache {
	usage, ok := s.gate.Cache(t.ID.Name)
	if !ok {
		return nil
	}
	c := t.Metrics.Cache().Counts()
	return &admin.Cache{
		Limit: usage.Limit, Entries: c.Entries, Bytes: c.Bytes, Hits: c.Hits, Shared: c.Shared, Misses: c.Misses,
		Evicted: c.Evicted, Expired: c.Expired, NotKept: c.NotKept,
	}
}

// effective are a model's settings, with what was left to the server or the container as it has turned out.
func (s *Server) effective(model string, stats scheduler.Stats) config.Model {
	m := s.settings.Load().Model(model)
	m.BatchBytes = config.Bytes(stats.Config.BatchBytes)
	if n := maxBatch(stats); n > 0 {
		m.MaxBatch = n
	}
	return m
}

// maxBatch is the largest that one of a model's replicas takes; 0 while there is none.
func maxBatch(s scheduler.Stats) int {
	rows := 0
	for _, r := range s.Replicas {
		rows = max(rows, r.MaxBatch)
	}
	return rows
}

func declared(specs []tensor.Spec) []admin.Tensor {
	out := make([]admin.Tensor, len(specs))
	for i, t := range specs {
		out[i] = admin.Tensor{Name: t.Name, Datatype: t.DType.V2(), Shape: append([]int{}, t.Shape...), Optional: t.Optional, Ragged: t.Ragged}
	}
	return out
}

func (s *Server) status() admin.Status {
	st := admin.Status{
		Version:   Version,
		PID:       os.Getpid(),
		Started:   s.started,
		Uptime:    time.Since(s.started).Seconds(),
		Readiness: s.readiness(),
		Listen:    s.listening(),
		Payload:   admin.Usage{Used: s.pool.InUse(), Limit: int64(s.cfg.Limits.PayloadBytes), Refused: s.pool.Refused()},
		Models:    s.health(),
		State:     s.keeping(),
		Sessions:  s.sessions(),
		Processes: s.supervised(),
		Limits:    s.cfg.Limits,
	}
	for _, door := range []struct{ name, listen string }{{"tcp", st.Listen.TCP}, {"rest", st.Listen.REST}, {"grpc", st.Listen.GRPC}} {
		if door.listen != "" {
			m := s.metrics.Door(door.name)
			st.Doors = append(st.Doors, admin.Door{Name: door.name, Connections: m.Connections(), InFlight: m.InFlight()})
		}
	}
	for _, m := range s.sched.Models() {
		stats := m.Stats()
		st.Queue.Rows += stats.QueueRows
		st.Queue.Bytes += stats.QueueBytes
		st.Queue.OldestRow = max(st.Queue.OldestRow, stats.OldestWait.Seconds())
		st.Queue.OldestBatch = max(st.Queue.OldestBatch, stats.OldestBatch.Seconds())
	}
	st.Warnings = warnings(st)
	return st
}

func (s *Server) listening() admin.Addresses {
	var a admin.Addresses
	addrs := s.Addrs()
	if addrs.TCP != nil {
		a.TCP = addrs.TCP.String()
	}
	if addrs.REST != nil {
		a.REST = addrs.REST.String()
	}
	if addrs.GRPC != nil {
		a.GRPC = addrs.GRPC.String()
	}
	a.Containers, a.V1b = spelled(addrs.Containers), spelled(addrs.ContainersV1b)
	a.V2, a.V2a = spelled(addrs.ContainersV2), spelled(addrs.ContainersV2a)
	if addrs.Admin != nil {
		a.Admin = addrs.Admin.String()
	}
	return a
}

func spelled(addrs []net.Addr) (list []string) {
	for _, a := range addrs {
		list = append(list, a.String())
	}
	return list
}

// gauges is what the metrics read of the models when they are asked.
func (s *Server) gauges() []metrics.ModelGauges {
	models := s.sched.Models()
	out := make([]metrics.ModelGauges, len(models))
	for i, m := range models {
		stats := m.Stats()
		out[i] = metrics.ModelGauges{
			Name: m.ID().Name, Version: m.ID().Version,
			Replicas: stats.Live, Failing: stats.Failing, QueueRows: stats.QueueRows, QueueBytes: stats.QueueBytes,
			OldestRow: stats.OldestWait, OldestBatch: stats.OldestBatch,
		}
	}
	return out
}

// learnedGauges is what the metrics read of the applications when they are asked.
func (s *Server) learnedGauges() (list []metrics.LearnedGauges) {
	r, _, err := s.kept()
	if err != nil {
		return nil
	}
	for _, a := range r.Apps() {
		users := r.Users(a.Name)
		list = append(list, metrics.LearnedGauges{Application: a.Name, Users: users.Kept, Forgotten: users.Forgotten})
	}
	return list
}

// policy gives the scheduler its share of a model's settings.
func policy(p config.Policy) scheduler.ModelConfig {
	return scheduler.ModelConfig{
		Strategy:    p.Strategy,
		Objective:   p.Objective,
		MaxBatch:    p.MaxBatch,
		Delay:       p.Delay,
		QueueRows:   p.QueueRows,
		QueueBytes:  int64(p.QueueBytes),
		BatchBytes:  int64(p.BatchBytes),
		ExecTimeout: p.ExecutionTimeout,
		Retry:       &p.Retry,
		Shed:        &p.Shed,
		Slots:       p.Slots,
		Batched:     &p.Batched,
		Pad:         p.Pad,
	}
}

func policies(models map[string]config.Model) map[string]scheduler.ModelConfig {
	out := make(map[string]scheduler.ModelConfig, len(models))
	for name, m := range models {
		out[name] = policy(m.Policy)
	}
	return out
}
