package selection

import (
	"fmt"
	"slices"
	"strings"
)

// A Policy is one of the policies of this package with its parameters. It does not change once parsed; its methods may
// be called from any goroutine. They are pure: what they return follows from their arguments alone.
type Policy struct {
	name     string
	settings settings
	kind     kind
	algorithm
}

// A kind is a policy before its parameters are known.
type kind struct {
	accepts  []string // parameters, beside the common ones
	defaults settings
	build    func(*settings) algorithm

	// bandit policies ask one model to answer, and learn the loss of that one. The others learn every loss there is.
	bandit bool
	// importance: learn divides by the probability with which the model was chosen.
	importance bool
}

// An algorithm is what makes one policy another than the next. It is given the models of a state, or a copy that it may
// change. Slices beside arms are parallel to them.
type algorithm interface {
	// check gives what in the parameters does not fit these models.
	check(arms []Arm) []string
	// ask gives whom to ask, the most important first.
	ask(arms []Arm, r Request) []Ask
	// shares fills in what each model contributes to the answers: the probability of being chosen, or its weight among
	// those combined.
	shares(shares []float64, arms []Arm)
	// say is the natural logarithm of the weight of arm i when answers are combined.
	say(arms []Arm, i int) float64
	// learn takes the losses in, NaN for the unknown ones, and the probabilities with which models were chosen. It comes
	// after each arm's mean loss was brought up to date.
	learn(arms []Arm, losses, probabilities []float64)
	// join gives arm i, which is new beside others, what it starts with.
	join(arms []Arm, i int)
	// follow gives arm i, which was its predecessor until now, what it starts with.
	follow(arms []Arm, i int)
}

// kinds are all policies.
var kinds = map[string]kind{
	"single":         singleKind,
	"split":          splitKind,
	"shadow":         shadowKind,
	"exp3":           exp3Kind,
	"exp4":           exp4Kind,
	"epsilon-greedy": epsilonKind,
	"thompson":       thompsonKind,
	"ensemble":       ensembleKind,
}

// Names are the policies that there are.
func Names() []string {
	return []string{"single", "split", "shadow", "exp3", "exp4", "epsilon-greedy", "thompson", "ensemble"}
}

func listNames() string { return strings.Join(Names(), ", ") }

// Parse gives the policy of that name. Parameters that params leaves out have their defaults. Values are what JSON or
// TOML decode to. The error is an *Error that lists all faults.
func Parse(name string, params map[string]any) (*Policy, error) {
	k, ok := kinds[name]
	if !ok {
		return nil, &Error{name, []string{"there is no such policy; there are " + listNames()}}
	}
	p := &Policy{name: name, settings: k.defaults, kind: k}
	s := &p.settings
	s.scale = 1
	if faults := s.readParams(p.accepts(), params); faults != nil {
		return nil, &Error{name, faults}
	}
	if s.loss == "" {
		s.loss = "label"
		if s.combination == "mean" {
			s.loss = "absolute"
		}
	}
	p.algorithm = k.build(s)
	return p, nil
}

func (p *Policy) accepts() []string { return slices.Concat(p.kind.accepts, common) }

// Name is the name that the policy was parsed by.
func (p *Policy) Name() string { return p.name }

// Params are all parameters of the policy with the values in force, as Parse takes them. The map is the caller's.
func (p *Policy) Params() map[string]any {
	params := map[string]any{}
	for _, name := range p.accepts() {
		if name == "weights" && p.settings.weights == nil {
			continue // equal or learned, which no value says
		}
		params[name] = named(name).value(&p.settings)
	}
	return params
}

// A Request is what a policy knows of the request that it chooses models for.
type Request struct {
	User   string // "" for nobody in particular
	Random uint64 // uniformly distributed, and different for every request

	// Without are models that cannot be asked now, for want of a replica perhaps. The choice is made between the others
	// as if there were no more.
	Without []Model
}

// A Plan is whom to ask. It is to be kept with the predictions until their feedback has come.
type Plan struct {
	Asks []Ask // the most important first: where not all can be asked, leave out the last
}

// An Ask is one model that is to be asked.
type Ask struct {
	Model Model `json:"model"`

	// Shadow: what the model says is compared and learned from, and never part of the answer, which does not wait for it.
	Shadow bool `json:"shadow,omitzero"`

	// Probability with which the model was among those asked, in (0, 1]; 0 where it has no closed form (thompson). The
	// feedback must bring it back: exp3 divides by it.
	Probability float64 `json:"probability,omitzero"`
}

// Select chooses the models to ask now. It fails when the state is another policy's, or has models that the parameters
// do not fit, which Migrate mends; and when nobody who could answer is left of the models.
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
	if faults := p.check(arms); faults != nil {
		return Plan{}, &Error{p.name, faults}
	}
	return Plan{p.ask(arms, r)}, nil
}

// owns tells whether s is a state of this policy.
func (p *Policy) owns(s State) error {
	if s.Policy != p.name {
		return &Error{p.name, []string{fmt.Sprintf("this is a state of policy %q", s.Policy)}}
	}
	if len(s.Models) == 0 {
		return &Error{p.name, []string{"the state has no models"}}
	}
	return nil
}

// Shares tells what part each model has in the answers now, parallel to s.Models and summing to 1: the probability of
// being chosen for a user whom the policy does not know, or the weight in the combination. For people and curves; those
// of thompson are estimated from 1,000 draws, within about 0.03.
func (p *Policy) Shares(s State) ([]float64, error) {
	if err := p.owns(s); err != nil {
		return nil, err
	}
	if faults := p.check(s.Models); faults != nil {
		return nil, &Error{p.name, faults}
	}
	shares := make([]float64, len(s.Models))
	p.shares(shares, s.Models)
	return shares, nil
}

// plain is the part of an algorithm that keeps nothing but mean losses: all models have the same say, and what a
// version has lost its successor does not answer for.
type plain struct{}

func (plain) check([]Arm) []string              { return nil }
func (plain) say([]Arm, int) float64            { return 0 }
func (plain) learn([]Arm, []float64, []float64) {}
func (plain) join([]Arm, int)                   {}
func (plain) follow(arms []Arm, i int)          { arms[i].Loss, arms[i].Count = 0, 0 }

// askOne draws one model by the shares.
func askOne(arms []Arm, shares []float64, r Request) []Ask {
	dice := random(r.Random)
	i := draw(shares, dice.float())
	return []Ask{{Model: arms[i].Model, Probability: shares[i]}}
}

// askAll has all models asked, in the order of their weights.
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
