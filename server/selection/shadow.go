package selection

// shadow has one model answer, the one that parameter model names, and sends a copy of a fraction
// of the requests to all other models, whose answers are compared and judged and never returned. It
// learns the mean loss of each, which shows whether a candidate would do better on the same
// requests; Combine reports how far each agreed with the answer.
type shadow struct {
	Plain
	model    string
	fraction float64
}

var shadowKind = kind{
	accepts:  []string{"model", "fraction"},
	defaults: settings{fraction: 1},
	build:    func(s *settings) Algorithm { return shadow{model: s.model, fraction: s.fraction} },
}

func (p shadow) Check(arms []Arm) []string { return single{model: p.model}.Check(arms) }

func (p shadow) Ask(arms []Arm, r Request) []Ask {
	first, _ := answering(arms, p.model)
	asks := make([]Ask, 1, len(arms))
	asks[0] = Ask{Model: arms[first].Model, Probability: 1}
	if dice := random(r.Random); dice.float() >= p.fraction {
		return asks
	}
	for i := range arms {
		if i != first {
			asks = append(asks, Ask{Model: arms[i].Model, Shadow: true, Probability: p.fraction})
		}
	}
	return asks
}

func (p shadow) Shares(shares []float64, arms []Arm) { single{model: p.model}.Shares(shares, arms) }
