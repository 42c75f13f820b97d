package gate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/tensor"
)

func TestCompareVersions(t *testing.T) {
	ascending := []string{"", "0", "01", "1", "1.2.0-alpha", "1.2.0-beta", "1.2.0-beta.2", "1.2.0-beta.11", "1.2.0",
		"1.2.0+b", "1.2.0.1",
		"2", "10-rc", "10", "2026-10", "2026-10-07", "2026-10-30", "v1", "v1.2", "v1.2.9", "v1.10.0", "v2"}
	for i, a := range ascending {
		for j, b := range ascending {
			got, want := compareVersions(a, b), 0
			switch {
			case i < j:
				want = -1
			case i > j:
				want = 1
			}
			if got != want {
				t.Errorf("compareVersions(%q, %q) = %d, expected %d", a, b, got, want)
			}
		}
	}
}

// newGate returns a gate with models whose workers keep their batches.
func newGate(t *testing.T, options ModelOptions, models ...string) (*Gate, map[string]*scheduler.Replica) {
	t.Helper()
	if options.Deadline == 0 {
		options.Deadline = 30 * time.Second
	}
	g := New(Config{
		Options: func(string) ModelOptions { return options },
		Metrics: metrics.New("test"),
	})
	s, err := scheduler.New(scheduler.Config{Hooks: scheduler.Hooks{ModelChanged: g.ModelChanged}})
	if err != nil {
		t.Fatal(err)
	}
	g.Attach(s, Server{Ready: func() (bool, string) { return true, "" }})
	t.Cleanup(s.Close)
	replicas := make(map[string]*scheduler.Replica)
	for _, m := range models {
		name, version, _ := strings.Cut(m, "/")
		r, err := s.AddReplica(scheduler.ModelID{Name: name, Version: version}, image,
			scheduler.WorkerFunc(func(b *scheduler.Batch) error {
				b.Fail(errors.New("not today"))
				return nil
			}), scheduler.ReplicaOptions{})
		if err != nil {
			t.Fatal(err)
		}
		replicas[m] = r
	}
	return g, replicas
}

var image = scheduler.Spec{
	Inputs:   []tensor.Spec{{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{-1, 2, 3}}},
	Outputs:  []tensor.Spec{{Name: "scores", DType: tensor.Float32, Shape: tensor.Shape{-1, 10}}},
	Platform: "test",
}

func TestRoutes(t *testing.T) {
	g, replicas := newGate(t, ModelOptions{}, "digits/1", "digits/2", "digits/10", "cats/1")
	for _, tc := range []struct{ route, version, want string }{
		{"digits", "", "digits/10"},
		{"digits", "2", "digits/2"},
		{"digits/1", "", "digits/1"},
		{"digits/1", "1", "digits/1"},
		{"v2/models/digits/infer", "", "digits/10"},
		{"v2/models/digits/infer", "1", "digits/1"},
		{"v2/models/digits/versions/2/infer", "", "digits/2"},
	} {
		target, err := g.View.table().resolve(tc.route, tc.version)
		if err != nil || target.ID.String() != tc.want {
			t.Errorf("%s version %q: expected %s, got %v (%v)", tc.route, tc.version, tc.want, target, err)
		}
	}
	for _, tc := range []struct {
		route, version string
		err            error
		says           string
	}{
		{"digit", "", scheduler.ErrNotFound, `"digits"`},
		{"digits/3", "", scheduler.ErrNotFound, `"10", "2", "1"`},
		{"digits", "3", scheduler.ErrNotFound, `"10", "2", "1"`},
		{"digits/1", "2", scheduler.ErrInvalidInput, `"1"`},
		{"digits/update", "", scheduler.ErrNotFound, "feedback"},
		{"v2/models/digits/explain", "", scheduler.ErrNotFound, "infer"},
		{"v2/models/nobody/infer", "", scheduler.ErrNotFound, `"nobody"`},
		{"", "", scheduler.ErrNotFound, "cats, digits"},
	} {
		_, err := g.View.table().resolve(tc.route, tc.version)
		if !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%q version %q: expected %v that says %s, got %v", tc.route, tc.version, tc.err, tc.says, err)
		}
	}

	// The default moves to the highest version that is alive, and back.
	replicas["digits/10"].Remove(errors.New("gone"))
	if target, err := g.View.table().resolve("digits", ""); err != nil || target.ID.Version != "2" {
		t.Errorf("without version 10: expected 2, got %v (%v)", target, err)
	}
	var versions []string
	for _, m := range g.Models() {
		versions = append(versions, fmt.Sprintf("%s/%s %v %v", m.Name, m.Version, m.Default, m.Ready))
	}
	want := []string{"cats/1 true true", "digits/10 false false", "digits/2 true true", "digits/1 false true"}
	if !slices.Equal(versions, want) {
		t.Errorf("models: expected %q, got %q", want, versions)
	}
}

func TestConfiguredDefaultVersion(t *testing.T) {
	g, _ := newGate(t, ModelOptions{DefaultVersion: "1"}, "digits/1", "digits/2")
	if target, err := g.View.table().resolve("digits", ""); err != nil || target.ID.Version != "1" {
		t.Errorf("expected 1, got %v (%v)", target, err)
	}
}

func TestControl(t *testing.T) {
	g, _ := newGate(t, ModelOptions{}, "digits/1")
	for route, want := range map[string]string{
		"!live":   `{"live":true}`,
		"!ready":  `{"ready":true}`,
		"!models": `{"models":[{"name":"digits","version":"1","default":true,"ready":true,"replicas":1}]}`,
	} {
		got, ok, err := g.Control(route)
		if err != nil || !ok || string(got) != want {
			t.Errorf("%s: expected %s, got %s (%v, %v)", route, want, got, ok, err)
		}
	}
	for _, route := range []string{"digits", "digits/1", "v2/models/digits/infer", "v2/models/a/b", "v2/models/stats",
		"v2/models/digits/versions/1/config", "v2/nonsense", "v2x", ""} {
		if got, ok, err := g.Control(route); ok || err != nil || got != nil {
			t.Errorf("%q is not a control request, but was answered %s (%v)", route, got, err)
		}
	}
	if _, ok, err := g.Control("!lives"); !ok || !errors.Is(err, scheduler.ErrNotFound) {
		t.Errorf("expected ErrNotFound, got %v (%v)", err, ok)
	}
	g.Drain()
	if got, _, _ := g.Control("!ready"); string(got) != `{"ready":false,"reason":"draining"}` {
		t.Errorf("draining: %s", got)
	}
}

// A client may request the list of models as fast as it can write, thousands of times ahead of the
// answers: that costs no more with a thousand models than with one.
func TestListOfModelsIsMadeOnce(t *testing.T) {
	g, _ := newGate(t, ModelOptions{}, "digits/1")
	list := func() []byte {
		answer, ok, err := g.Control("!models")
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		return answer
	}
	if n := testing.AllocsPerRun(100, func() { list() }); n > 0 {
		t.Errorf("%v allocations for each list", n)
	}
	before := list()
	g.Changed()
	if after := list(); &after[0] == &before[0] {
		t.Error("the list is still the one of the last routes")
	}
}
