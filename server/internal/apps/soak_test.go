package apps

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A counted is a call that counts its answers.
type counted struct {
	gate.Call
	answers atomic.Int32
	done    chan struct{}
}

func (c *counted) Complete(*gate.Call) { c.answer() }

func (c *counted) answer() {
	if c.answers.Add(1) == 1 {
		close(c.done)
	}
}

// A crowd is a set of clients of the applications of a house, with the outcomes of their requests.
type crowd struct {
	*house
	answered, refused, learned atomic.Int32
}

// predict sends a request, or opens one and never submits it, and cancels some.
func (c *crowd) predict(r *rand.Rand, app string, in []tensor.Tensor, p *gate.Request) {
	q := &counted{done: make(chan struct{})}
	defer q.Close()
	p.Model, p.Inputs = app, in
	if err := c.Open(&q.Call, p); err != nil {
		c.refused.Add(1)
		time.Sleep(200 * time.Microsecond) // while missing models or applications come back
		return
	}
	if r.IntN(10) == 0 {
		return
	}
	q.Owner = q
	c.Submit(&q.Call)
	if r.IntN(4) == 0 {
		c.Cancel(&q.Call)
	}
	<-q.done
	if q.Err == nil {
		if c.answered.Add(1); q.Choice == nil || len(q.Outputs) != 1 || q.Outputs[0].Rows() != 1 {
			c.t.Errorf("answered with %d outputs, choice %+v", len(q.Outputs), q.Choice)
		}
	}
	if n := q.answers.Load(); n != 1 {
		c.t.Errorf("answered %d times", n)
	}
}

// feedback sends feedback, or opens one and never submits it, and cancels some.
func (c *crowd) feedback(r *rand.Rand, app string, in []tensor.Tensor, p *gate.Request) {
	p.Parameters = []byte(`{"losses":{"a/1":0.5,"b/1":0,"c/1":1}}`)
	p.Model, p.Inputs = app, in
	f, err := c.OpenFeedback(p, nil)
	if err != nil {
		c.refused.Add(1)
		time.Sleep(200 * time.Microsecond) // while missing models or applications come back
		return
	}
	defer f.Close()
	if r.IntN(10) == 0 {
		return
	}
	q := &counted{done: make(chan struct{})}
	var fault error
	f.Learn(func(_ gate.Learned, err error) {
		fault = err
		q.answer()
	})
	if r.IntN(4) == 0 {
		f.Cancel()
	}
	if <-q.done; fault == nil {
		c.learned.Add(1)
	}
	if n := q.answers.Load(); n != 1 {
		c.t.Errorf("answered %d times", n)
	}
}

// redefine deletes an application, makes it, or makes it with fewer models.
func (h *house) redefine(r *rand.Rand, d Definition) {
	var err error
	switch r.IntN(8) {
	case 0:
		if err = h.reg.Delete(h.t.Context(), d.Name); errors.Is(err, scheduler.ErrNotFound) {
			err = nil
		}
	case 1, 2, 3:
		d.Models = d.Models[:1+r.IntN(len(d.Models))]
		_, err = h.reg.Put(h.t.Context(), d)
	default:
		_, err = h.reg.Put(h.t.Context(), d)
	}
	if err != nil {
		h.t.Error(err)
	}
}

// TestApplicationsUnderChange: requests with deadlines, cancels and feedback to applications of all
// kinds, while models come and go, definitions change and vanish, and caches are switched on and
// off. Every call is answered once, and no memory leaks.
func TestApplicationsUnderChange(t *testing.T) {
	const clients = 8
	each := max(50, budgettest.Rounds(250))
	var caching atomic.Bool
	h := newHouse(t)
	base := h.options
	h.options = func(name string) gate.ModelOptions {
		o := base(name)
		if caching.Load() {
			o.CacheBytes = 64 << 10
		}
		return o
	}
	definitions := []Definition{
		{Name: "vote", Models: []string{"a", "b", "c"}, Policy: "ensemble", Default: json.RawMessage(`{"label":-1}`)},
		{Name: "exp3", Models: []string{"a", "b/*", "c"}, Policy: "exp3"},
		{Name: "exp4", Models: []string{"a/*", "b"}, Policy: "exp4", SLO: "5ms", Default: json.RawMessage(`{"label":-1}`)},
		{Name: "shadow", Models: []string{"a/1", "b/1", "c/1"}, Policy: "shadow", Params: map[string]any{"model": "a/1"}},
	}
	for _, d := range definitions {
		h.app(d)
	}

	stop := make(chan struct{})
	var changes, requests sync.WaitGroup
	churn := func(seed uint64, change func(r *rand.Rand)) {
		changes.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for {
				select {
				case <-stop:
					return
				default:
					change(r)
				}
			}
		})
	}
	for i, name := range []string{"a", "b", "c"} {
		live := []*scheduler.Replica{h.replica(name, "1", int64(i), time.Millisecond)}
		churn(uint64(i), func(r *rand.Rand) {
			if len(live) > 0 && r.IntN(3) == 0 {
				at := r.IntN(len(live))
				live[at].Remove(errors.New("gone"))
				live = slices.Delete(live, at, at+1)
			} else if len(live) < 3 {
				live = append(live,
					h.replica(name, fmt.Sprint(1+r.IntN(2)), int64(i), time.Duration(r.IntN(2000))*time.Microsecond))
			}
			time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
		})
	}
	churn(10, func(r *rand.Rand) {
		h.redefine(r, definitions[r.IntN(len(definitions))])
		time.Sleep(time.Duration(r.IntN(2)) * time.Millisecond)
	})
	churn(11, func(r *rand.Rand) {
		caching.Store(r.IntN(2) == 0)
		h.Changed()
		time.Sleep(time.Millisecond)
	})

	c := &crowd{house: h}
	for client := range clients {
		requests.Go(func() {
			r := rand.New(rand.NewPCG(uint64(client), 2))
			for i := range each {
				app := definitions[r.IntN(len(definitions))].Name
				p := gate.Request{Values: parameter.Values{Timeout: time.Duration(1+r.IntN(8000)) * time.Microsecond,
					User: fmt.Sprint(r.IntN(3))}, Arrived: time.Now(), Source: uint64(client)}
				if r.IntN(2) == 0 {
					p.ID = fmt.Appendf(nil, "%d", r.IntN(50)) // used again by other requests
				}
				in := []tensor.Tensor{h.pooled()}
				in[0].Data[0] = byte(i % 4)
				if r.IntN(4) == 0 {
					c.feedback(r, app, in, &p)
				} else {
					c.predict(r, app, in, &p)
				}
				in[0].Release()
			}
		})
	}
	requests.Wait()
	close(stop)
	changes.Wait()
	t.Logf("%d answered, %d refused when they were opened, %d learned, of %d", c.answered.Load(), c.refused.Load(),
		c.learned.Load(), clients*each)
	if c.answered.Load() == 0 || c.learned.Load() == 0 {
		t.Error("nothing was answered, or nothing learned")
	}
}
