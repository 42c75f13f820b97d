package operate

import (
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/capacity"
	"github.com/shivad/shivad/server/internal/wake"
	"github.com/shivad/shivad/shiva/plural"
)

// scaleEvery is how often the processes of containers that scale are compared with the need. A
// first request waits at most that long until a process is started.
const scaleEvery = 100 * time.Millisecond

// resources are the resources of the machine that all processes together may use: see
// config.Container.
type resources struct {
	memory int64
	cores  int
}

var machine = sync.OnceValue(func() resources { return resources{capacity.Memory().Bytes, capacity.Processors()} })

// A scaleState tells how many processes a container should have.
type scaleState struct {
	Min, Max int
	Wanted   int
	Why      string    // reason of the last change; "": there was none
	Since    time.Time // time of the last change
}

// Scale starts and ends processes as their models need, until the server stops.
func (ps *Processes) Scale() {
	for now := range wake.Every(scaleEvery, ps.stopping) {
		ps.scale(now)
	}
}

// scale does one round. Where several containers serve a model, the first in the file is filled
// first; the processes that it has are deducted from the need of the next ones.
func (ps *Processes) scale(now time.Time) {
	all := ps.all()
	if !slices.ContainsFunc(all, (*process).resizable) {
		return
	}
	left := ps.shortages(all)
	for _, p := range all {
		if !p.resizable() {
			continue
		}
		b := p.bounds()
		r := reading{bounds: b, room: ps.room(p, all)}
		ids := ps.models(p)
		for _, id := range ids {
			n := left[id]
			if n.replicas >= r.needed {
				r.needed, r.why = n.replicas, n.why
			}
		}
		switch since := p.current().since; {
		case len(ids) == 0:
			r.needed, r.why = 1, "its model is known only after a process has registered"
		case r.needed == 0 && now.Sub(since) < ps.Idle:
			r.needed, r.why = 1, "its first process has registered within the last minute"
		}
		wanted := p.follow(now, r)
		for _, id := range ids {
			n := left[id]
			n.replicas -= wanted
			left[id] = n
		}
		p.await(ids, b.Min == 0)
	}
}

// resizable reports whether the number of processes may change now or later.
func (p *process) resizable() bool {
	b, at := p.bounds(), p.current()
	return at.loaded() && (b.Scales() || at.scaling.wanted != b.Min || at.awaitedModels != nil)
}

// A shortage is how many replicas of a model are needed in addition to those that do not scale.
type shortage struct {
	replicas int
	why      string
}

// shortages returns the replicas that each model needs, less those that this server does not start
// or end according to the load.
func (ps *Processes) shortages(all []*process) map[scheduler.ModelID]shortage {
	left := map[scheduler.ModelID]shortage{}
	for _, m := range ps.sessions.cfg.Scheduler.Models() {
		n := m.Need()
		others := m.Replicas()
		for _, p := range all {
			if p.bounds().Scales() && slices.Contains(p.current().versions, m.ID()) {
				others -= p.registers()
			}
		}
		others = max(0, others)
		why := fmt.Sprintf("%s needs %s (%.2f)", m.ID(), plural.Of(n.Replicas, "replica"), n.Load)
		if n.Replicas > 0 && n.Worth == 0 {
			why = fmt.Sprintf("%s receives requests, but no replica has answered enough of them to tell how many it needs", m.ID())
		}
		if others > 0 {
			why += fmt.Sprintf(", of which %d run outside the containers that scale", others)
		}
		left[m.ID()] = shortage{n.Replicas - others, why}
	}
	return left
}

// models returns the models that the processes have registered, or, if the system cannot tell which
// these are, the versions of the model that they should serve.
func (ps *Processes) models(p *process) []scheduler.ModelID {
	if ids := p.current().versions; len(ids) > 0 {
		return ids
	}
	var ids []scheduler.ModelID
	for _, version := range ps.gate.Versions(p.model()) {
		ids = append(ids, scheduler.ModelID{Name: p.model(), Version: version})
	}
	return ids
}

// room returns how many processes a container may have alongside the other containers' processes.
func (ps *Processes) room(p *process, all []*process) int {
	has := ps.machine
	for _, other := range all {
		if other != p {
			n := other.count()
			has.memory -= int64(n) * int64(other.table().Memory)
			has.cores -= n * other.table().CPUs
		}
	}
	room := int64(math.MaxInt32)
	if each := int64(p.table().Memory); each > 0 {
		room = min(room, has.memory/each)
	}
	if each := p.table().CPUs; each > 0 {
		room = min(room, int64(has.cores/each))
	}
	return int(max(0, room))
}

// follow decides how many processes there should be, starts or ends some, and returns the number.
func (p *process) follow(now time.Time, r reading) int {
	if !p.changing.TryLock() {
		return p.count() // being started or stopped
	}
	defer p.changing.Unlock()
	p.mu.Lock()
	supervisor, before := p.lifecycle.supervisor, p.lifecycle.scaling.wanted
	if supervisor == nil || p.ended || p.lifecycle.stopping {
		p.mu.Unlock()
		return 0
	}
	next := p.lifecycle.scaling
	p.mu.Unlock()
	wanted, why := next.decide(now, r)
	if wanted != before && (p.retired() || !supervisor.Resize(wanted, p.fleet.drain)) {
		return before // another time
	}
	p.mu.Lock()
	p.lifecycle.scaling = next
	if why != "" {
		p.lifecycle.why, p.lifecycle.scaled = why, now
	}
	p.mu.Unlock()
	if wanted != before {
		p.fleet.log.Info("container scaled", "container", p.table().Name, "from", before, "to", wanted, "why", why)
		p.fleet.sessions.cfg.Trail.Add(access.Entry{Source: access.Source{Door: "server"}, Action: "scale",
			What: "container", Name: p.table().Name,
			Before: access.AuditText(map[string]int{"processes": before}),
			After:  access.AuditText(map[string]any{"processes": wanted, "why": why})})
	}
	return wanted
}

// drain lets the containers of ending processes answer the batches that they have.
func (ps *Processes) drain(owned func(net.Conn) bool) <-chan struct{} {
	return ps.sessions.Listener().Drain(owned)
}

// await makes requests wait for a process, if their model's container may have none (waits), or
// stops that.
func (p *process) await(ids []scheduler.ModelID, waits bool) {
	why := ""
	if waits {
		why = fmt.Sprintf("container %q starts a process for the model: %s", p.table().Name, p.state().Reason)
	}
	p.mu.Lock()
	waits = waits && p.lifecycle.loaded() // it may have been stopped meanwhile
	before := p.lifecycle.awaitedModels
	p.lifecycle.awaitedModels = nil
	if waits {
		p.lifecycle.awaitedModels = ids
	}
	p.mu.Unlock()
	for _, id := range before {
		if !waits || !slices.Contains(ids, id) {
			p.fleet.announce(id, "")
		}
	}
	if waits {
		for _, id := range ids {
			p.fleet.announce(id, why)
		}
	}
}

func (ps *Processes) announce(id scheduler.ModelID, why string) {
	if m, ok := ps.sessions.cfg.Scheduler.Model(id); ok {
		m.Await(why)
	}
}

// Scaled returns how a [[container]] follows the load; ok is false if it does not follow the
// load, or is unloaded.
func (ps *Processes) Scaled(container string) (s scaleState, ok bool) {
	p, err := ps.lookup(container)
	if err != nil {
		return scaleState{}, false
	}
	b, at := p.bounds(), p.current()
	return scaleState{b.Min, b.Max, at.scaling.wanted, at.why, at.scaled}, b.Scales() && at.loaded()
}

// Containers returns the names of each [[container]] that serves a model.
func (ps *Processes) Containers(model string) (names []string) {
	for _, p := range ps.all() {
		if p.hasName(model) || slices.ContainsFunc(p.current().versions, func(id scheduler.ModelID) bool {
			return id.Name == model
		}) {
			names = append(names, p.table().Name)
		}
	}
	return names
}
