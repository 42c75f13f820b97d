package selection

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/shivad/shivad/shiva/nearest"
)

// settings are the parameters of all policies; each policy accepts some. The package comment
// lists them for users.
type settings struct {
	// model, of single and shadow, is the model that answers, as "name/version" or "name"; "": the
	// only candidate.
	model    string
	weights  map[string]float64 // split, ensemble: by the same names; nil: equal or learned
	salt     string             // split: hashed with the user
	fraction float64            // shadow: of the requests that are copied to the other models

	gamma   float64 // exp3: of the requests that explore
	eta     float64 // exp3, exp4: learning rate, per unit of loss
	share   float64 // exp3, exp4: of the weight that each feedback redistributes
	epsilon float64 // epsilon-greedy: of the requests that explore
	decay   float64 // thompson: the fraction of the evidence left after each feedback
	classes float64 // ensemble: number of labels
	inherit float64 // of what was learned about a version, for its successor

	combination string  // exp4, ensemble: "vote" or "mean"
	output      string  // of the models, to vote on and judge; "" for the first output
	loss        string  // "label", "absolute" or "squared"; "" for that of the combination
	scale       float64 // difference that is a loss of 1, in the unit of the output
	step        float64 // least weight of the newest loss in a model's mean loss
}

// A parameter is a parameter of policies as users write it.
type parameter struct {
	name  string
	wants string // the values that it takes, for people
	read  func(*settings, any) bool
	value func(*settings) any // in a form that read takes
}

// common has the parameters that every policy accepts.
var common = []string{"output", "loss", "scale", "step"}

var parameters = []parameter{
	text("model", `"name/version" or "name" of a model`, func(s *settings) *string { return &s.model }, nil),
	{"weights", `for each model, by "name/version" or "name", a number of at least 0, and one above 0`,
		readWeights, func(s *settings) any { return maps.Clone(s.weights) }},
	text("salt", "a text", func(s *settings) *string { return &s.salt }, nil),
	number("fraction", "a number from 0 to 1",
		func(s *settings) *float64 { return &s.fraction }, func(v float64) bool { return v >= 0 && v <= 1 }),
	number("gamma", "a number above 0 and at most 1",
		func(s *settings) *float64 { return &s.gamma }, func(v float64) bool { return v > 0 && v <= 1 }),
	number("eta", "a number from 0 to 10",
		func(s *settings) *float64 { return &s.eta }, func(v float64) bool { return v >= 0 && v <= 10 }),
	number("share", "a number from 0 to 1",
		func(s *settings) *float64 { return &s.share }, func(v float64) bool { return v >= 0 && v <= 1 }),
	number("epsilon", "a number from 0 to 1",
		func(s *settings) *float64 { return &s.epsilon }, func(v float64) bool { return v >= 0 && v <= 1 }),
	number("decay", "a number above 0 and at most 1",
		func(s *settings) *float64 { return &s.decay }, func(v float64) bool { return v > 0 && v <= 1 }),
	number("classes", "a whole number of at least 2", func(s *settings) *float64 { return &s.classes },
		func(v float64) bool { return v >= 2 && v == math.Trunc(v) }),
	number("inherit", "a number from 0 to 1",
		func(s *settings) *float64 { return &s.inherit }, func(v float64) bool { return v >= 0 && v <= 1 }),
	text("combination", `"vote" or "mean"`,
		func(s *settings) *string { return &s.combination }, []string{"vote", "mean"}),
	text("output", "name of an output", func(s *settings) *string { return &s.output }, nil),
	text("loss", `"label", "absolute" or "squared"`,
		func(s *settings) *string { return &s.loss }, []string{"label", "absolute", "squared"}),
	number("scale", "a number above 0",
		func(s *settings) *float64 { return &s.scale }, func(v float64) bool { return v > 0 }),
	number("step", "a number from 0 to 1",
		func(s *settings) *float64 { return &s.step }, func(v float64) bool { return v >= 0 && v <= 1 }),
}

func text(name, wants string, field func(*settings) *string, among []string) parameter {
	return parameter{name, wants, func(s *settings, v any) bool {
		t, ok := v.(string)
		*field(s) = t
		return ok && (among == nil || slices.Contains(among, t))
	}, func(s *settings) any { return *field(s) }}
}

func number(name, wants string, field func(*settings) *float64, fits func(float64) bool) parameter {
	return parameter{name, wants, func(s *settings, v any) bool {
		n, ok := toNumber(v)
		*field(s) = n
		return ok && fits(n)
	}, func(s *settings) any { return *field(s) }}
}

// toNumber converts the number types that JSON and TOML decode to, and int. Infinities and NaN do
// not count as numbers.
func toNumber(v any) (n float64, ok bool) {
	switch v := v.(type) {
	case float64:
		n = v
	case int64:
		n = float64(v)
	case int:
		n = float64(v)
	case json.Number:
		var err error
		if n, err = v.Float64(); err != nil {
			return 0, false
		}
	default:
		return 0, false
	}
	return n, !math.IsInf(n, 0) && !math.IsNaN(n)
}

func readWeights(s *settings, v any) bool {
	read, sum := map[string]float64{}, 0.
	add := func(model string, v any) bool {
		n, ok := toNumber(v)
		read[model], sum = n, sum+n
		return ok && n >= 0 && model != ""
	}
	switch v := v.(type) {
	case map[string]any:
		for model, w := range v {
			if !add(model, w) {
				return false
			}
		}
	case map[string]float64:
		for model, w := range v {
			if !add(model, w) {
				return false
			}
		}
	default:
		return false
	}
	s.weights = read
	return sum > 0 && !math.IsInf(sum, 1)
}

// A Parameter describes a parameter of a policy to users.
type Parameter struct {
	Name    string
	Wants   string // the values that it takes, in words
	Default any    // nil: not expressible as a value, such as weights that are equal or learned
}

// Parameters returns all parameters of a policy; nil if there is no policy of that name.
func Parameters(policy string) []Parameter {
	p, err := Parse(policy, nil)
	if err != nil {
		return nil
	}
	defaults := p.Params()
	var list []Parameter
	list = slices.Clone(p.kind.own)
	for _, name := range slices.Concat(p.kind.accepts, common) {
		list = append(list, Parameter{name, named(name).wants, defaults[name]})
	}
	return list
}

// An Error lists all faults of a policy's parameters, or of the models that it is to choose from.
type Error struct {
	Policy string
	Faults []string // one sentence each
}

func (e *Error) Error() string {
	return fmt.Sprintf("selection: policy %s: %s", e.Policy, strings.Join(e.Faults, "; "))
}

// readParams sets the parameters in params, which must be among accepts, and returns all faults.
func (s *settings) readParams(accepts []string, params map[string]any) (faults []string) {
	for _, name := range slices.Sorted(maps.Keys(params)) {
		if !slices.Contains(accepts, name) {
			hint := ""
			if near := nearest.Names(name, accepts); len(near) > 0 {
				hint = fmt.Sprintf(" (did you mean %s?)", strings.Join(near, " or "))
			}
			faults = append(faults, fmt.Sprintf("unknown parameter %q%s; known here: %s",
				name, hint, strings.Join(accepts, ", ")))
			continue
		}
		p := named(name)
		if !p.read(s, params[name]) {
			faults = append(faults, fmt.Sprintf("parameter %s is %s, want %s", name, show(params[name]), p.wants))
		}
	}
	return faults
}

// named returns the parameter of a name that exists.
func named(name string) parameter {
	return parameters[slices.IndexFunc(parameters, func(p parameter) bool { return p.name == name })]
}

// show returns a value as JSON.
func show(v any) string {
	if b, err := json.Marshal(v); err == nil {
		return string(b)
	}
	return fmt.Sprint(v)
}
