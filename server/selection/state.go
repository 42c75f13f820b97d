package selection

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// Format is the version of the JSON of a State that this package writes. It reads this version and
// all earlier ones.
const Format = 1

// MaxModels is how many candidate models a state may have.
const MaxModels = 256

// maxEvidence bounds sums and logarithms in a state that is read. Learning stays far below: 10^7
// feedbacks change no number of a state by more than 10^7 times ten.
const maxEvidence = 1e15

// A State is what a policy has learned for one key (application, user). It is a value: the methods
// of Policy never change a State, and return a new one. Copies share Models, so only read its
// fields.
//
// It marshals to JSON; unmarshalling checks it, and returns an equal State.
type State struct {
	Policy string `json:"policy"` // name of the policy whose state this is
	Rounds uint64 `json:"rounds"` // feedbacks that taught something
	Models []Arm  `json:"models"` // sorted by model

	// Aside is what was learned about models that are not candidates now, in the order in which
	// they left. If they return, or are candidates at another server all the time, they go on with
	// it. The 64 that left last are kept, and of one name the last three.
	Aside []Arm `json:"aside,omitempty"`

	// Others has the states of other policies for the same key, from before the policy was changed.
	// They have no Others.
	Others []State `json:"others,omitempty"`
}

// An Arm is what a policy has learned about one model. The bandit literature calls a choice an arm.
type Arm struct {
	Model Model `json:"model"`

	// Origin is the first version in the chain of versions that this one replaced; the zero Model
	// if it replaced none. Parameters that name the origin apply to this model, too, and split
	// keeps its users.
	Origin Model `json:"origin,omitzero"`

	// Loss is the mean of the observed losses, recent ones weighing more if the policy has a step;
	// in [0, 1], 0 if there were none. Count is the number of losses, reduced by inheritance from
	// an earlier version.
	Loss  float64 `json:"loss"`
	Count float64 `json:"count"`

	// LogWeight, of exp3 and exp4: natural logarithm of the weight, relative to that of the
	// heaviest model, which has 0.
	LogWeight float64 `json:"log_weight,omitzero"`

	// Good and Bad, of thompson: discounted sums of 1 - loss and of loss.
	Good float64 `json:"good,omitzero"`
	Bad  float64 `json:"bad,omitzero"`

	// Own is for policies that a program registers: any numbers that they keep per model.
	Own [4]float64 `json:"own,omitzero"`
}

// origin returns the version by which users and parameters know the model.
func (a *Arm) origin() Model {
	if a.Origin != (Model{}) {
		return a.Origin
	}
	return a.Model
}

// is reports whether a parameter with the value s, "name/version" or "name", means this model.
func (a *Arm) is(s string) bool {
	return s == a.Model.Name || matches(s, a.Model) || a.Origin != (Model{}) && matches(s, a.Origin)
}

// matches reports whether s equals m.String(), without building that string.
func matches(s string, m Model) bool {
	n := len(m.Name)
	return len(s) == n+1+len(m.Version) && s[:n] == m.Name && s[n] == '/' && s[n+1:] == m.Version
}

// find returns the index of m, or -1.
func (s State) find(m Model) int {
	return slices.IndexFunc(s.Models, func(a Arm) bool { return a.Model == m })
}

// stored is the JSON of a state.
type stored struct {
	Format int `json:"format"`
	bare
}

// bare is State without its methods.
type bare State

// MarshalJSON writes the state in the current Format.
func (s State) MarshalJSON() ([]byte, error) { return json.Marshal(stored{Format, bare(s)}) }

// UnmarshalJSON reads a state of the current Format or an earlier one. It fails, and leaves s
// unchanged, if the state is of a later format, if there are no models, if a model is duplicated or
// misnamed, or if no policy could have written one of the numbers.
func (s *State) UnmarshalJSON(data []byte) error {
	var in stored
	if err := json.Unmarshal(data, &in); err != nil {
		return fmt.Errorf("selection: state: %w", err)
	}
	if in.Format < 1 || in.Format > Format {
		return fmt.Errorf("selection: state has format %d; formats 1 to %d are known here", in.Format, Format)
	}
	read := State(in.bare)
	if _, ok := kindOf(read.Policy); !ok {
		return fmt.Errorf("selection: state of a policy %q, which is none of %s", read.Policy, listNames())
	}
	if err := read.check(); err != nil {
		return fmt.Errorf("selection: state of %s: %w", read.Policy, err)
	}
	slices.SortFunc(read.Models, byModel)
	read.level()
	*s = read
	return nil
}

func byModel(a, b Arm) int { return a.Model.compare(b.Model) }

// check returns an error if no policy could have written the state.
func (s State) check() error {
	if n := len(s.Models); n < 1 || n > MaxModels {
		return fmt.Errorf("%d models, want 1 to %d", n, MaxModels)
	}
	if n := len(s.Aside); n > maxAside {
		return fmt.Errorf("%d models aside, want at most %d", n, maxAside)
	}
	seen := make(map[Model]bool, len(s.Models)+len(s.Aside))
	if err := checkArms(s.Models, seen); err != nil {
		return err
	}
	if err := checkArms(s.Aside, seen); err != nil {
		return err
	}
	policies := []string{s.Policy}
	for _, other := range s.Others {
		if len(other.Others) > 0 {
			return fmt.Errorf("the state of policy %s, one of others, has others itself", other.Policy)
		}
		if slices.Contains(policies, other.Policy) {
			return fmt.Errorf("policy %s has two states", other.Policy)
		}
		policies = append(policies, other.Policy)
	}
	return nil
}

func checkArms(arms []Arm, seen map[Model]bool) error {
	for i := range arms {
		a := &arms[i]
		if err := a.Model.check(); err != nil {
			return err
		}
		if seen[a.Model] {
			return fmt.Errorf("model %s is there twice", a.Model)
		}
		seen[a.Model] = true
		for _, n := range []struct {
			what          string
			value, lo, hi float64
		}{
			{"loss", a.Loss, 0, 1}, {"count", a.Count, 0, maxEvidence},
			{"log_weight", a.LogWeight, -maxEvidence, maxEvidence},
			{"good", a.Good, 0, maxEvidence}, {"bad", a.Bad, 0, maxEvidence},
			{"own", slices.Min(a.Own[:]), -maxEvidence, maxEvidence},
			{"own", slices.Max(a.Own[:]), -maxEvidence, maxEvidence},
		} {
			if !(n.value >= n.lo && n.value <= n.hi) { // also refuses NaN
				return fmt.Errorf("model %s has %s %g, want %g to %g", a.Model, n.what, n.value, n.lo, n.hi)
			}
		}
	}
	return nil
}

// level makes the logarithm of the heaviest candidate's weight 0, which changes no weight relative
// to another. So weights never overflow, and underflow only where they are negligible.
func (s *State) level() {
	top := math.Inf(-1)
	for i := range s.Models {
		top = max(top, s.Models[i].LogWeight)
	}
	if top != 0 {
		shift(s.Models, -top)
		shift(s.Aside, -top)
	}
}

// shift adds to logarithms of weights, within their bounds: beyond these a model has no weight, or
// all of it.
func shift(arms []Arm, by float64) {
	for i := range arms {
		arms[i].LogWeight = min(max(arms[i].LogWeight+by, -maxEvidence), maxEvidence)
	}
}
