package server

import (
	"slices"
	"time"

	"github.com/shivad/shivad/server/config"
)

// A holding is a configuration, and since when and until when it may have held: from the beginning
// of the reload that brought it to the end of the next one.
type holding struct {
	config   config.Config
	from, to time.Time // to: zero of one that may hold now
}

// hold notes a configuration that is about to hold. It returns what notes that those before it hold
// no longer, or that it was refused itself.
func (h *history) hold(c config.Config) (held func(bool)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := len(h.holdings)
	h.holdings = append(h.holdings, &holding{config: c.Clone(), from: time.Now()})
	return func(is bool) {
		h.mu.Lock()
		defer h.mu.Unlock()
		over := h.holdings[:before]
		if !is {
			over = h.holdings[before : before+1]
		}
		for _, one := range over {
			if one.to.IsZero() {
				one.to = time.Now()
			}
		}
	}
}

// holding are the configurations of which each may have held at some moment from one time to
// another.
func (h *history) holding(from, to time.Time) (list []config.Config) {
	for _, one := range h.holdings {
		if !one.from.After(to) && (one.to.IsZero() || !one.to.Before(from)) {
			list = append(list, one.config)
		}
	}
	return list
}

// declared are what an identity may have been declared as from one time to another; nil among them:
// as nothing.
func (h *history) declared(name string, from, to time.Time) (list []*config.Identity) {
	for _, c := range h.holding(from, to) {
		at := slices.IndexFunc(c.Identities, func(i config.Identity) bool { return i.Name == name })
		if at < 0 {
			list = append(list, nil)
			continue
		}
		list = append(list, &c.Identities[at])
	}
	return list
}

// A freeze is when the server stood still.
type freeze struct{ from, to time.Time }

func (h *history) freeze(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.freezes = append(h.freezes, freeze{time.Now(), time.Now().Add(d)})
}

// frozen is how long the server has stood still in all.
func (h *history) frozen() (all time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.freezes {
		all += f.to.Sub(f.from)
	}
	return all
}

// thawed is when what is due can happen.
func (h *history) thawed(due time.Time) time.Time {
	for _, f := range h.freezes {
		if !due.Before(f.from) && due.Before(f.to) {
			due = f.to
		}
	}
	return due
}
