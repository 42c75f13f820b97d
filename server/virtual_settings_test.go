package server

import (
	"slices"
	"time"

	"github.com/shivad/shivad/server/config"
)

// A holding is a configuration, and the time in which it may have been in effect: from the
// beginning of its reload to the end of the next one.
type holding struct {
	config   config.Config
	from, to time.Time // a zero to: may be in effect now
}

// hold records a configuration that is about to take effect. It returns the function that records
// that earlier ones are no longer in effect, or that this one was refused.
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

// holding returns the configurations that may have been in effect at some moment from one time to
// another.
func (h *history) holding(from, to time.Time) (list []config.Config) {
	for _, one := range h.holdings {
		if !one.from.After(to) && (one.to.IsZero() || !one.to.Before(from)) {
			list = append(list, one.config)
		}
	}
	return list
}

// declared returns the declarations that an identity may have had from one time to another; nil
// among them: none.
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

// A freeze is a time in which the server was stopped.
type freeze struct{ from, to time.Time }

func (h *history) freeze(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.freezes = append(h.freezes, freeze{time.Now(), time.Now().Add(d)})
}

// frozen returns how long the server was stopped in all.
func (h *history) frozen() (all time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.freezes {
		all += f.to.Sub(f.from)
	}
	return all
}

// thawed returns when an event that is due can happen.
func (h *history) thawed(due time.Time) time.Time {
	for _, f := range h.freezes {
		if !due.Before(f.from) && due.Before(f.to) {
			due = f.to
		}
	}
	return due
}
