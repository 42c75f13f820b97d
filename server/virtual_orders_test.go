package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
)

// An order is an HTTP request other than inference: it shows or changes data of operators, or of
// the client itself.
type order struct {
	by                 *client
	method, path, body string
	rights             []string // one of which suffices
	name               string   // of its object, if the rights have patterns
	also               []int    // statuses other than success that are acceptable

	quiet bool // may succeed without changing anything

	// The thing that it switches on or off: see toggle. "": none.
	switches string
	on       bool

	begun, ended time.Time // ended is zero if no answer has arrived
	status       int
	text         string
}

func (o *order) done() bool    { return o.status/100 == 2 }
func (o *order) refused() bool { return o.status == 401 || o.status == 403 }

// changes reports whether the order should change something.
func (o *order) changes() bool { return o.method != "" && o.method != http.MethodGet }

// note records that the scene itself switched something on or off.
func (h *history) note(what string, on bool, begun, ended time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.orders = append(h.orders, &order{switches: what, on: on, begun: begun, ended: ended, status: 200})
}

// order sends an order, and waits for its result.
func (c *client) order(web *http.Client, o *order) {
	h := c.scene.history
	h.mu.Lock()
	o.by, o.begun = c, time.Now()
	h.orders = append(h.orders, o)
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, o.method, "http://10.0.0.1"+o.path, strings.NewReader(o.body))
	if err != nil {
		panic(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	a, err := web.Do(r)
	if err != nil {
		return
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	o.ended, o.status, o.text = time.Now(), a.StatusCode, string(text)
}

// newManager makes a client that sends orders, to the admin door or the REST door.
func (s *scene) newManager(door string) *client {
	name := "manager " + door
	r := draw(s.plan.seed, name)
	c := &client{scene: s, name: name, door: door, rand: r, faults: r}
	c.from = map[string]string{"admin": "10.4.0.1:6000", "rest": "10.4.0.2:6000"}[door]
	c.encrypted = s.troubles.tls && (door == "rest" || s.plan.adminTLS)
	if s.troubles.identities {
		c.identity = []string{"operator", "operator", "operator", "viewer", "all", "nobody", ""}[r.IntN(7)]
		if c.identity != "" {
			c.token = tokenOf(c.identity)
		}
	}
	return c
}

// manage sends orders one after the other.
func (c *client) manage(orders int) {
	web := c.web()
	var has *bool // whether the application exists; nil: unknown
	for range orders {
		time.Sleep(5 * c.wait())
		o := c.dealOrder()
		c.order(web, o)
		if !strings.HasPrefix(o.path, extra) {
			continue
		}
		there := o.done() && o.method != http.MethodDelete
		switch {
		case o.method == http.MethodGet && has != nil && (o.done() || o.status == http.StatusNotFound) && there != *has:
			c.scene.history.fault("%s is told %d of the application, and what it did last leaves it: %t", c.name,
				o.status, *has)
		case o.done(), o.status == http.StatusNotFound:
			has = &there
		case o.refused(): // nothing changed
		default:
			has = nil
		}
	}
	web.CloseIdleConnections()
	c.close()
}

// extra is the path, at the admin door, of an application without requests.
const extra = "/v1/apps/extra"

// dealOrder draws an order.
func (c *client) dealOrder() *order {
	r, s := c.rand, c.scene
	if c.door == "rest" {
		return s.loading([]string{"load", "unload"}[r.IntN(2)])
	}
	see, change := []string{"admin:read", "admin:write"}, []string{"admin:write"}
	switch n := r.IntN(12); {
	case n < 2:
		path := []string{"/v1/status", "/v1/models", "/v1/audit", "/v1/containers", "/v1/config", "/v1/apps",
			"/v1/logs", "/v1/models/a/explain"}[r.IntN(8)]
		return &order{method: "GET", path: path, rights: see, also: []int{404}}
	case n < 4:
		return &order{method: "GET", path: extra, rights: see, also: []int{404}}
	case n < 6:
		return &order{method: "DELETE", path: extra, rights: change, also: []int{404}}
	case n < 8:
		return &order{method: "PATCH", path: "/v1/models/b", body: fmt.Sprintf(`{"objective":"%dms"}`, 10+r.IntN(100)),
			rights: change, also: []int{404}}
	case n < 9 && !s.troubles.tls: // certificates may be half written
		return &order{method: "POST", path: "/v1/config/reload", rights: change}
	case n < 11 && s.troubles.loads:
		return s.operating([]string{"start", "stop", "restart"}[r.IntN(3)])
	}
	return &order{method: "PUT", path: extra, body: `{"models":["b"]}`, rights: change}
}

// loading and operating return the orders that start or stop the processes of the model "s".
func (s *scene) loading(do string) *order {
	return &order{method: "POST", path: "/v2/repository/models/s/" + do, body: "{}", rights: []string{"load"},
		name: "s", switches: "s", on: do == "load"}
}

func (s *scene) operating(do string) *order {
	return &order{method: "POST", path: "/v1/containers/s/" + do, rights: []string{"admin:write"}, switches: "s",
		on: do != "stop"}
}

// A toggle has the orders that switch one thing on and off.
type toggle []*order

func (h *history) toggle(of string) (t toggle) {
	for _, o := range h.orders {
		if o.switches == of {
			t = append(t, o)
		}
	}
	return t
}

// off reports whether it was certainly off from one time to another: it had been switched off, and
// no order can have switched it on since.
func (t toggle) off(from, to time.Time) bool {
	return slices.ContainsFunc(t, func(off *order) bool {
		return !off.on && off.done() && off.ended.Before(from) && !slices.ContainsFunc(t, func(on *order) bool {
			return on.on && !on.refused() && !on.begun.After(to) && (on.ended.IsZero() || !on.ended.Before(off.begun))
		})
	})
}

// mayBeOff reports whether it may have been off at some moment from one time to another.
func (t toggle) mayBeOff(from, to time.Time) bool {
	// on reports whether it was certainly switched on after some time.
	on := func(after time.Time) bool {
		return slices.ContainsFunc(t, func(on *order) bool {
			return on.on && on.done() && on.begun.After(after) && !on.ended.IsZero() && on.ended.Before(from)
		})
	}
	return !on(time.Time{}) || slices.ContainsFunc(t, func(off *order) bool {
		return !off.on && !off.refused() && !off.begun.After(to) && (off.ended.IsZero() || !on(off.ended))
	})
}

// missing reports whether processes of a request's model may have been stopped or replaced.
func (s *scene) missing(q *question, until time.Time) bool {
	if q.model != "s" {
		return false
	}
	t := s.history.toggle("s")
	return t.mayBeOff(q.begun, until) || slices.ContainsFunc(t, func(o *order) bool {
		return strings.HasSuffix(o.path, "/restart") && !o.refused() && !o.begun.After(until) &&
			(o.ended.IsZero() || !o.ended.Before(q.begun))
	})
}

// judgeOrders judges all orders.
func (s *scene) judgeOrders() {
	h := s.history
	givers := make(map[*client][]*order)
	for _, o := range h.orders {
		if o.by == nil {
			continue
		}
		givers[o.by] = append(givers[o.by], o)
		if why := s.odd(o); why != "" {
			h.fault("%s of %s (%q, right %q), at %v, was answered %d %s: %s", o.method+" "+o.path, o.by.name,
				o.by.identity, o.rights, o.begun.Sub(h.began), o.status, o.text, why)
		}
	}
	if trail := s.server.trail.List(1000); len(trail) < 1000 { // or some were dropped
		for c, list := range givers {
			s.judgeTrail(c, list, trail)
		}
	}
	s.judgeLoads()
}

// odd returns what is wrong with the answer to an order; "": nothing.
func (s *scene) odd(o *order) string {
	declared := s.history.declared(o.by.identity, o.begun, o.ended)
	may, lacks := s.entitled(o.by.identity, o.begun, o.ended, o.name, o.rights...)
	switch {
	case o.done():
		if !may {
			return "it lacks the right"
		}
	case slices.Contains(o.also, o.status):
	case o.status == 0:
		if !s.troubles.stop {
			return "there was no answer"
		}
	case o.status == http.StatusUnauthorized:
		if !s.troubles.identities || !slices.Contains(declared, (*config.Identity)(nil)) {
			return "its token is known"
		}
	case o.status == http.StatusForbidden:
		if !lacks {
			return "it has the right"
		}
	case o.status == http.StatusTooManyRequests:
		if !s.troubles.addresses && !s.troubles.quotas || o.by.door != "rest" {
			return "nothing is scarce"
		}
	case o.status == http.StatusServiceUnavailable:
		if !s.troubles.store && !s.troubles.stop &&
			!(o.switches == "s" && (s.troubles.containers || s.history.toggle("s").mayBeOff(o.begun, o.ended))) {
			return "all is there"
		}
	default:
		return "there is no such answer"
	}
	return ""
}

// judgeTrail judges the audit trail of a client that sent orders: it has each change and each
// refusal once, and nothing else.
func (s *scene) judgeTrail(c *client, list []*order, trail []access.Entry) {
	done, refused, unsure := 0, 0, 0
	for _, o := range list {
		switch {
		case !o.changes():
		case o.done() && !o.quiet:
			done++
		case o.refused():
			refused++
		default:
			unsure++
		}
	}
	noted, turned := 0, 0
	for _, e := range trail {
		if e.Address != c.from {
			continue
		}
		if e.Refused {
			turned++
		} else {
			noted++
		}
		if e.Identity != c.identity && !e.Refused {
			s.history.fault("the audit has %s of %s by %q, and not by %q", e.Action, e.Name, e.Identity, c.identity)
		}
	}
	if noted < done || noted > done+unsure || turned < refused || turned > refused+unsure {
		s.history.fault("the audit has %d changes and %d refusals of %s, who made %d and got %d, beside %d that may have failed",
			noted, turned, c.name, done, refused, unsure)
	}
}

// judgeLoads judges the processes of the model "s": none serves once it is unloaded, and one serves
// once it is loaded.
func (s *scene) judgeLoads() {
	h := s.history
	switched := h.toggle("s")
	for _, q := range h.questions {
		for _, r := range q.runs {
			if q.model == "s" && !r.late && switched.off(r.at, r.at) {
				h.fault("%s was sent rows of question %d, after the model was unloaded", r.container, q.number)
			}
		}
	}
	for _, o := range switched {
		if o.by == nil || !o.on || !o.done() || s.troubles.containers {
			continue
		}
		// If it is unloaded at once, a process may end before it learns that it has registered.
		if slices.ContainsFunc(switched, func(off *order) bool {
			return !off.on && !off.refused() && !off.begun.After(o.ended) &&
				(off.ended.IsZero() || !off.ended.Before(o.begun))
		}) {
			continue
		}
		if !slices.ContainsFunc(h.served, func(v *serving) bool {
			return !v.from.After(o.ended) && (v.to.IsZero() || !v.to.Before(o.begun))
		}) {
			h.fault("%s of %s, at %v, succeeded, and no process has registered", o.path, o.by.name,
				o.begun.Sub(h.began))
		}
	}
}
