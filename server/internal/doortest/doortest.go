// Package doortest is what tests of a door put behind it: scheduler, gate, regions and memory as
// the server connects them, with models whose workers the test controls. The door itself and its
// clients belong to the test.
package doortest

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// Patience is how long a test waits for an event that must happen: only a failing test waits that
// long.
const Patience = time.Minute

// A Rig is a server without doors.
type Rig struct {
	T       testing.TB
	Pool    *tensor.Pool
	Metrics *metrics.Metrics
	Gate    *gate.Gate
	Sched   *scheduler.Scheduler
	Regions *regions.Registry
	Log     *Log

	Deadline   time.Duration        // of requests without one; Patience unless a test sets another
	Unready    string               // why the server is not ready; "": it is
	Delivering func() (over func()) // a hook of the scheduler, set before any request; nil: none

	shutdown func(context.Context) error
	stopped  bool
}

// newestBytes is what the newest answers of streams may have.
const newestBytes = 1 << 20

// Idle reports whether no payload is in use. It makes the server forget the newest answers, which
// it keeps for a minute.
func (r *Rig) Idle() bool {
	r.Gate.Newest().Resize(0)
	defer r.Gate.Newest().Resize(newestBytes)
	return r.Pool.InUse() == 0
}

// New makes a server whose memory is a pool.
func New(t testing.TB, pool *tensor.Pool) *Rig {
	t.Helper()
	r := &Rig{T: t, Pool: pool, Metrics: metrics.New("test"), Regions: regions.New(regions.Settings{}, nil),
		Log: new(Log), Deadline: Patience}
	t.Cleanup(r.Regions.Close)
	r.Gate = gate.New(gate.Config{
		Latest:  newestBytes,
		Pool:    pool,
		Options: func(string) gate.ModelOptions { return gate.ModelOptions{Deadline: r.Deadline} },
		Metrics: r.Metrics,
	})
	hooks := r.Metrics.Hooks()
	hooks.ModelChanged = r.Gate.ModelChanged
	hooks.Delivering = func() (over func()) {
		if r.Delivering == nil {
			return nil
		}
		return r.Delivering()
	}
	var err error
	if r.Sched, err = scheduler.New(scheduler.Config{Pool: pool, Hooks: hooks}); err != nil {
		t.Fatal(err)
	}
	r.Gate.Attach(r.Sched, gate.Server{Ready: func() (bool, string) { return r.Unready == "", r.Unready }})
	return r
}

// For returns the same server for another test, such as an input of a fuzz target.
func (r *Rig) For(t testing.TB) *Rig {
	same := *r
	same.T = t
	return &same
}

// Entrance is the way into a door on a free port of this machine.
func (r *Rig) Entrance(door string) listen.Entrance {
	return listen.Entrance{Addrs: []string{"127.0.0.1:0"}, Metrics: r.Metrics.Door(door),
		Log: slog.New(slog.NewTextHandler(r.Log, nil))}
}

// Predict makes the service that doors share. Its clients may load and unload what repository has.
func (r *Rig) Predict(repository predict.Repository, changes ...func(*predict.Config)) *predict.Service {
	c := predict.Config{
		Regions: r.Regions, Gate: r.Gate, Repository: repository, Version: "test",
		Reach: func() string { return config.RepositoryAll }, Changed: func(by, what, name, detail string) {},
		Settings: func(name string) config.Model { return config.Default().Model(name) },
	}
	for _, change := range changes {
		change(&c)
	}
	return predict.New(c)
}

// Serves says how the door is shut down. The server stops at the end of the test, when all memory
// must be back.
func (r *Rig) Serves(shutdown func(context.Context) error) {
	r.shutdown = shutdown
	r.T.Cleanup(func() {
		r.stop()
		r.Returned()
	})
}

func (r *Rig) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := r.Stop(ctx); err != nil {
		r.T.Errorf("shutdown: %v", err)
	}
}

// Stop drains and ends the server, and returns the error of its door. A second call does nothing.
func (r *Rig) Stop(ctx context.Context) error {
	if r.stopped {
		return nil
	}
	r.stopped = true
	r.Gate.Drain()
	_ = r.Sched.Drain(ctx) // fails if ctx ends, as shutdown then does
	r.Sched.Close()
	return r.shutdown(ctx)
}

// Applications gives the server a registry in memory with some applications, and waits until the
// models of each are there.
func (r *Rig) Applications(list ...apps.Definition) {
	r.T.Helper()
	store, err := state.NewMemory(state.Options{})
	if err != nil {
		r.T.Fatal(err)
	}
	reg := apps.Open(apps.Config{Store: store, Changed: r.Gate.Changed})
	r.Gate.AttachComposites(reg)
	r.T.Cleanup(func() { // before the goroutines are counted
		r.stop()
		r.Gate.Close()
		reg.Close()
		store.Close()
	})
	for _, d := range list {
		if _, err := reg.Create(r.T.Context(), d); err != nil {
			r.T.Fatal(err)
		}
		budgettest.Until(r.T, "the application", func() bool {
			target, err := r.Gate.Target(d.Name, "")
			return err == nil && target.Live > 0
		})
	}
}

// Returned checks that all memory is back in the pool.
func (r *Rig) Returned() {
	r.T.Helper()
	if n := r.Pool.InUse(); n != 0 {
		r.T.Errorf("%d bytes of the pool are still out\n%s", n, strings.Join(tensor.Outstanding(r.Pool), "\n"))
	}
}

// Model adds a replica of version 1 of a model.
func (r *Rig) Model(name string, spec scheduler.Spec, w scheduler.Worker) *scheduler.Replica {
	r.T.Helper()
	replica, err := r.Sched.AddReplica(scheduler.ModelID{Name: name, Version: "1"}, spec, w, scheduler.ReplicaOptions{})
	if err != nil {
		r.T.Fatal(err)
	}
	return replica
}

// Held adds a model whose batches wait for the test.
func (r *Rig) Held(name string, spec scheduler.Spec) *schedtest.Worker {
	r.T.Helper()
	w := new(schedtest.Worker)
	r.Model(name, spec, w)
	return w
}

// Echo is a worker that answers with the inputs, in memory of the pool, before Send returns. It
// fails batches for which there is no memory.
func (r *Rig) Echo(b *scheduler.Batch) error {
	outputs := make([]tensor.Tensor, len(b.Parts[0].Inputs))
	for i := range outputs {
		parts := make([]tensor.Tensor, len(b.Parts))
		for j := range b.Parts {
			parts[j] = b.Parts[j].Inputs[i]
		}
		out, err := tensor.Concat(parts, r.Pool)
		if err != nil {
			for _, o := range outputs {
				o.Release()
			}
			b.Fail(err)
			return nil
		}
		outputs[i] = out
	}
	b.Complete(outputs, nil)
	return nil
}

// Slowly is Echo in a container that takes long enough for frames to be superseded.
func (r *Rig) Slowly(b *scheduler.Batch) error {
	time.AfterFunc(200*time.Microsecond, func() { _ = r.Echo(b) })
	return nil
}

// Silent waits until every frame of a model has an answer, and all memory is back.
func (r *Rig) Silent(name string) {
	r.T.Helper()
	model, _ := r.Sched.Model(scheduler.ModelID{Name: name, Version: "1"})
	budgettest.Until(r.T, "the streams to fall silent, and their memory to come back", func() bool {
		for _, s := range model.Streams(1000) {
			if s.Waiting > 0 {
				return false
			}
		}
		return model.Stats().Requests == 0 && r.Idle()
	})
}

// A Log collects what is written to it, by any goroutine.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write adds p.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns all of it.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A Repository has models that are unloaded at first, and ready once they are loaded.
type Repository struct {
	Names   []string
	Loading func(ctx context.Context, model string) error // what Load does before; nil: nothing

	mu     sync.Mutex
	loaded []string
}

// Models returns the names.
func (r *Repository) Models() []string { return r.Names }

// Look finds nothing new.
func (r *Repository) Look(context.Context) error { return nil }

// State says whether a model is loaded.
func (r *Repository) State(model, _ string) predict.Condition {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Contains(r.loaded, model) {
		return predict.Condition{State: predict.Ready}
	}
	return predict.Condition{State: predict.Unavailable, Reason: "unloaded"}
}

// Load loads a model.
func (r *Repository) Load(ctx context.Context, model string) error {
	if r.Loading != nil {
		if err := r.Loading(ctx, model); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loaded = append(r.loaded, model)
	return nil
}

// Unload unloads a model.
func (r *Repository) Unload(model string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loaded = slices.DeleteFunc(r.loaded, func(name string) bool { return name == model })
	return nil
}
