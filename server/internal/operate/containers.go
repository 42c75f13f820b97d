package operate

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/predict"
)

// Containers are the [[container]] tables of the file, which operators start and stop by name.
type Containers struct {
	Settings  *Settings
	Sessions  *Sessions
	Processes *Processes
	Gate      *gate.Gate
}

// List returns all [[container]] as the admin door shows them.
func (cs Containers) List() admin.Containers {
	list := admin.Containers{Containers: []admin.Container{}, Sessions: sessionDocuments(cs.Sessions.List())}
	processes := map[string][]admin.Process{}
	for _, p := range processDocuments(cs.Processes.List()) {
		processes[p.Name] = append(processes[p.Name], p)
	}
	for _, c := range append(slices.Clip(cs.Settings.File().Supervised), cs.Processes.Guests()...) {
		one := admin.Container{Name: c.Name, Model: cmp.Or(c.Model, c.Name), Address: c.Address,
			Processes: []admin.Process{}}
		var state predict.State
		if model, s, why, ok := cs.Processes.Of(c.Name); ok {
			one.Model, state, one.Reason = model, s, why
			one.Processes = append(one.Processes, processes[c.Name]...)
			if s, ok := cs.Processes.Scaled(c.Name); ok {
				one.Scaling = &admin.Scaling{Min: s.Min, Max: s.Max, Wanted: s.Wanted, Why: s.Why}
				if s.Why != "" {
					one.Scaling.Since = time.Since(s.Since).Seconds()
				}
			}
		} else {
			state, one.Reason = predict.Unavailable, "not connected"
		}
		if t, err := cs.Gate.Target(one.Model, ""); err == nil && t.Live > 0 && state != predict.Unavailable ||
			connected(list.Sessions, c.Address) {
			state, one.Reason = predict.Ready, ""
		}
		one.State = string(state)
		if i := slices.IndexFunc(list.Sessions, func(k admin.Session) bool {
			return k.Model == one.Model && k.State == "failing"
		}); i >= 0 && cs.failing(one.Model) {
			one.State, one.Reason = "FAILING", "every batch fails: "+list.Sessions[i].LastFailure
		}
		if fault := cs.Processes.Fault(c.Name); fault != "" {
			one.Reason = strings.TrimPrefix(one.Reason+"; its settings in the file are not in effect: "+fault, "; ")
		}
		list.Containers = append(list.Containers, one)
	}
	return list
}

// failing reports whether all live replicas of a model fail on every batch.
func (cs Containers) failing(model string) bool {
	t, err := cs.Gate.Target(model, "")
	if err != nil || t.Model == nil {
		return false
	}
	stats := t.Model.Stats()
	return stats.Live > 0 && stats.Failing == stats.Live
}

// connected reports whether there is an established session with the container dialed at an
// address, rather than one that is being dialed or was told to leave.
func connected(sessions []admin.Session, address string) bool {
	return address != "" && slices.ContainsFunc(sessions, func(s admin.Session) bool {
		return s.Remote == address && s.State == "serving"
	})
}

// Start runs the processes of a container and waits until all have registered.
func (cs Containers) Start(ctx context.Context, name string) error {
	return cs.Processes.Start(ctx, name)
}

// Stop stops the processes of a container and waits until they have ended.
func (cs Containers) Stop(_ context.Context, name string) error {
	return cs.Processes.Stop(name)
}

// Restart replaces the processes of a container one by one, each after its successor has
// registered.
func (cs Containers) Restart(ctx context.Context, name string) error {
	return cs.Processes.Restart(ctx, name)
}

// Repository holds the models that clients load and unload.
type Repository struct{ Service *predict.Service }

// Load starts the processes of a model and waits until it is ready.
func (r Repository) Load(ctx context.Context, who *access.Identity, by access.Source, model string) error {
	return r.Service.As(who).Load(ctx, predict.Caller{Source: by}, model, nil)
}

// Unload stops the processes of a model and waits until they have ended.
func (r Repository) Unload(who *access.Identity, by access.Source, model string) error {
	return r.Service.As(who).Unload(predict.Caller{Source: by}, model)
}

// sessionDocuments converts connections with containers to the admin door's type.
func sessionDocuments(list []containers.SessionInfo) []admin.Session {
	out := []admin.Session{}
	now := time.Now()
	for _, i := range list {
		out = append(out, admin.Session{
			Model:     i.Model.Name,
			Version:   i.Model.Version,
			Instance:  i.Label,
			Remote:    i.Remote,
			RPC:       i.RPC,
			State:     i.State,
			Connected: now.Sub(i.Since).Seconds(),
			Batches:   int64(i.Batches),
			Pending:   i.InFlight,
			Oldest:    i.Oldest.Seconds(),
			Slots:     i.Slots,
			AtOnce:    i.AtOnce,
			Silent:    now.Sub(i.LastSeen).Seconds(),
			Rows:      int64(i.Rows),
			Failures:  int64(i.Failures),

			LastFailure: i.LastFailure,
			Reason:      cmp.Or(i.Reason, i.Waiting),

			Arena:    i.Arena,
			Readable: i.Readable,
			Outputs:  i.Outputs,
			Replaced: i.Replaced,

			ReplacedFor: i.ReplacedFor.Seconds(),

			Feedback:        int64(i.Feedback),
			FeedbackDropped: int64(i.FeedbackDropped),
		})
	}
	return out
}

// processDocuments converts processes of containers to the admin door's type.
func processDocuments(list []containers.ProcessInfo) []admin.Process {
	out := []admin.Process{}
	now := time.Now()
	for _, p := range list {
		out = append(out, admin.Process{
			Name:     p.Name,
			Replica:  p.Replica,
			PID:      p.PID,
			State:    p.State,
			Since:    now.Sub(p.Since).Seconds(),
			Restarts: p.Restarts,
			LastExit: p.LastExit,
			Log:      p.LastLines,
		})
	}
	return out
}
