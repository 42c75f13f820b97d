package pipelines

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// twoStages finds the things below a thing, and makes a value of each.
func twoStages() Definition {
	return Definition{
		Name: "p", Inputs: []string{"x"},
		Outputs: map[string]string{"y": "make.y", "text": "make.text", "things": "find.things"},
		Stages: []admin.Stage{
			{Name: "find", Model: "finder", Inputs: map[string]string{"x": "x"}},
			{Name: "make", Model: "maker", Each: "find.things", Inputs: map[string]string{"x": "find.things"}},
		},
	}
}

// photos finds the boxes in a picture, and looks at each.
func photos() Definition {
	return Definition{
		Name: "p", Inputs: []string{"photo"}, Outputs: map[string]string{"y": "cut.y"},
		Stages: []admin.Stage{
			{Name: "spot", Model: "spotter", Inputs: map[string]string{"image": "photo"}},
			{Name: "cut", Model: "cutter", Each: "spot.boxes", Inputs: map[string]string{"image": "photo"}},
		},
	}
}

// picturesOf is an input of pictures, each with an id and a number of boxes.
func picturesOf(idsAndBoxes ...int) tensor.Tensor {
	var data []byte
	for i := 0; i < len(idsAndBoxes); i += 2 {
		data = append(data, frame(idsAndBoxes[i], idsAndBoxes[i+1])...)
	}
	t, _ := tensor.New(tensor.Uint8, tensor.Shape{len(idsAndBoxes) / 2, pictureSide, pictureSide, 3}, data)
	t.Name = "photo"
	return t
}

// TestAnswers: what a request is answered with, by definition and input.
func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		name   string
		define func(d *Definition)
		in     tensor.Tensor
		want   string
	}{
		{"objects", nil, thing(1, 3),
			`things=[132 0 133 2 134 4] find.count=[3] y=[133 0 134 2 135 4] text=["132" "133" "134"] make.rows=[3] make.of=[0 1 2] make.status=[0 0 0]`},
		{"none", nil, thing(1, 0),
			`things=[] find.count=[0] y=[] text=[] make.rows=[0] make.of=[] make.status=[]`},
		{"several rows", nil, thing(1, 1, 2, 0, 3, 2),
			`things=[132 0 394 1 395 3] find.count=[1 0 2] y=[133 0 395 1 0 0] text=["132" "394" ""] make.rows=[1 0 2] make.of=[0 1 2] make.status=[0 0 502]`},
		{"no rows", nil, tensor.Tensor{Name: "x", DType: tensor.Int64, Shape: tensor.Shape{0, 2}},
			`things=[] find.count=[] y=[] text=[] make.rows=[] make.of=[] make.status=[]`},
		{"required", func(d *Definition) { d.Stages[1].Required = new(true) }, thing(3, 2),
			`scheduler: container failed on row 0: bad thing 395 (stage "make", row 1 of pipeline "p")`},
		{"some are kept", func(d *Definition) { d.Stages[1].Keep = &admin.Filter{Classes: []string{"odd"}} },
			thing(1, 4),
			`things=[132 0 133 2 134 4 135 1] find.count=[4] y=[134 2 136 1] text=["133" "135"] make.rows=[2] make.of=[1 3] make.status=[0 0]`},
		{"the best are kept", func(d *Definition) { d.Stages[1].Keep = &admin.Filter{Most: 2, Score: 0.5} },
			thing(1, 4),
			`things=[132 0 133 2 134 4 135 1] find.count=[4] y=[133 0 134 2] text=["132" "133"] make.rows=[2] make.of=[0 1] make.status=[0 0]`},
		{"after one another", func(d *Definition) {
			d.Outputs = map[string]string{"z": "again.y"}
			d.Stages = append(d.Stages, admin.Stage{Name: "again", Model: "maker", Inputs: map[string]string{"x": "make.y"}})
		}, thing(16, 2), `make.rows=[2] make.of=[0 1] make.status=[502 0] z=[0 0 2100 2] again.status=[502 0]`},
		{"elements of elements", func(d *Definition) {
			d.Outputs = map[string]string{"y": "make.y"}
			d.Stages[1].Each, d.Stages[1].Inputs = "below.things", map[string]string{"x": "below.things"}
			d.Stages = append(d.Stages,
				admin.Stage{Name: "below", Model: "finder", Each: "find.things", Inputs: map[string]string{"x": "find.things"}})
		}, thing(1, 3),
			`below.rows=[3] below.of=[0 1 2] below.status=[0 0 0] y=[17425 4 17426 1 17556 2 17557 4 17558 1 17559 3] make.rows=[0 2 4] make.of=[0 1 2 3 4 5] make.status=[0 0 0 0 0 0]`},
		{"a list at once", func(d *Definition) {
			d.Outputs = map[string]string{"ids": "all.ids"}
			d.Stages[1] = admin.Stage{Name: "all", Model: "lister", Inputs: map[string]string{"list": "find.things"}}
		}, thing(1, 2, 2, 0, 3, 1), `ids.rows=[2 0 1] ids=[132 133 394]`},
		{"an application", func(d *Definition) { d.Stages[1].Model = "app" }, thing(1, 1),
			`things=[132 0] find.count=[1] y=[133 0] text=["132"] make.rows=[1] make.of=[0] make.status=[0]`},
		{"a pipeline", func(d *Definition) {
			d.Outputs = map[string]string{"y": "inner.y", "things": "inner.things"}
			d.Stages = []admin.Stage{{Name: "inner", Model: "inner", Inputs: map[string]string{"x": "x"}}}
		}, thing(1, 2), `things=[132 0 133 2] inner.find.count=[2] y=[133 0 134 2] inner.make.rows=[2]`},
		{"regions", func(d *Definition) { *d = photos() }, picturesOf(7, 3, 9, 2),
			`y=[7 0 7 1 7 2 9 0 9 1] cut.rows=[3 2] cut.of=[0 1 2 3 4] cut.status=[0 0 0 0 0]`},
		{"regions with a margin", func(d *Definition) { *d = photos(); d.Stages[1].Margin = 1 }, picturesOf(7, 3),
			`y=[7 0 7 0 7 1] cut.rows=[3] cut.of=[0 1 2] cut.status=[0 0 0]`},
		{"boxes that are no parts", func(d *Definition) { *d = photos(); d.Stages[1].Boxes = admin.BoxParts },
			picturesOf(7, 2),
			`y=[0 0 0 0] cut.rows=[2] cut.of=[0 1] cut.status=[400 400]`},
		{"small boxes",
			func(d *Definition) { *d = photos(); d.Stages[1].Keep = &admin.Filter{Smallest: 2.0 / pictureSide} },
			picturesOf(7, 2),
			`y=[] cut.rows=[0] cut.of=[] cut.status=[]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onRig(t, func(r *rig) {
				for name, k := range map[string]kind{"finder": finder, "maker": maker, "lister": lister,
					"spotter": spotter, "cutter": cutter} {
					r.serve(name, k, takes(5*time.Millisecond))
				}
				if _, err := r.apps.Put(r.t.Context(), apps.Definition{Name: "app", Models: []string{"maker"}}); err !=
					nil {
					t.Fatal(err)
				}
				inner := twoStages()
				inner.Name = "inner"
				d := twoStages()
				if tt.define != nil {
					tt.define(&d)
				}
				r.define(inner, d)
				if wrong := r.reg.Problems(d); wrong != nil {
					t.Errorf("it serves, and is said to have the faults %q", wrong)
				}
				a := r.ask(&gate.Request{Model: "p", Inputs: []tensor.Tensor{tt.in}})
				defer a.Close()
				if got := a.text(); got != tt.want {
					t.Errorf("got  %s\nwant %s", got, tt.want)
				}
			})
		})
	}
}

// parallel has two stages that read the request, one that reads both, and one after it.
func parallel() Definition {
	return Definition{
		Name: "p", Inputs: []string{"x"},
		Stages: []admin.Stage{
			{Name: "a", Model: "fast", Inputs: map[string]string{"x": "x"}},
			{Name: "b", Model: "slow", Inputs: map[string]string{"x": "x"}},
			{Name: "after", Model: "fast", Inputs: map[string]string{"x": "a.y"}},
		},
	}
}

// TestStagesInParallel: each stage begins as soon as its inputs are there, so the request takes as
// long as its longest way.
func TestStagesInParallel(t *testing.T) {
	onRig(t, func(r *rig) {
		r.serve("fast", maker, takes(10*time.Millisecond))
		r.serve("slow", maker, takes(25*time.Millisecond))
		r.define(parallel())
		began := time.Now()
		a := r.ask(&gate.Request{Model: "p", Inputs: []tensor.Tensor{thing(1, 0)}})
		defer a.Close()
		if took := a.at.Sub(began); a.Err != nil || took != 25*time.Millisecond {
			t.Errorf("%v after %v", a.Err, took)
		}
	})
}

// TestOneBatchForObjects: rows of one request, and those of several, share batches.
func TestOneBatchForObjects(t *testing.T) {
	onRig(t, func(r *rig) {
		r.serve("finder", finder, takes(5*time.Millisecond))
		var sizes []int
		w := takes(5 * time.Millisecond)
		w.Seen = func(b *scheduler.Batch) { sizes = append(sizes, b.Rows) }
		r.serve("maker", maker, w)
		r.define(twoStages())
		var askers []*asker
		var calls []*gate.Call
		for i := range 3 {
			a := &asker{done: make(chan struct{})}
			q := &gate.Request{Model: "p", Inputs: []tensor.Tensor{thing(int64(i+1), 4)}, Arrived: time.Now(),
				Source: uint64(i)}
			if err := r.Open(&a.Call, q); err != nil {
				t.Fatal(err)
			}
			a.Owner = a
			askers, calls = append(askers, a), append(calls, &a.Call)
		}
		r.Submit(calls...)
		for _, a := range askers {
			<-a.done
			if a.Err != nil {
				t.Error(a.Err)
			}
			a.Close()
		}
		total := 0
		for _, n := range sizes {
			total += n
		}
		if total != 12 || len(sizes) > 4 {
			t.Errorf("batches of %v", sizes)
		}
	})
}

// TestEnds: a request ends once, when it must, and nothing is left of it.
func TestEnds(t *testing.T) {
	for _, tt := range []struct {
		name    string
		timeout time.Duration
		act     func(r *rig, a *asker, kill func()) // 7 ms after the request
		change  func(d *Definition)
		at      time.Duration
		want    string
	}{
		{"answer", time.Second, nil, nil, 45 * time.Millisecond, "make.status=[0 0 0]"},
		{"cancel", time.Second, func(r *rig, a *asker, _ func()) { r.Cancel(&a.Call) }, nil, 7 * time.Millisecond, "the caller gave up"},
		{"deadline at a later stage", 15 * time.Millisecond, nil, nil, 15 * time.Millisecond, "make.status=[504 504 504]"},
		{"deadline at a required stage", 15 * time.Millisecond, nil,
			func(d *Definition) { d.Stages[1].Required = new(true) }, 15 * time.Millisecond, "scheduler: deadline exceeded"},
		{"deadline at the first stage", 3 * time.Millisecond, nil, nil, 3 * time.Millisecond, "scheduler: deadline exceeded"},
		{"timeout of a stage", time.Second, nil, func(d *Definition) { d.Stages[1].Timeout = "10ms" },
			15 * time.Millisecond, "make.status=[504 504 504]"},
		{"the container goes", 30 * time.Millisecond, func(_ *rig, _ *asker, kill func()) { kill() }, nil,
			7 * time.Millisecond, "make.status=[500 503 503]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onRig(t, func(r *rig) {
				r.serve("finder", finder, takes(5*time.Millisecond))
				w := takes(20 * time.Millisecond)
				makers := r.serve("maker", maker, w)
				d := twoStages()
				if tt.change != nil {
					tt.change(&d)
				}
				r.define(d)
				q := &gate.Request{Model: "p", Inputs: []tensor.Tensor{thing(1, 3)}}
				q.Timeout = tt.timeout
				began := time.Now()
				a, err := r.begin(q)
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				time.Sleep(7 * time.Millisecond)
				if tt.act != nil {
					tt.act(r, a, func() { w.Drop(); makers.Remove(errors.New("killed")) })
				}
				<-a.done
				if got := a.text(); a.at.Sub(began) != tt.at || !strings.Contains(got, tt.want) {
					t.Errorf("after %v: %s\nwant after %v: %s", a.at.Sub(began), got, tt.at, tt.want)
				}
				time.Sleep(time.Second)
				if n := a.answers.Load(); n != 1 {
					t.Errorf("%d answers", n)
				}
			})
		})
	}
}

// TestNotBegun: once it is known what the stages take at least, a request that cannot be in time is
// not begun, except for one each second, by which a wrong belief is corrected.
func TestNotBegun(t *testing.T) {
	onRig(t, func(r *rig) {
		exec := 50 * time.Millisecond
		w := &schedtest.Worker{Exec: func(int) time.Duration { return exec }}
		r.serve("finder", finder, takes(5*time.Millisecond))
		r.serve("maker", maker, w)
		d := twoStages()
		d.Stages[1].Required = new(true)
		r.define(d)
		ask := func(timeout time.Duration) error {
			q := &gate.Request{Model: "p", Inputs: []tensor.Tensor{thing(1, 3)}}
			q.Timeout = timeout
			a := r.ask(q)
			defer a.Close()
			return a.Err
		}
		for range 20 {
			if err := ask(time.Second); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(tryEvery)
		if err := ask(time.Second); err != nil { // the one of this second
			t.Fatal(err)
		}
		began := time.Now()
		err := ask(30 * time.Millisecond)
		if !errors.Is(err, scheduler.ErrDeadlineExceeded) ||
			!strings.Contains(fmt.Sprint(err), `stage "find" is not begun`) || time.Since(began) != 0 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		exec = 5 * time.Millisecond // what is believed of it is wrong now
		served := 0
		for range 100 {
			if ask(30*time.Millisecond) == nil {
				served++
			}
			time.Sleep(100 * time.Millisecond)
		}
		if served == 0 {
			t.Error("a stage that has become fast is never begun again")
		}
	})
}

// TestStreams: where frames come faster than the last stage answers, the newest wait there, older
// ones are superseded, none that has entered it is, and the answers leave in order.
func TestStreams(t *testing.T) {
	onRig(t, func(r *rig) {
		r.serve("finder", finder, takes(2*time.Millisecond))
		r.serve("maker", maker, takes(35*time.Millisecond))
		d := twoStages()
		d.Keep = setting.KeepLatest
		r.define(d)
		var frames []*asker
		for i := range 40 {
			q := &gate.Request{Model: "p", Inputs: []tensor.Tensor{thing(int64(i+1), int64(i%3))}}
			q.Stream, q.Seq = "camera", uint64(i+1)
			a, err := r.begin(q)
			if err != nil {
				t.Fatal(err)
			}
			frames = append(frames, a)
			time.Sleep(10 * time.Millisecond)
		}
		var last time.Time
		shown, superseded := 0, 0
		for i, a := range frames {
			<-a.done
			switch {
			case a.Err == nil:
				if shown++; a.at.Before(last) {
					t.Errorf("frame %d left before an older one", i)
				}
				last = a.at
				if y, err := tensor.Values[int64](a.output("make.of")); err == nil && len(y) != i%3 {
					t.Errorf("frame %d: %d things", i, len(y))
				}
			case errors.Is(a.Err, scheduler.ErrSuperseded):
				if superseded++; fault.By(a.Err) == "" {
					t.Errorf("frame %d: by which frame? %v", i, a.Err)
				}
			default:
				t.Errorf("frame %d: %v", i, a.Err)
			}
			a.Close()
		}
		if shown < 12 || superseded == 0 { // 400 ms / 35 ms
			t.Errorf("%d shown, %d superseded", shown, superseded)
		}
	})
}

// TestNewestOfInner: the newest answer of a stream is that of what its client asks. What pipelines
// and applications answer to another pipeline is part of that.
func TestNewestOfInner(t *testing.T) {
	onRig(t, func(r *rig) {
		r.serve("maker", maker, takes(time.Millisecond))
		if _, err := r.apps.Put(r.t.Context(), apps.Definition{Name: "app", Models: []string{"maker"}}); err != nil {
			t.Fatal(err)
		}
		of := func(name, model string) Definition {
			return Definition{Name: name, Inputs: []string{"x"}, Outputs: map[string]string{"y": "s.y"},
				Stages: []admin.Stage{{Name: "s", Model: model, Inputs: map[string]string{"x": "x"}}}}
		}
		r.define(of("inner", "app"), of("outer", "inner"))
		kept := func(name string) (all int) {
			_, all, release, err := r.NewestOf(name, true, 1)
			if err != nil {
				t.Fatal(err)
			}
			release()
			return all
		}
		names := []string{"outer", "inner", "app", "maker"}
		for _, name := range names {
			kept(name) // from now on they are
		}
		time.Sleep(time.Millisecond)
		q := &gate.Request{Model: "outer", Inputs: []tensor.Tensor{thing(1, 0)}}
		q.Stream = "camera"
		a := r.ask(q)
		defer a.Close()
		for i, name := range names {
			if all := kept(name); a.Err != nil || all != [...]int{1, 0, 0, 0}[i] {
				t.Errorf("%s: %d newest answers, %v", name, all, a.Err)
			}
		}
	})
}

// TestLogOfLinks: the log tells what in a pipeline does not fit, once, and not which containers
// have yet to register.
func TestLogOfLinks(t *testing.T) {
	onRig(t, func(r *rig) {
		var log strings.Builder
		r.reg.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		tells := func(what string, want ...string) {
			t.Helper()
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			if log.Reset(); len(want) == 0 {
				want = []string{""}
			}
			if !slices.EqualFunc(lines, want, strings.Contains) {
				t.Errorf("%s: the log has %q, expected %q", what, lines, want)
			}
		}
		wrong := twoStages()
		wrong.Name, wrong.Stages[0].Each = "wrong", "make.nothing"
		wrong.Stages[1] = admin.Stage{Name: "make", Model: "maker", Inputs: map[string]string{"x": "x"}}
		r.define(twoStages(), wrong)
		tells("no container")
		r.serve("finder", finder, takes(time.Millisecond))
		tells("one of two")
		last := r.serve("maker", maker, takes(time.Millisecond))
		tells("all", `makes no \"nothing\"`)
		r.Changed()
		tells("nothing new")
		last.Remove(errors.New("gone"))
		r.Changed()
		tells("a container that is gone")
	})
}

// TestStagesOfBefore: a request that goes by an earlier definition is counted by it, and does not
// take the counts away from stages that have been added since.
func TestStagesOfBefore(t *testing.T) {
	onRig(t, func(r *rig) {
		r.serve("finder", finder, takes(10*time.Millisecond))
		r.serve("maker", maker, takes(time.Millisecond))
		open := func() *asker {
			a := &asker{done: make(chan struct{})}
			q := &gate.Request{Model: "p", Inputs: []tensor.Tensor{thing(1, 2)}, Arrived: time.Now()}
			if err := r.Open(&a.Call, q); err != nil {
				t.Fatal(err)
			}
			a.Owner = a
			return a
		}
		r.define(twoStages())
		before := open()
		d := twoStages()
		d.Stages = append(d.Stages, admin.Stage{Name: "again", Model: "maker", Inputs: map[string]string{"x": "make.y"}})
		d.Outputs["z"] = "again.y"
		r.define(d)
		after, later := open(), open()
		counts := after.Target.Metrics
		for _, a := range []*asker{after, before, later} {
			r.Submit(&a.Call)
			<-a.done
			a.Close()
		}
		for name, want := range map[string]uint64{"find": 3, "make": 3, "again": 2} {
			all, _ := counts.Stage(name).Counts()
			if all.Requests != want {
				t.Errorf("stage %s: %d requests, expected %d", name, all.Requests, want)
			}
		}
	})
}

// TestSameOrderInAllLines: frames of one stream that arrive at the same moment are in one order in
// the lines of all stages, whatever the order of these in their definitions: else one could wait
// for the other here, and the other for it there.
func TestSameOrderInAllLines(t *testing.T) {
	of := func(stages ...string) *run {
		r := &run{p: &pipeline{Pipeline: &Pipeline{}}, call: &gate.Call{Frame: new(gate.Frame)},
			stages: make([]work, len(stages))}
		for i, name := range stages {
			r.p.stages = append(r.p.stages, stage{Stage: admin.Stage{Name: name}})
			r.stages[i].lined, r.stages[i].entry = true, entry{run: r, stage: i}
		}
		return r
	}
	names := strings.Fields("a b c d e f g h")
	back := slices.Clone(names)
	slices.Reverse(back)
	for range 500 {
		var ls lines
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range 16 {
			r := of([][]string{names, back}[i%2]...)
			wg.Go(func() {
				<-start
				ls.join(r)
			})
		}
		close(start)
		wg.Wait()
		var want []*run
		for _, l := range ls.open {
			var got []*run
			for _, e := range l.entries {
				got = append(got, e.run)
			}
			if want == nil {
				want = got
			} else if !slices.Equal(got, want) {
				t.Fatal("frames are in another order in another line")
			}
		}
	}
}

// TestDrain: a request that has begun goes on, through all of its stages.
func TestDrain(t *testing.T) {
	onRig(t, func(r *rig) {
		r.serve("finder", finder, takes(5*time.Millisecond))
		r.serve("maker", maker, takes(5*time.Millisecond))
		r.define(twoStages())
		a, err := r.begin(&gate.Request{Model: "p", Inputs: []tensor.Tensor{thing(1, 3)}})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		synctest.Wait()
		r.Gate.Drain()
		r.reg.Drain(r.t.Context())
		if err := r.sched.Drain(r.t.Context()); err != nil {
			t.Fatal(err)
		}
		if <-a.done; a.Err != nil {
			t.Error(a.Err)
		}
		if _, err := r.begin(&gate.Request{Model: "p", Inputs: []tensor.Tensor{thing(1, 3)}}); !errors.Is(err,
			scheduler.ErrDraining) {
			t.Errorf("a new request: %v", err)
		}
	})
}

// TestCirclesOfPipelines: pipelines that contain one another are refused by name.
func TestCirclesOfPipelines(t *testing.T) {
	onRig(t, func(r *rig) {
		r.serve("maker", maker, takes(time.Millisecond))
		of := func(name, model string) Definition {
			return Definition{Name: name, Inputs: []string{"x"}, Outputs: map[string]string{"y": "s.y"},
				Stages: []admin.Stage{{Name: "s", Model: model, Inputs: map[string]string{"x": "x"}}}}
		}
		r.define(of("a", "maker"), of("b", "a"), of("c", "b"))
		if _, err := r.reg.Put(r.t.Context(), of("a", "c")); err == nil || !strings.Contains(err.Error(), `pipelines "a" → "c" → "b" → "a" contain one another in a circle`) {
			t.Errorf("got %v", err)
		}
		a := r.ask(&gate.Request{Model: "c", Inputs: []tensor.Tensor{thing(1, 0)}})
		defer a.Close()
		if got := a.text(); got != "y=[2 0]" {
			t.Error(got)
		}
	})
}

// TestDeadlineInLine: a frame that waits for a stage is answered at its deadline, also if an older
// frame is before it at the stages that come after.
func TestDeadlineInLine(t *testing.T) {
	onRig(t, func(r *rig) {
		r.serve("finder", finder, takes(2*time.Millisecond))
		r.serve("maker", maker, takes(100*time.Millisecond))
		d := twoStages()
		d.Keep = setting.KeepLatest
		d.Stages = append(d.Stages, admin.Stage{Name: "again", Model: "maker", Inputs: map[string]string{"x": "make.y"}})
		d.Outputs["z"] = "again.y"
		r.define(d)
		var frames []*asker
		for i, timeout := range []time.Duration{time.Second, 30 * time.Millisecond} {
			q := &gate.Request{Model: "p", Inputs: []tensor.Tensor{thing(int64(i+1), 1)}}
			q.Stream, q.Timeout = "camera", timeout
			a, err := r.begin(q)
			if err != nil {
				t.Fatal(err)
			}
			frames = append(frames, a)
		}
		began := time.Now()
		<-frames[1].done
		// Its answer would have to wait for that of the older frame.
		if took := frames[1].at.Sub(began); took != 30*time.Millisecond ||
			!errors.Is(frames[1].Err, scheduler.ErrDeadlineExceeded) {
			t.Errorf("%v after %v", frames[1].Err, took)
		}
		<-frames[0].done
		for _, a := range frames {
			a.Close()
		}
		if frames[0].Err != nil {
			t.Error(frames[0].Err)
		}
	})
}

// TestGivenUp: what a stage makes and the answer does not show is given up when the last stage that
// reads it is done, while later ones still work.
func TestGivenUp(t *testing.T) {
	onRig(t, func(r *rig) {
		r.serve("finder", finder, takes(time.Millisecond))
		r.serve("maker", maker, takes(time.Millisecond))
		r.serve("slow", maker, takes(50*time.Millisecond))
		d := twoStages()
		d.Stages = append(d.Stages, admin.Stage{Name: "again", Model: "slow", Inputs: map[string]string{"x": "make.y"}})
		d.Outputs = map[string]string{"z": "again.y"}
		r.define(d)
		a, err := r.begin(&gate.Request{Model: "p", Inputs: []tensor.Tensor{thing(1, 1)}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		const values = 64 // make.y, in the smallest class
		if n := r.pool.InUse(); n != values {
			t.Errorf("%d bytes are held, expected %d", n, values)
		}
		if <-a.done; a.Err != nil {
			t.Error(a.Err)
		}
		synctest.Wait()                       // the batch is given back behind its answers
		if n := r.pool.InUse(); n != values { // again.y
			t.Errorf("%d bytes are held with the answer, expected %d", n, values)
		}
		a.Close()
		synctest.Wait()
		if n := r.pool.InUse(); n != 0 {
			t.Errorf("%d bytes are held", n)
		}
	})
}

// TestManyObjectsBesideOne: a frame with one object does not wait for all forty of the frame of
// another client that came before, unless that has the higher priority, which its stages have, too.
func TestManyObjectsBesideOne(t *testing.T) {
	for _, tt := range []struct {
		priority uint64 // of the forty; 0: that of the one
		least    time.Duration
	}{{0, 60 * time.Millisecond}, {1, math.MinInt64}} {
		onRig(t, func(r *rig) {
			r.serve("finder", finder, takes(time.Millisecond))
			few := maker
			few.spec.MaxBatch = 4
			r.serve("maker", few, takes(10*time.Millisecond))
			r.define(twoStages())
			var frames []*asker
			for i, objects := range []int64{40, 1} {
				q := &gate.Request{Model: "p", Inputs: []tensor.Tensor{thing(int64(i+1), objects)},
					Source: uint64(i + 1)}
				if i == 0 {
					q.SetPriority(tt.priority)
				}
				a, err := r.begin(q)
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				frames = append(frames, a)
				time.Sleep(2 * time.Millisecond) // the forty wait already
			}
			<-frames[0].done
			<-frames[1].done
			ahead := frames[0].at.Sub(frames[1].at)
			if frames[1].Err != nil || ahead < tt.least || tt.priority == 1 && ahead > 0 {
				t.Errorf("priority %d: the frame with one object was answered %v before that with forty, %v",
					tt.priority, ahead, frames[1].Err)
			}
		})
	}
}
