package pipelines

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// shapesOfWork are pipelines whose requests wait in different places: in a model, in a line of
// frames, in a pipeline and in an application that a stage asks, for each of its rows.
var shapesOfWork = []struct {
	name   string
	stream bool
	define func(d *Definition)
}{
	{"models", false, nil},
	{"lines", true, func(d *Definition) { d.Keep = setting.KeepLatest }},
	{"lines of several stages", true, func(d *Definition) {
		d.Keep = 2
		d.Stages = append(d.Stages,
			admin.Stage{Name: "beside", Model: "maker", Each: "find.things", Inputs: map[string]string{"x": "find.things"}},
			admin.Stage{Name: "again", Model: "maker", Inputs: map[string]string{"x": "make.y"}})
		d.Outputs["again"], d.Outputs["beside"] = "again.y", "beside.y"
	}},
	{"applications", false, func(d *Definition) { d.Stages[1].Model = "app" }},
	{"pipelines in pipelines", false, func(d *Definition) {
		d.Stages[1].Model = "inner"
		d.Outputs = map[string]string{"y": "make.y"}
	}},
}

// serveShapes serves what the pipelines of shapesOfWork ask.
func (r *rig) serveShapes() {
	r.t.Helper()
	r.serve("finder", finder, takes(5*time.Millisecond))
	r.serve("maker", maker, takes(20*time.Millisecond))
	if _, err := r.apps.Put(r.t.Context(), apps.Definition{Name: "app", Models: []string{"maker"}}); err != nil {
		r.t.Fatal(err)
	}
	r.define(Definition{Name: "inner", Inputs: []string{"x"}, Outputs: map[string]string{"y": "b.y"},
		Stages: []admin.Stage{
			{Name: "a", Model: "maker", Inputs: map[string]string{"x": "x"}},
			{Name: "b", Model: "maker", Inputs: map[string]string{"x": "a.y"}},
		}})
}

// TestCanceledAnywhere: a client that goes, wherever its request is, has its one answer at once,
// the third of three clients has its own, and nothing is left.
func TestCanceledAnywhere(t *testing.T) {
	for _, tt := range shapesOfWork {
		t.Run(tt.name, func(t *testing.T) {
			for step := range 48 {
				at := time.Duration(step/2) * 2500 * time.Microsecond
				stays := 2 * (step % 2)
				onRig(t, func(r *rig) {
					r.serveShapes()
					d := twoStages()
					if tt.define != nil {
						tt.define(&d)
					}
					r.define(d)
					var all []*asker
					for i := range 3 {
						q := &gate.Request{Model: "p", Inputs: []tensor.Tensor{thing(int64(i+1), 2)}, Source: uint64(i)}
						if tt.stream {
							q.Stream, q.Seq = "camera", uint64(i+1)
						}
						a, err := r.begin(q)
						if err != nil {
							t.Fatal(err)
						}
						all = append(all, a)
					}
					time.Sleep(at)
					synctest.Wait()
					for i, a := range all {
						if i != stays {
							r.Cancel(&a.Call)
						}
					}
					synctest.Wait()
					for i, a := range all {
						if i != stays && a.answers.Load() != 1 {
							t.Errorf("request %d is not answered when it is canceled after %v", i, at)
						}
					}
					<-all[stays].done
					if err := all[stays].Err; err != nil {
						t.Errorf("others are canceled after %v, and request %d got %v", at, stays, err)
					}
					time.Sleep(time.Second)
					for i, a := range all {
						if n := a.answers.Load(); n != 1 {
							t.Errorf("request %d has %d answers", i, n)
						}
						a.Close()
					}
				})
			}
		})
	}
}

// TestChangedWhileAsked: a request goes on as it began, whatever becomes of the definition, of what
// it asks and of the models meanwhile, and later frames of its stream are served by the new one.
func TestChangedWhileAsked(t *testing.T) {
	for _, change := range []struct {
		name string
		make func(r *rig, d Definition)
		want string // of a request that comes afterwards; "": as before
	}{
		{"deleted", func(r *rig, _ Definition) {
			if err := r.reg.Delete(r.t.Context(), "p"); err != nil {
				r.t.Error(err)
			}
		}, "not found"},
		{"the inner ones are deleted", func(r *rig, _ Definition) {
			for _, err := range []error{r.reg.Delete(r.t.Context(), "inner"), r.apps.Delete(r.t.Context(), "app")} {
				if err != nil {
					r.t.Error(err)
				}
			}
		}, ""},
		{"other stages", func(r *rig, d Definition) {
			d.Stages = []admin.Stage{{Name: "make", Model: "maker", Inputs: map[string]string{"x": "x"}}}
			d.Outputs = map[string]string{"y": "make.y"}
			r.define(d)
		}, ""},
		{"deleted and made again", func(r *rig, d Definition) {
			if err := r.reg.Delete(r.t.Context(), "p"); err != nil {
				r.t.Error(err)
			}
			r.define(d)
		}, ""},
	} {
		for _, tt := range shapesOfWork {
			t.Run(change.name+", "+tt.name, func(t *testing.T) {
				for _, at := range []time.Duration{0, 2 * time.Millisecond, 10 * time.Millisecond,
					30 * time.Millisecond} {
					onRig(t, func(r *rig) {
						r.serveShapes()
						d := twoStages()
						if tt.define != nil {
							tt.define(&d)
						}
						r.define(d)
						ask := func(i int) (*asker, error) {
							q := &gate.Request{Model: "p", Inputs: []tensor.Tensor{thing(int64(i+1), 2)}}
							if tt.stream {
								q.Stream, q.Seq = "camera", uint64(i+1)
							}
							return r.begin(q)
						}
						first, err := ask(0)
						if err != nil {
							t.Fatal(err)
						}
						time.Sleep(at)
						change.make(r, d)
						second, err := ask(1)
						if err == nil {
							<-second.done
							err = second.Err
							second.Close()
						}
						inner := change.name == "the inner ones are deleted" && tt.define != nil && !tt.stream
						if inner || change.want != "" {
							if err == nil || inner != errors.Is(err, scheduler.ErrUnavailable) ||
								!inner && !strings.Contains(fmt.Sprint(err), change.want) {
								t.Errorf("after %v, a later request: %v", at, err)
							}
						} else if err != nil {
							t.Errorf("after %v, a later request: %v", at, err)
						}
						if <-first.done; first.Err != nil {
							t.Errorf("changed after %v: %v", at, first.Err)
						}
						first.Close()
					})
				}
			})
		}
	}
}
