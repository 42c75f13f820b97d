package selection

import "fmt"

// single asks one model: the one that parameter model names, or the only candidate. It learns the
// mean loss of the model, for display only.
type single struct {
	Plain
	model string
}

var singleKind = kind{
	accepts: []string{"model"},
	build:   func(s *settings) Algorithm { return single{model: s.model} },
	bandit:  true,
}

func (p single) Check(arms []Arm) []string {
	_, faults := answering(arms, p.model)
	return faults
}

// answering returns the index of the one model that a parameter names.
func answering(arms []Arm, name string) (int, []string) {
	found := -1
	for i := range arms {
		if name != "" && !arms[i].is(name) {
			continue
		}
		if found >= 0 {
			if name == "" {
				return -1, []string{fmt.Sprintf("parameter model must say which of %d models answers", len(arms))}
			}
			return -1, []string{fmt.Sprintf("parameter model is %q, which may be %s and %s: add the version",
				name, arms[found].Model, arms[i].Model)}
		}
		found = i
	}
	if found < 0 {
		return -1, []string{fmt.Sprintf("parameter model is %q, which is none of the models", name)}
	}
	return found, nil
}

func (p single) Ask(arms []Arm, _ Request) []Ask {
	i, _ := answering(arms, p.model)
	return []Ask{{Model: arms[i].Model, Probability: 1}}
}

func (p single) Shares(shares []float64, arms []Arm) {
	i, _ := answering(arms, p.model)
	shares[i] = 1
}
