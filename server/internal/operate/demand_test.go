package operate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/tensor"
)

// A shared store is closed once for all servers.
type sharedStore struct{ state.Store }

func (sharedStore) Close() error { return nil }

// An asking is a server whose model m/1 takes 20 ms for a row, and gets 55 requests a second.
type asking struct {
	demand *Demand
	sched  *scheduler.Scheduler
	cancel context.CancelFunc
}

func newAsking(t *testing.T, store state.Store, name string) *asking {
	t.Helper()
	g := gate.New(gate.Config{Metrics: metrics.New("test"),
		Options: func(string) gate.ModelOptions { return gate.ModelOptions{} }})
	sched, err := scheduler.New(scheduler.Config{Hooks: scheduler.Hooks{ModelChanged: g.ModelChanged}})
	if err != nil {
		t.Fatal(err)
	}
	g.Attach(sched, gate.Server{})
	at := NewStore(config.State{At: "redis://elsewhere"}, func(string, state.Options) (state.Store, error) {
		return sharedStore{store}, nil
	}, slog.New(slog.DiscardHandler))
	if err := at.Open(g, nil, func() {}); err != nil {
		t.Fatal(err)
	}
	s := &asking{demand: NewDemand(at, sched, g, slog.New(slog.DiscardHandler)), sched: sched}
	stopping := make(chan struct{})
	s.cancel = func() {
		if stopping != nil {
			close(stopping)
			stopping = nil
		}
	}
	t.Cleanup(func() {
		s.cancel()
		time.Sleep(time.Second) // until the requester has noticed
		sched.Close()
		at.Close()
	})
	go s.demand.Run(name, stopping)
	return s
}

// newPair returns two servers, and the store that they share.
func newPair(t *testing.T) (store state.Store, a, b *asking) {
	t.Helper()
	store, err := state.NewMemory(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() }) // after the servers
	return store, newAsking(t, store, "a"), newAsking(t, store, "b")
}

// add adds the replica, and sends it requests until stop or the test's end.
func (s *asking) add(t *testing.T) (stop func()) {
	x := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{1}}}
	spec := scheduler.Spec{Inputs: x, Outputs: x, MaxBatch: 1}
	r, err := s.sched.AddReplica(scheduler.ModelID{Name: "m", Version: "1"}, spec,
		scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			time.AfterFunc(20*time.Millisecond, func() { b.Complete(b.Parts[0].Inputs, nil) })
			return nil
		}), scheduler.ReplicaOptions{Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil {
			in := []tensor.Tensor{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{1, 1}, Data: make([]byte, 1)}}
			go s.sched.Infer(ctx,
				&scheduler.Request{Model: r.Model(), Inputs: in, Rows: 1,
					Deadline: time.Now().Add(200 * time.Millisecond)})
			time.Sleep(time.Second / 55)
		}
	}()
	return stop
}

// TestDemand: servers that share a store report how many replicas they need together, without the
// load of a server that has stopped; a dead server counts for a minute; a model that no server
// knows needs one.
func TestDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, a, b := newPair(t)
		needs := func(s *asking, version string, want int) {
			t.Helper()
			if n, err := s.demand.Needed("m", version); n != want || err != nil {
				t.Errorf("%d replicas are needed, %v; expected %d", n, err, want)
			}
		}
		needs(a, "", 1)
		stopA := a.add(t)
		time.Sleep(20 * time.Second)
		needs(a, "", 2) // 1.4
		needs(b, "1", 2)
		stopB := b.add(t)
		time.Sleep(20 * time.Second)
		for _, s := range []*asking{a, b} {
			needs(s, "", 3) // 2.8
			needs(s, "1", 3)
			needs(s, "2", 1)
		}
		keys := func() (list []string) {
			entries, err := store.List(demandPrefix)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				list = append(list, strings.TrimPrefix(e.Key, demandPrefix))
			}
			return list
		}
		stopB()
		b.cancel()
		time.Sleep(time.Second)
		needs(a, "", 2)
		if list := keys(); !slices.Equal(list, []string{"a"}) {
			t.Errorf("stored: %v", list)
		}
		if _, err := store.Update(t.Context(), state.Key("demand", "died"), "", func([]byte) ([]byte, error) {
			return []byte(`{"m/1":5}`), nil
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(demandLife - time.Second)
		needs(a, "", 7)
		time.Sleep(time.Second + demandEvery) // the latest time at which it was seen
		needs(a, "", 2)
		stopA()
		time.Sleep(demandDead)
		if list := keys(); len(list) > 0 {
			t.Errorf("stored: %v", list)
		}
	})
}

// TestDemandOfCallers: clients that ask again on each answer, of two servers, need together what
// answers all of them within the objective, and not what their rate would. The scaler asks for
// Needed; the metric and the status, from which the controller sums, have each server's load.
func TestDemandOfCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := newPair(t)
		for _, c := range []struct{ clients, want int }{{30, 1}, {60, 2}, {30, 1}} { // 60 and 120, of 80 in 100 ms
			clients, want := c.clients, c.want
			stopA, stopB := a.loop(t, clients), b.loop(t, clients)
			time.Sleep(20 * time.Second)
			load := 0.0
			for _, s := range []*asking{a, b} {
				if n, err := s.demand.Needed("m", ""); n != want || err != nil {
					t.Errorf("%d clients at each: %d replicas are needed, %v; expected %d", clients, n, err, want)
				}
				load += s.sched.Models()[0].Stats().Need.Load
			}
			if n := int(math.Ceil(load)); n != want {
				t.Errorf("%d clients at each: a load of %.2f, expected %d", clients, load, want)
			}
			stopA()
			stopB()
			time.Sleep(2 * time.Minute)
		}
	})
}

// loop adds a replica of m/1 that takes 20 ms and 1 ms a row, and clients that ask again on each of
// its answers, until stop or the test's end.
func (s *asking) loop(t *testing.T, clients int) (stop func()) {
	x := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 1}}}
	r, err := s.sched.AddReplica(scheduler.ModelID{Name: "m", Version: "1"}, scheduler.Spec{Inputs: x, Outputs: x},
		scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			time.AfterFunc(20*time.Millisecond+time.Duration(b.Rows)*time.Millisecond, func() {
				outs, err := tensor.FromSlice(tensor.Shape{b.Rows, 1}, make([]uint8, b.Rows))
				outs.Name = "x"
				if err == nil {
					err = b.Complete([]tensor.Tensor{outs}, nil)
				}
				if err != nil {
					t.Error(err)
				}
			})
			return nil
		}), scheduler.ReplicaOptions{Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	for i := range clients {
		go func() {
			in := []tensor.Tensor{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{1, 1}, Data: make([]byte, 1)}}
			for ctx.Err() == nil {
				_ = s.sched.Infer(ctx,
					&scheduler.Request{Model: r.Model(), Inputs: in, Rows: 1, Source: uint64(1 + i),
						Deadline: time.Now().Add(time.Second)})
				time.Sleep(300 * time.Microsecond)
			}
		}()
	}
	return func() {
		cancel()
		time.Sleep(time.Second) // until they have noticed
		r.Remove(errors.New("the end"))
	}
}

// BenchmarkNeeded measures the cost of computing what a thousand servers need together.
func BenchmarkNeeded(b *testing.B) {
	store, err := state.NewMemory(state.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for i := range 1000 {
		_, err := store.Update(b.Context(), state.Key("demand", fmt.Sprint("server-", i)), "",
			func([]byte) ([]byte, error) { return []byte(`{"m/1":4.2}`), nil })
		if err != nil {
			b.Fatal(err)
		}
	}
	g := gate.New(gate.Config{Metrics: metrics.New("test"),
		Options: func(string) gate.ModelOptions { return gate.ModelOptions{} }})
	sched, err := scheduler.New(scheduler.Config{Hooks: scheduler.Hooks{ModelChanged: g.ModelChanged}})
	if err != nil {
		b.Fatal(err)
	}
	defer sched.Close()
	g.Attach(sched, gate.Server{})
	at := NewStore(config.State{At: "redis://elsewhere"}, func(string, state.Options) (state.Store, error) {
		return store, nil
	}, slog.New(slog.DiscardHandler))
	if err := at.Open(g, nil, func() {}); err != nil {
		b.Fatal(err)
	}
	defer at.Close()
	d := NewDemand(at, sched, g, slog.New(slog.DiscardHandler))
	d.own = state.Key("demand", "server-0")
	b.ReportAllocs()
	for b.Loop() {
		if n, err := d.Needed("m", ""); n != 4196 || err != nil {
			b.Fatal(n, err)
		}
	}
}
