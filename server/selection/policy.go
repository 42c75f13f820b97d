package selection

import (
	"fmt"
	"maps"
	"slices"
)

// A Policy is a policy with its parameters. It does not change once parsed; its methods may be
// called from any goroutine. They are pure: their results follow from their arguments alone.
type Policy struct {
	name     string
	settings settings
	kind     kind
	own      map[string]any // values of a registered kind's own parameters

	algorithm Algorithm
}

// A kind is a policy before its parameters are known.
type kind struct {
	accepts  []string // parameters, in addition to the common ones
	defaults settings
	build    func(*settings) Algorithm

	// bandit policies ask one model to answer, and learn the loss of that one. Other policies learn
	// every known loss.
	bandit bool
	// importance: Learn divides by the probability with which the model was chosen.
	importance bool

	// For a registered kind, instead of build.
	own  []Parameter
	make func(map[string]any) (Algorithm, error)
}

// ours are the policies of this package, in the order of [Names].
var ours = []struct {
	name string
	kind kind
}{
	{"single", singleKind},
	{"split", splitKind},
	{"shadow", shadowKind},
	{"exp3", exp3Kind},
	{"exp4", exp4Kind},
	{"epsilon-greedy", epsilonKind},
	{"thompson", thompsonKind},
	{"ensemble", ensembleKind},
}

// Parse returns the policy of that name. Parameters that params leaves out have their defaults.
// Values have the types that JSON or TOML decode to. The error is an *Error that lists all faults.
func Parse(name string, params map[string]any) (*Policy, error) {
	k, ok := kindOf(name)
	if !ok {
		return nil, &Error{name, []string{"there is no such policy; there are " + listNames()}}
	}
	p := &Policy{name: name, settings: k.defaults, kind: k}
	s := &p.settings
	s.scale = 1
	params = maps.Clone(params)
	p.own = take(params, k.own)
	if faults := s.readParams(p.accepts(), params); faults != nil {
		return nil, &Error{name, faults}
	}
	if s.loss == "" {
		s.loss = "label"
		if s.combination == "mean" {
			s.loss = "absolute"
		}
	}
	if k.make == nil {
		p.algorithm = k.build(s)
		return p, nil
	}
	var err error
	if p.algorithm, err = k.make(maps.Clone(p.own)); err != nil {
		return nil, &Error{name, []string{err.Error()}}
	}
	return p, nil
}

func (p *Policy) accepts() []string {
	names := make([]string, len(p.kind.own))
	for i, own := range p.kind.own {
		names[i] = own.Name
	}
	return slices.Concat(names, p.kind.accepts, common)
}

// take moves the values of own parameters out of params, or their defaults.
func take(params map[string]any, own []Parameter) map[string]any {
	values := make(map[string]any, len(own))
	for _, p := range own {
		v, given := params[p.Name]
		if !given {
			v = p.Default
		}
		values[p.Name] = v
		delete(params, p.Name)
	}
	return values
}

// Name returns the name that was given to Parse.
func (p *Policy) Name() string { return p.name }

// Params returns all parameters of the policy with the values in effect, as Parse takes them. The
// caller owns the map.
func (p *Policy) Params() map[string]any {
	params := maps.Clone(p.own)
	for _, name := range slices.Concat(p.kind.accepts, common) {
		if name == "weights" && p.settings.weights == nil {
			continue // equal or learned, which no value expresses
		}
		params[name] = named(name).value(&p.settings)
	}
	return params
}

// A Request is what a policy knows about the request that it chooses models for.
type Request struct {
	User   string // "" if unknown
	Random uint64 // uniformly distributed, and different for every request

	// Without has the models that cannot be asked now, perhaps because they have no replica. The
	// policy chooses among the other models as if there were no more.
	Without []Model
}

// A Plan says which models to ask. The caller stores it with the predictions until feedback on them
// arrives.
type Plan struct {
	Asks []Ask // the most important first: if not all can be asked, leave out the last
}

// An Ask is one model to be asked.
type Ask struct {
	Model Model `json:"model"`

	// Shadow: the prediction is compared and learned from, but is never part of the answer, which
	// does not wait for it.
	Shadow bool `json:"shadow,omitzero"`

	// Probability with which the model was among those asked, in (0, 1]; 0 where it has no closed
	// form (thompson). Pass it back with the feedback: exp3 divides by it.
	Probability float64 `json:"probability,omitzero"`
}

// Select chooses the models to ask now. It fails if the state is another policy's, or has models
// that the parameters do not fit, which Migrate repairs; and if no model that could answer is left.
func (p *Policy) Select(s State, r Request) (Plan, error) {
	if err := p.owns(s); err != nil {
		return Plan{}, err
	}
	arms := s.Models
	if len(r.Without) > 0 {
		arms = slices.DeleteFunc(slices.Clone(arms), func(a Arm) bool { return slices.Contains(r.Without, a.Model) })
		if len(arms) == 0 {
			return Plan{}, &Error{p.name, []string{"none of the models can be asked now"}}
		}
	}
	if faults := p.algorithm.Check(arms); faults != nil {
		return Plan{}, &Error{p.name, faults}
	}
	return Plan{p.algorithm.Ask(arms, r)}, nil
}

// owns reports whether s is a state of this policy.
func (p *Policy) owns(s State) error {
	if s.Policy != p.name {
		return &Error{p.name, []string{fmt.Sprintf("this is a state of policy %q", s.Policy)}}
	}
	if len(s.Models) == 0 {
		return &Error{p.name, []string{"the state has no models"}}
	}
	return nil
}

// Shares returns the current part of each model in the answers, parallel to s.Models and summing to
// 1: the probability of being chosen for a user that the policy does not know, or the weight in the
// combination. Use it for display; the shares of thompson are estimated from 1,000 draws, within
// about 0.03.
func (p *Policy) Shares(s State) ([]float64, error) {
	if err := p.owns(s); err != nil {
		return nil, err
	}
	if faults := p.algorithm.Check(s.Models); faults != nil {
		return nil, &Error{p.name, faults}
	}
	shares := make([]float64, len(s.Models))
	p.algorithm.Shares(shares, s.Models)
	return shares, nil
}

// askOne draws one model by the shares.
func askOne(arms []Arm, shares []float64, r Request) []Ask {
	dice := random(r.Random)
	i := draw(shares, dice.float())
	return []Ask{{Model: arms[i].Model, Probability: shares[i]}}
}

// askAll returns asks for all models, in the order of their weights.
func askAll(arms []Arm, weights []float64) []Ask {
	asks := make([]Ask, 0, len(arms))
	var space [16]int
	order := space[:0] // of asks, as indices of arms
	for i := range arms {
		at := len(order)
		for at > 0 && weights[order[at-1]] < weights[i] {
			at--
		}
		order = slices.Insert(order, at, i)
	}
	for _, i := range order {
		asks = append(asks, Ask{Model: arms[i].Model, Probability: 1})
	}
	return asks
}
