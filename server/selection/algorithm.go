package selection

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/shivad/shivad/shiva/tensor"
)

// An Algorithm is the part in which policies differ. Its methods are pure functions of their
// arguments, may be called from any goroutine, and retain none of their arguments. Methods that
// change models get a copy. Slices passed with arms are parallel to them; arms are sorted by model,
// and never empty. A type that embeds Plain needs Ask and Shares only.
type Algorithm interface {
	// Check returns which parameters do not fit these models, one sentence each.
	Check(arms []Arm) []string
	// Ask returns the models to ask, the most important first: at least one that is no shadow.
	Ask(arms []Arm, r Request) []Ask
	// Shares fills in the part of each model in the answers, summing to 1: the probability of being
	// chosen, or its weight among those combined.
	Shares(shares []float64, arms []Arm)
	// Say returns the natural logarithm of the weight of arm i when answers are combined.
	Say(arms []Arm, i int) float64
	// Learn applies the losses, NaN for unknown ones, given the probabilities with which models
	// were chosen, 0 for unknown ones. It is called after each arm's mean loss was updated.
	Learn(arms []Arm, losses, probabilities []float64)
	// Join sets the initial numbers of arm i, which is new among others.
	Join(arms []Arm, i int)
	// Follow sets the initial numbers of arm i, which has all of its predecessor's numbers.
	Follow(arms []Arm, i int)
}

// An Accepter is an Algorithm that cannot work with every model. The error says what in a model's
// declaration it cannot take; the caller that links such a model gets it.
type Accepter interface {
	Accepts(inputs, outputs []tensor.Spec) error
}

// Plain implements Algorithm except for Ask and Shares: all models fit and have the same weight,
// only mean losses are learned, and a version does not inherit its predecessor's.
type Plain struct{}

// Check finds no fault.
func (Plain) Check([]Arm) []string { return nil }

// Say returns the same for all models.
func (Plain) Say([]Arm, int) float64 { return 0 }

// Learn does nothing.
func (Plain) Learn([]Arm, []float64, []float64) {}

// Join leaves a new model as it is.
func (Plain) Join([]Arm, int) {}

// Follow forgets the mean loss of the predecessor.
func (Plain) Follow(arms []Arm, i int) { arms[i].Loss, arms[i].Count = 0, 0 }

// A Kind is a policy that a program adds to those of this package.
type Kind struct {
	Name string // as applications name it

	// Parameters that it takes in addition to output, loss, scale and step, and to combination if
	// it asks several models.
	Parameters []Parameter

	// New makes an Algorithm from the parameters' values, in the types that JSON or TOML decode to;
	// parameters that were left out have their defaults. The error says what is wrong with them.
	New func(params map[string]any) (Algorithm, error)

	// One: the policy has one model answer, and learns the loss of that one. Other policies learn
	// every known loss.
	One bool
}

var registry = struct {
	sync.RWMutex
	kinds map[string]kind
	added []string // names, sorted
}{kinds: func() map[string]kind {
	kinds := map[string]kind{}
	for _, k := range ours {
		kinds[k.name] = k.kind
	}
	return kinds
}()}

// Register adds a policy, for all servers of the process: call it before a server is opened, as
// from an init function. It panics if the name is taken or the Kind lacks something. Servers that
// share a store should know the same policies: a server that does not know an application's policy
// leaves that application out, and logs that.
func Register(k Kind) {
	registry.Lock()
	defer registry.Unlock()
	if _, taken := registry.kinds[k.Name]; taken || k.Name == "" || k.New == nil {
		panic(fmt.Sprintf("selection: policy %q is there already, or has no name or no New", k.Name))
	}
	made := kind{own: k.Parameters, make: k.New, bandit: k.One, defaults: settings{step: 0.01}}
	if !k.One {
		made.accepts = []string{"combination"}
		made.defaults.combination = "vote"
	}
	for _, p := range k.Parameters {
		if slices.Contains(made.accepts, p.Name) || slices.Contains(common, p.Name) {
			panic(fmt.Sprintf("selection: policy %q: every policy has a parameter %s", k.Name, p.Name))
		}
	}
	registry.kinds[k.Name] = made
	registry.added = append(registry.added, k.Name)
	slices.Sort(registry.added)
}

// kindOf finds a policy.
func kindOf(name string) (kind, bool) {
	registry.RLock()
	defer registry.RUnlock()
	k, ok := registry.kinds[name]
	return k, ok
}

// Names returns the names of all policies: those of this package, and then those that were
// registered, sorted.
func Names() []string {
	var names []string
	for _, k := range ours {
		names = append(names, k.name)
	}
	registry.RLock()
	defer registry.RUnlock()
	return append(names, registry.added...)
}

func listNames() string { return strings.Join(Names(), ", ") }

// Accepts returns what in a model's declaration the policy cannot take, or nil: a mean needs an
// output of a float dtype, and a difference as the loss needs an output of numbers to judge.
func (p *Policy) Accepts(inputs, outputs []tensor.Spec) error {
	i := 0
	if name := p.settings.output; name != "" {
		i = slices.IndexFunc(outputs, func(s tensor.Spec) bool { return s.Name == name })
	}
	judged := i >= 0 && i < len(outputs)
	switch {
	case !judged && !p.kind.bandit && p.settings.output != "":
		return &Error{p.name, []string{fmt.Sprintf("parameter output is %q, which the model does not have: it has %s",
			p.settings.output, describe(outputs))}}
	case p.settings.combination == "mean" &&
		!slices.ContainsFunc(outputs, func(s tensor.Spec) bool { return s.DType.IsFloat() }):
		return &Error{p.name,
			[]string{fmt.Sprintf(`parameter combination is "mean", and the model has no output of a float dtype to take it of: it has %s; "vote" takes any`,
				describe(outputs))}}
	case judged && p.settings.loss != "label" && outputs[i].DType == tensor.Bytes:
		return &Error{p.name,
			[]string{fmt.Sprintf(`loss %q is a difference of numbers, and output %q of the model holds texts: "label" judges these, and parameter output names another one`,
				p.settings.loss, outputs[i].Name)}}
	}
	if a, ok := p.algorithm.(Accepter); ok {
		if err := a.Accepts(inputs, outputs); err != nil {
			return &Error{p.name, []string{err.Error()}}
		}
	}
	return nil
}

func describe(specs []tensor.Spec) string {
	list := make([]string, len(specs))
	for i, s := range specs {
		list[i] = fmt.Sprintf("%s (%s)", s.Name, s.DType)
	}
	return strings.Join(list, ", ")
}
