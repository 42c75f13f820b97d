package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/wake"
	"github.com/shivad/shivad/server/state"
)

// Servers that share a store in Redis use it to tell each other their load of each model, so that
// any of them can report what they all need together. A server has one key, which it writes while
// it has any load, and deletes when it has none. The last value of a dead server counts for
// demandLife.
//
// The values of other servers are read on demand, and otherwise now and then. With a thousand
// servers some key changes every few milliseconds: reading all of them at each change took a tenth
// of a core in each server, and nothing used the result.
const (
	demandPrefix = "demand/"
	demandEvery  = 5 * time.Second  // between two writes
	demandAgain  = 20 * time.Second // between two writes if nothing has changed
	demandLife   = 60 * time.Second
	demandDead   = 10 * demandLife // after which the key of a dead server is deleted
	demandWait   = time.Second     // for the store, so that a slow one does not delay a write
)

// loads are the loads of models, by "name/version", as [scheduler.Need.Load] has them.
type loads map[string]float64

// Demand computes how many replicas models need.
type Demand struct {
	store *Store
	sched *scheduler.Scheduler
	gate  *gate.Gate
	log   *slog.Logger

	mu    sync.Mutex
	own   string          // the key of this server; "": nothing is shared
	peers map[string]peer // by key

	// Owned by the goroutine of Run.
	written       loads
	at            time.Time // when written was stored
	unknownLogged time.Time // when an unknown model was last logged; guarded by mu
}

// A peer is the value that another server has written, and when it was first seen here: clocks may
// differ.
type peer struct {
	revision uint64
	seen     time.Time
	value    []byte
	loads    loads
}

// NewDemand returns the Demand of the models of a scheduler. It covers only this server until Run.
func NewDemand(store *Store, sched *scheduler.Scheduler, g *gate.Gate, log *slog.Logger) *Demand {
	return &Demand{store: store, sched: sched, gate: g, log: log, peers: map[string]peer{}}
}

// Needed returns how many replicas a model needs, or all of its versions if version is "", for the
// requests that arrive at all servers. A model that no server knows needs one: only a registered
// container shows what it is, and without one no request would ever count.
func (d *Demand) Needed(model, version string) (int, error) {
	if t, err := d.gate.Target(model, ""); err == nil && t.Composite != nil {
		return 0, fmt.Errorf("%w: %q is an application or a pipeline: expected one of its models",
			scheduler.ErrInvalidInput, model)
	}
	sum, known := 0.0, false
	add := func(id string, load float64) {
		name, v, _ := strings.Cut(id, "/")
		if name == model && (version == "" || v == version) {
			sum += load
			known = true
		}
	}
	for id, load := range d.localLoads() {
		add(id, load)
	}
	d.read()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.peers {
		if time.Since(p.seen) < demandLife {
			for id, load := range p.loads {
				add(id, load)
			}
		}
	}
	if !known {
		if now := time.Now(); now.Sub(d.unknownLogged) >= time.Minute {
			d.unknownLogged = now
			d.log.Warn("a scaler asks for a model that no container has registered: one replica is needed to know it",
				"model", model, "version", version)
		}
		return 1, nil
	}
	return int(math.Ceil(sum - 1e-9)), nil
}

// localLoads returns the loads of this server.
func (d *Demand) localLoads() loads {
	all := loads{}
	for _, m := range d.sched.Models() {
		all[m.ID().String()] = m.Need().Load
	}
	return all
}

// Run shares the loads of this server, under the name server, with the other servers of a store,
// and watches for dead ones, until stopping is closed.
func (d *Demand) Run(server string, stopping <-chan struct{}) {
	if !d.store.at.Shared() {
		return
	}
	d.mu.Lock()
	d.own = state.Key("demand", server)
	d.mu.Unlock()
	for range wake.Every(demandEvery, stopping) {
		d.write(d.localLoads())
		d.read()
		d.clear()
	}
	d.write(loads{})
}

// read reads the values that other servers have written.
func (d *Demand) read() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.own == "" {
		return
	}
	list, err := d.store.State().List(demandPrefix)
	if err != nil {
		return // the last values read count
	}
	before := d.peers
	d.peers = make(map[string]peer, len(list))
	for _, e := range list {
		if e.Key == d.own {
			continue
		}
		p := before[e.Key]
		if p.revision != e.Revision {
			p = peer{revision: e.Revision, seen: time.Now(), value: e.Value}
			if json.Unmarshal(e.Value, &p.loads) != nil {
				p.loads = nil
			}
		}
		d.peers[e.Key] = p
	}
}

// write stores the loads of this server if they have changed, or if the stored value gets old.
func (d *Demand) write(now loads) {
	maps.DeleteFunc(now, func(_ string, load float64) bool { return load == 0 })
	same := maps.EqualFunc(now, d.written, func(a, b float64) bool { return math.Abs(a-b) <= 0.01*b })
	if same && (len(now) == 0 || time.Since(d.at) < demandAgain) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), demandWait)
	defer cancel()
	_, err := d.store.State().Update(ctx, d.own, "", func([]byte) ([]byte, error) {
		if len(now) == 0 {
			return nil, nil
		}
		return json.Marshal(now)
	})
	if err == nil {
		d.written, d.at = now, time.Now()
	}
}

// clear deletes the keys of servers that have not renewed them for a long time.
func (d *Demand) clear() {
	d.mu.Lock()
	dead := map[string][]byte{}
	for key, p := range d.peers {
		if time.Since(p.seen) >= demandDead {
			dead[key] = p.value
		}
	}
	d.mu.Unlock()
	for key, value := range dead {
		ctx, cancel := context.WithTimeout(context.Background(), demandWait)
		_, _ = d.store.State().Update(ctx, key, "", func(now []byte) ([]byte, error) {
			if bytes.Equal(now, value) {
				return nil, nil
			}
			return now, nil // the server lives again
		})
		cancel()
	}
}
