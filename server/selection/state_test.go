package selection_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/budgettest"
)

// A state of format 1, as written when that was the current format. It must stay readable for ever;
// a later format adds a file.
func TestOldStatesRead(t *testing.T) {
	text, err := os.ReadFile("testdata/state-format1.json")
	if err != nil {
		t.Fatal(err)
	}
	var s selection.State
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	p := parse(t, "exp4", nil)
	if _, err := p.Select(s, selection.Request{}); err != nil {
		t.Error(err)
	}
	shares, _ := p.Shares(s)
	if s.Rounds != 42 || len(s.Models) != 2 || s.Models[1].Origin.Version != "1" || s.Models[0].Count != 40 ||
		math.Abs(shares[1]-math.Exp(-1)/(1+math.Exp(-1))) > 1e-12 {
		t.Errorf("read %+v with shares %v", s, shares)
	}
}

// A state written by hand need not have its models sorted, nor its weights relative to the
// heaviest.
func TestStateByHand(t *testing.T) {
	var s selection.State
	if err := json.Unmarshal([]byte(`{"format":1,"policy":"exp3","models":[{"model":"b/1","log_weight":3},{"model":"a/1","log_weight":2}]}`),
		&s); err != nil {
		t.Fatal(err)
	}
	if s.Models[0].Model.Name != "a" || s.Models[0].LogWeight != -1 || s.Models[1].LogWeight != 0 {
		t.Errorf("read %+v", s.Models)
	}
}

func TestStateRefused(t *testing.T) {
	for text, fault := range map[string]string{
		`{"format":2,"policy":"exp3","models":[{"model":"a/1"}]}`:                     "state has format 2; formats 1 to 1 are known here",
		`{"policy":"exp3","models":[{"model":"a/1"}]}`:                                "format 0",
		`{"format":1,"policy":"exp5","models":[{"model":"a/1"}]}`:                     `policy "exp5", which is none of single`,
		`{"format":1,"policy":"exp3"}`:                                                "0 models",
		`{"format":1,"policy":"exp3","models":[{}]}`:                                  `model "/"`,
		`{"format":1,"policy":"exp3","models":[{"model":"a"}]}`:                       `model "a" is not of the form name/version`,
		`{"format":1,"policy":"exp3","models":[{"model":"a/1/2"}]}`:                   `model "a/1/2" is not`,
		`{"format":1,"policy":"exp3","models":[{"model":"a/1"},{"model":"a/1"}]}`:     "a/1 is there twice",
		`{"format":1,"policy":"exp3","models":[{"model":"a/1","loss":1.5}]}`:          "loss 1.5, want 0 to 1",
		`{"format":1,"policy":"exp3","models":[{"model":"a/1","count":-1}]}`:          "count -1",
		`{"format":1,"policy":"exp3","models":[{"model":"a/1","log_weight":-1e300}]}`: "log_weight -1e+300",
		`{"format":1,"policy":"exp3","models":[{"model":"a/1","good":-0.5}]}`:         "good -0.5",
		`{"format":1,"policy":"exp3","models":[{"model":"a/1","bad":1e999}]}`:         "1e999",
		`{"format":1,"policy":"exp3","rounds":-1,"models":[{"model":"a/1"}]}`:         "-1",
		`{"format":1,"policy":"exp3","models":[{"model":"a/1"}`:                       "unexpected end",
		`[]`: "cannot unmarshal array",
	} {
		s := selection.State{Policy: "kept"}
		if err := json.Unmarshal([]byte(text), &s); err == nil || !strings.Contains(err.Error(), fault) || s.Policy != "kept" {
			t.Errorf("%s: %+v (%v), want an error with %q", text, s, err, fault)
		}
	}
}

// Any input is either an error or a state that every function of its policy handles without a NaN.
func FuzzState(f *testing.F) {
	policies := map[string]*selection.Policy{}
	for _, name := range selection.Names() {
		policies[name] = parse(f, name, nil)
		var models []selection.Model
		for _, version := range []string{"1", "2"}[:2-btoi(name == "single" || name == "shadow")] {
			models = append(models, selection.Model{Name: "a", Version: version})
		}
		text, err := json.Marshal(fresh(f, policies[name], models))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, uint64(1))
	}
	old, err := os.ReadFile("testdata/state-format1.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(old, uint64(2))
	f.Add([]byte(`{"format":1,"policy":"thompson","models":[{"model":"a/1","good":1e15,"bad":1e-300},{"model":"b/1","origin":"a/1"}]}`),
		uint64(3))
	f.Add([]byte(`{"format":1,"policy":"exp3","models":[{"model":"a/1","log_weight":1e15},{"model":"b/1","log_weight":-1e15}]}`),
		uint64(4))
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		budgettest.Input(t)
		var s selection.State
		if json.Unmarshal(text, &s) != nil {
			return
		}
		p := policies[s.Policy]
		plan, err := p.Select(s, selection.Request{User: "u", Random: seed})
		if err != nil {
			return // single and shadow do not know which model answers
		}
		predictions := says(plan, int(seed%8))
		if a := p.Combine(s, predictions, nil); a.Outputs == nil || !(a.Confidence >= 0 && a.Confidence <= 1) {
			t.Fatalf("answer %v of %s", a, text)
		}
		r := rand.New(rand.NewPCG(seed, 0))
		for range 3 {
			losses := map[selection.Model]float64{}
			for _, a := range s.Models {
				losses[a.Model] = r.Float64()
			}
			if s, err = p.Feedback(s, predictions, selection.ByLosses(losses)); err != nil {
				t.Fatal(err)
			}
		}
		shares, err := p.Shares(s)
		if err != nil {
			t.Fatal(err)
		}
		var sum float64
		for _, share := range shares {
			sum += share
		}
		if math.Abs(sum-1) > 1e-6 {
			t.Fatalf("shares %v of %s", shares, text)
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var read selection.State
		if err := json.Unmarshal(again, &read); err != nil {
			t.Fatalf("%s became %s, which does not read: %v", text, again, err)
		}
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
