package pipelines

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

var (
	pipelinesInAll = flag.Int("pipelines", 0, "how many random pipelines TestRandomPipelines asks; 0: few")
	seedOfPipeline = flag.Uint64("pipelines.seed", 0, "the first seed; the failure of a later one names it")
)

// pipelinesAtOnce are the definitions in one server of TestRandomPipelines.
const pipelinesAtOnce = 4

// TestRandomPipelines: random pipelines of up to 6 stages, with 0 to 64 objects, are asked while
// containers fail and are killed, clients cancel, frames are superseded and definitions change.
// Every request has one answer, by its deadline; every object has the right parent and the value
// that its model makes of it, or a hole with a reason; and no memory is left.
func TestRandomPipelines(t *testing.T) {
	n := *pipelinesInAll
	if n == 0 {
		n = max(100, budgettest.Rounds(2000))
	}
	total, asked := outcomes{}, 0
	for seed := *seedOfPipeline; asked < n; seed++ {
		onRig(t, func(r *rig) {
			s := &soak{rig: r, random: rand.New(rand.NewPCG(seed, 1)), outcomes: total,
				asked: map[int]bool{}, made: map[string]int{}}
			s.run()
			asked += max(1, len(s.asked)) // so that it ends
			if r.t.Failed() {
				r.t.Logf("again: -pipelines.seed=%d -pipelines=1", seed)
			}
		})
	}
	t.Logf("%d pipelines: %v", asked, total)
	for _, what := range []string{"OK", "Superseded", "Canceled", "DeadlineExceeded", "ContainerFailed"} {
		if total[what] == 0 {
			t.Errorf("no request ended with %s", what)
		}
	}
}

type outcomes map[string]int

// A soak is one server with random pipelines.
type soak struct {
	*rig
	random      *rand.Rand
	outcomes    outcomes
	made        map[string]int // by name: the number of the definition
	asked       map[int]bool   // the numbers of those that took a request
	ids         int64
	definitions int
	cameras     bool // requests are frames of few streams, and come fast
}

// chance is true in one of n cases.
func (s *soak) chance(n int) bool { return s.random.IntN(n) == 0 }

func (s *soak) run() {
	var stop []func()
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		k := kinds[name]
		stop = append(stop, s.container(name, k, s.random.Uint64()))
	}
	for i := range pipelinesAtOnce {
		s.define(s.definition(fmt.Sprint("p", i)))
	}
	var all []*client
	s.cameras = s.chance(3)
	for range 40 {
		if c := s.request(); c != nil {
			all = append(all, c)
		}
		if s.chance(12) {
			s.redefine()
		}
		if s.cameras {
			time.Sleep(time.Duration(s.random.IntN(3000)) * time.Microsecond)
		} else {
			time.Sleep(time.Duration(s.random.IntN(12000)) * time.Microsecond)
		}
	}
	for _, c := range all {
		c.judge(s)
	}
	for _, end := range stop {
		end()
	}
}

// redefine replaces or deletes a pipeline while it is asked.
func (s *soak) redefine() {
	name := fmt.Sprint("p", s.random.IntN(pipelinesAtOnce))
	if s.chance(5) {
		if err := s.reg.Delete(s.t.Context(), name); err != nil && !errors.Is(err, scheduler.ErrNotFound) {
			s.t.Error(err)
		}
		return
	}
	s.define(s.definition(name))
}

// container serves a model with one or two replicas, some of which are killed and come back.
func (s *soak) container(name string, k kind, seed uint64) (stop func()) {
	end := make(chan struct{})
	var under sync.WaitGroup
	for i := range 1 + s.random.IntN(2) {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		hangs, fails, dies := random.IntN(8) == 0, random.IntN(4) == 0, random.IntN(3) == 0
		start := func() (*schedtest.Worker, *scheduler.Replica) {
			w := &schedtest.Worker{
				Exec: func(rows int) time.Duration {
					return time.Duration(500+random.IntN(4000)+rows*50) * time.Microsecond
				},
				Hangs: func(*scheduler.Batch) bool { return hangs && random.IntN(20) == 0 },
			}
			if answer := k.answer(s.pool); fails {
				w.Model = func(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
					if random.IntN(10) == 0 {
						return nil, nil, errors.New("an odd batch")
					}
					return answer(b)
				}
			}
			return w, s.serve(name, k, w)
		}
		w, replica := start()
		under.Go(func() {
			killer := rand.New(rand.NewPCG(seed, uint64(100+i)))
			for {
				select {
				case <-end:
					w.Drop()
					replica.Remove(errors.New("the end"))
					return
				case <-time.After(time.Duration(20+killer.IntN(200)) * time.Millisecond):
				}
				if dies {
					w.Drop()
					replica.Remove(errors.New("killed"))
					time.Sleep(time.Duration(killer.IntN(20)) * time.Millisecond)
					w, replica = start()
				}
			}
		})
	}
	return func() {
		close(end)
		under.Wait()
	}
}

// A madeBy is what a stage of a random definition makes, which later ones may read.
type madeBy struct {
	things []string // values [2] for a row
	lists  []string // ragged things
	boxes  []string // of photo
}

// definition makes a random pipeline that fits its models.
func (s *soak) definition(name string) Definition {
	s.definitions++
	s.made[name] = s.definitions
	d := Definition{Name: name, Inputs: []string{"x", "photo"}}
	if s.chance(3) {
		d.Keep = setting.Keep(1 + s.random.IntN(2))
	}
	var has madeBy
	has.things = []string{"x"}
	// The first two read all inputs.
	d.Stages = []admin.Stage{
		{Name: "s0", Model: []string{"finder", "maker"}[s.random.IntN(2)], Inputs: map[string]string{"x": "x"}},
		{Name: "s1", Model: "spotter", Inputs: map[string]string{"image": "photo"}},
	}
	has.add(&d.Stages[0])
	has.add(&d.Stages[1])
	for i := range s.random.IntN(5) {
		st := admin.Stage{Name: fmt.Sprint("s", 2+i)}
		switch one := s.random.IntN(8); {
		case one == 0 && len(has.boxes) > 0:
			st.Model, st.Each, st.Inputs = "cutter", s.any(has.boxes), map[string]string{"image": "photo"}
			if s.chance(2) {
				st.Keep = &admin.Filter{Most: s.random.IntN(4), Score: []float64{0, 0.9}[s.random.IntN(2)]}
			}
		case one == 1 && len(has.lists) > 0:
			st.Model, st.Inputs = "lister", map[string]string{"list": s.any(has.lists)}
		case one <= 5 && len(has.lists) > 0:
			from := s.any(has.lists)
			st.Model, st.Each, st.Inputs = []string{"finder", "maker"}[s.random.IntN(2)], from, map[string]string{"x": from}
			if s.chance(3) {
				st.Keep = &admin.Filter{Most: s.random.IntN(4)}
				if s.chance(2) {
					st.Keep.Classes = []string{"odd"}
				}
			}
		default:
			st.Model, st.Inputs = []string{"finder", "maker"}[s.random.IntN(2)],
				map[string]string{"x": s.any(has.things)}
		}
		if s.chance(4) {
			st.Required = new(s.chance(2))
		}
		if s.chance(6) {
			st.Timeout = fmt.Sprint(2+s.random.IntN(20), "ms")
		}
		d.Stages = append(d.Stages, st)
		has.add(&st)
	}
	if s.chance(3) {
		d.Outputs = s.outputs(d.Stages)
	}
	if s.chance(2) {
		s.random.Shuffle(len(d.Stages), func(i, j int) { d.Stages[i], d.Stages[j] = d.Stages[j], d.Stages[i] })
	}
	return d
}

// outputs shows the stages that no other one reads, and some of the others.
func (s *soak) outputs(stages []admin.Stage) map[string]string {
	shown := map[string]string{}
	for i := range stages {
		read := slices.ContainsFunc(stages, func(o admin.Stage) bool {
			for _, from := range o.Inputs {
				if strings.HasPrefix(from, stages[i].Name+".") {
					return true
				}
			}
			return strings.HasPrefix(o.Each, stages[i].Name+".")
		})
		if read && s.chance(2) {
			continue
		}
		for _, o := range kinds[stages[i].Model].spec.Outputs {
			shown[stages[i].Name+"."+o.Name] = stages[i].Name + "." + o.Name
		}
	}
	return shown
}

// kinds are the models of the soak.
var kinds = map[string]kind{"finder": finder, "maker": maker, "lister": lister, "spotter": spotter, "cutter": cutter}

func (m *madeBy) add(s *admin.Stage) {
	switch s.Model {
	case "finder":
		m.lists = append(m.lists, s.Name+".things")
	case "maker":
		m.things = append(m.things, s.Name+".y")
	case "spotter":
		m.boxes = append(m.boxes, s.Name+".boxes")
	}
}

func (s *soak) any(list []string) string { return list[s.random.IntN(len(list))] }

// A client is a request and what it was about.
type client struct {
	*asker
	things   []int64
	pictures []int
	deadline time.Time
	plan     *Plan
}

// request sends a random request; nil if it is refused.
func (s *soak) request() *client {
	c := &client{}
	rows := 1
	if s.chance(5) {
		rows = 2 + s.random.IntN(2)
	}
	for range rows {
		s.ids++
		n := int64(s.random.IntN(5))
		if s.chance(10) {
			n = int64(s.random.IntN(65))
		}
		c.things = append(c.things, s.ids, n)
		c.pictures = append(c.pictures, int(s.ids), s.random.IntN(6))
	}
	// Memory that is counted, as that of doors is.
	in := []tensor.Tensor{s.pooled(thing(c.things...)), s.pooled(picturesOf(c.pictures...))}
	defer func() {
		for _, t := range in {
			t.Release()
		}
	}()
	most := pipelinesAtOnce
	if s.cameras {
		most = 1
	}
	q := &gate.Request{Model: fmt.Sprint("p", s.random.IntN(most)), Inputs: in, Source: uint64(1 + s.random.IntN(3))}
	q.Timeout = time.Duration(3+s.random.IntN(60)) * time.Millisecond
	if s.chance(2) {
		q.Timeout = time.Second
	}
	if s.cameras || s.chance(2) {
		q.Stream, q.Seq, q.Keep = fmt.Sprint("camera ", s.random.IntN(2)), uint64(s.ids),
			[]setting.Keep{0, setting.KeepLatest, 2, setting.KeepAll}[s.random.IntN(4)]
	}
	a, err := s.begin(q)
	if err != nil {
		s.outcomes["refused"]++
		return nil
	}
	c.asker, c.deadline, c.plan = a, q.Arrived.Add(q.Timeout), a.Target.Composite.(*pipeline).plan
	for _, t := range in {
		t.Retain()
	}
	s.asked[s.made[q.Model]] = true
	a.inputs = in // the door keeps the message until the call is closed
	if s.chance(6) {
		time.Sleep(time.Duration(s.random.IntN(8)) * time.Millisecond)
		s.Cancel(&a.Call)
		if time.Sleep(2 * stopAgain); a.answers.Load() != 1 {
			s.t.Errorf("canceled, and not answered: %+v", c.plan.of.Definition)
		}
	}
	return c
}

// pooled copies a tensor to memory of the pool.
func (s *soak) pooled(t tensor.Tensor) tensor.Tensor {
	buf, err := s.pool.Get(len(t.Data))
	if err != nil {
		s.t.Fatal(err)
	}
	copy(buf.Bytes(), t.Data)
	t.Data, t.Buf = buf.Bytes(), buf
	return t
}

// judge waits for the answer and checks it.
func (c *client) judge(s *soak) {
	<-c.done
	defer func() {
		c.Close()
		for _, t := range c.inputs {
			t.Release()
		}
	}()
	if late := c.at.Sub(c.deadline); late > time.Millisecond {
		s.t.Errorf("answered %v after the deadline: %s, of %+v", late, c.text(), c.plan.of.Definition)
	}
	if c.Err != nil {
		row := fault.Of(c.Err)
		s.outcomes[row.Type]++
		if row.Type == "Internal" || row.Type == "InvalidInput" {
			s.t.Errorf("%v", c.Err)
		}
	} else {
		s.outcomes["OK"]++
		v := &verifier{client: c}
		v.verify()
		for _, f := range v.faults {
			s.t.Error(f)
		}
	}
	if n := c.answers.Load(); n != 1 {
		s.t.Errorf("%d answers", n)
	}
}

// A verifier computes, from what the answer says of earlier stages, what it must say of each.
type verifier struct {
	*client
	faults []string
	rows   [][]verified // by stage
}

// A verified is a row of a stage.
type verified struct {
	parent int
	of     int
	status int32
	thing  []int64   // of a maker, or the row of the input
	things [][]int64 // of a finder
	boxes  int
}

func (v *verifier) fail(format string, args ...any) {
	v.faults = append(v.faults, fmt.Sprintf(format, args...))
}

func (v *verifier) verify() {
	defer func() {
		if what := recover(); what != nil {
			v.fail("the answer cannot be read: %v", what)
		}
	}()
	for i := range v.plan.stages {
		v.rows = append(v.rows, nil)
		v.stage(i)
		if v.faults != nil {
			v.fail("definition %+v", v.plan.of.Definition)
			v.fail("answer %s", v.text())
			return
		}
	}
}

// ints returns an output of int64 as rows of width values.
func (v *verifier) ints(name string, width int) (list [][]int64) {
	values, err := tensor.Values[int64](v.output(name))
	if err != nil {
		panic(err)
	}
	for k := 0; k < len(values); k += width {
		list = append(list, values[k:k+width])
	}
	return list
}

func (v *verifier) int32s(name string) []int32 {
	values, err := tensor.Values[int32](v.output(name))
	if err != nil {
		panic(err)
	}
	return values
}

// stage checks the rows of a stage.
func (v *verifier) stage(i int) {
	s := &v.plan.stages[i]
	list := v.expectRows(i)
	if s.Each != "" || !s.needed {
		status := v.int32s(s.Name + ".status")
		if len(status) != len(list) {
			v.fail("stage %s: %d rows, and %d are in the answer", s.Name, len(list), len(status))
			return
		}
		for k := range list {
			list[k].status = status[k]
		}
	}
	v.rows[i] = list
	if byName(v.Target.Spec.Outputs, s.Name+"."+s.target.Spec.Outputs[0].Name) < 0 {
		v.hidden(i, list)
		return
	}
	switch s.Model {
	case "maker":
		v.makers(i, list)
	case "finder":
		v.finders(i, list)
	case "lister":
		v.listers(i, list)
	case "cutter":
		for k, y := range v.ints(s.Name+".y", 2) {
			o := &list[k]
			root := v.top(i, k)
			if want := []int64{int64(v.pictures[2*root]), int64(o.of)}; o.status == 0 &&
				!slices.Equal(y, []int64{want[0], int64(v.local(i, k))}) {
				v.fail("stage %s: row %d: looked at box %v, expected picture %d, box %d", s.Name, k, y, want[0],
					v.local(i, k))
			}
		}
	case "spotter":
		for k, n := range v.int32s(s.Name + ".count") {
			o := &list[k]
			if o.boxes = int(n); o.status == 0 && o.boxes != v.pictures[2*k+1] {
				v.fail("stage %s: row %d: %d boxes, expected %d", s.Name, k, n, v.pictures[2*k+1])
			}
		}
	}
}

// hidden fills in what a stage that the answer does not show must have made.
func (v *verifier) hidden(i int, list []verified) {
	for k := range list {
		o := &list[k]
		switch v.plan.stages[i].Model {
		case "spotter":
			o.boxes = v.pictures[2*k+1]
		case "maker":
			if in, below := v.input(i, k); v.settled(i, k, below == 0 && bad(in[0]), below) {
				o.thing = []int64{in[0] + 1, in[1]}
			}
		case "finder":
			if in, below := v.input(i, k); v.settled(i, k, false, below) {
				for e := range in[1] {
					id := child(in[0], e)
					o.things = append(o.things, []int64{id, found(id)})
				}
			}
		}
	}
}

// expectRows lists the rows that a stage must have.
func (v *verifier) expectRows(i int) (list []verified) {
	s := &v.plan.stages[i]
	if s.Each == "" {
		n := len(v.things) / 2
		if s.scope != request {
			n = len(v.rows[s.scope])
		}
		for k := range n {
			list = append(list, verified{parent: k})
		}
		return list
	}
	before := 0
	counts := v.int32s(s.Name + ".rows")
	of := v.int32s(s.Name + ".of")
	for parent := range v.rows[s.stage.each.stage] {
		p := &v.rows[s.stage.each.stage][parent]
		n := max(len(p.things), p.boxes)
		kept := 0
		for k := range n {
			if f := s.Keep; f != nil {
				if len(f.Classes) > 0 && k%2 == 0 || f.Score != 0 && 1-float32(k)/64 < float32(f.Score) ||
					f.Most > 0 && kept == f.Most {
					continue
				}
			}
			kept++
			list = append(list, verified{parent: parent, of: before + k})
		}
		if parent >= len(counts) || int(counts[parent]) != kept {
			v.fail("stage %s: parent %d has rows %v, expected %d", s.Name, parent, counts, kept)
		}
		before += n
	}
	for k := range list {
		if k >= len(of) || int(of[k]) != list[k].of {
			v.fail("stage %s: row %d of %v is of element %d", s.Name, k, of, list[k].of)
			break
		}
	}
	return list
}

// local is the element of its parent row that a row of a stage with Each is.
func (v *verifier) local(i, k int) int {
	o := v.rows[i][k]
	before := 0
	for parent := range o.parent {
		p := &v.rows[v.plan.stages[i].stage.each.stage][parent]
		before += max(len(p.things), p.boxes)
	}
	return o.of - before
}

// top is the row of the request that a row of a stage belongs to.
func (v *verifier) top(i, k int) int {
	for scope := v.plan.stages[i].scope; scope != request; scope = v.plan.of.parent(scope) {
		k = v.rows[scope][k].parent
	}
	return k
}

// input returns the thing that a row of a maker or a finder is asked about, and the status of the
// row that it comes from.
func (v *verifier) input(i, k int) (thing []int64, status int32) {
	s := &v.plan.stages[i]
	from := s.feeds[0]
	if from.from == request {
		root := v.top(i, k)
		return v.things[2*root : 2*root+2], 0
	}
	if s.Each != "" {
		p := &v.rows[from.from][v.rows[i][k].parent]
		return p.things[v.local(i, k)], 0
	}
	scope := s.scope
	for scope != v.plan.stages[from.from].scope {
		k = v.rows[scope][k].parent
		scope = v.plan.of.parent(scope)
	}
	o := &v.rows[from.from][k]
	return o.thing, o.status
}

// settled reports whether a row must have a value, and checks why if it has none.
func (v *verifier) settled(i, k int, wrong bool, below int32) bool {
	s, o := &v.plan.stages[i], &v.rows[i][k]
	switch {
	case below != 0 && o.status != below && o.status != 504:
		v.fail("stage %s: row %d has status %d, and what it reads has %d", s.Name, k, o.status, below)
	case below == 0 && o.status == 0 && wrong:
		v.fail("stage %s: row %d has a value of a bad thing", s.Name, k)
	case o.status != 0 && !slices.Contains([]int32{429, 500, 502, 503, 504}, o.status):
		v.fail("stage %s: row %d has status %d", s.Name, k, o.status)
	}
	return o.status == 0
}

func (v *verifier) makers(i int, list []verified) {
	s := &v.plan.stages[i]
	y := v.ints(s.Name+".y", 2)
	texts, err := tensor.Strings(v.output(s.Name + ".text"))
	if err != nil || len(y) != len(list) || len(texts) != len(list) {
		v.fail("stage %s: %d values and %d texts of %d rows, %v", s.Name, len(y), len(texts), len(list), err)
		return
	}
	for k := range list {
		in, below := v.input(i, k)
		list[k].thing = y[k]
		if v.settled(i, k, below == 0 && bad(in[0]), below) {
			if !slices.Equal(y[k], []int64{in[0] + 1, in[1]}) || texts[k] != fmt.Sprint(in[0]) {
				v.fail("stage %s: row %d made %v, %q of %v", s.Name, k, y[k], texts[k], in)
			}
		} else if y[k][0] != 0 || texts[k] != "" {
			v.fail("stage %s: row %d failed, and has %v, %q", s.Name, k, y[k], texts[k])
		}
	}
}

func (v *verifier) finders(i int, list []verified) {
	s := &v.plan.stages[i]
	flat := v.ints(s.Name+".things", 2)
	for k, n := range v.int32s(s.Name + ".count") {
		in, below := v.input(i, k)
		list[k].things, flat = flat[:n], flat[n:]
		if !v.settled(i, k, false, below) {
			if n != 0 {
				v.fail("stage %s: row %d failed, and has %d things", s.Name, k, n)
			}
			continue
		}
		if int64(n) != in[1] {
			v.fail("stage %s: row %d found %d things of %v", s.Name, k, n, in)
		}
		for e, one := range list[k].things {
			if id := child(in[0], int64(e)); !slices.Equal(one, []int64{id, found(id)}) {
				v.fail("stage %s: row %d found %v of %v as thing %d", s.Name, k, one, in, e)
			}
		}
	}
	if len(flat) > 0 {
		v.fail("stage %s: %d things of no row", s.Name, len(flat))
	}
}

func (v *verifier) listers(i int, list []verified) {
	s := &v.plan.stages[i]
	flat := v.ints(s.Name+".ids", 1)
	from := s.feeds[0].from
	for k, n := range v.int32s(s.Name + ".ids.rows") {
		var ids []int64
		for range n {
			ids, flat = append(ids, flat[0][0]), flat[1:]
		}
		o := &v.rows[from][k] // its rows are those of the finder
		var want []int64
		for _, one := range o.things {
			want = append(want, one[0])
		}
		if v.settled(i, k, false, o.status) && !slices.Equal(ids, want) {
			v.fail("stage %s: row %d lists %v, expected %v", s.Name, k, ids, want)
		}
	}
}
