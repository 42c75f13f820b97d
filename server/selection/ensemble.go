package selection

import "math"

// ensemble asks all models and combines their predictions, by given weights or by weights that
// follow from the mean loss q_i of each. It learns from the loss of every model that answered.
//
//	vote:  w_i = ln((1-q_i)/q_i) + ln(classes-1), at least 0.01
//	mean:  w_i = 1/q_i
//
// The first is the weight under which a vote of independent models errs least (Nitzan and Paroush,
// "Optimal Decision Rules in Uncertain Dichotomous Choice Situations", International Economic
// Review 23(2), 1982; for more than two labels Zhu and others, "Multi-class AdaBoost", Statistics
// and Its Interface 2, 2009, algorithm 2). The second gives the mean of independent errors its
// least variance, with the squared loss for the variances (Bates and Granger, "The Combination of
// Forecasts", Operational Research Quarterly 20(4), 1969). To keep both finite, q is taken with one
// more half loss in n+1, (Q n + 1/2)/(n + 1) (Krichevsky and Trofimov 1981), where Q is the mean
// loss, recent ones weighing more, and n the number of losses that it rests on, at most 1/step.
// Without feedback all models weigh the same.
//
// Unlike with exp4, models of similar quality keep similar weights: that is better when errors are
// independent, worse when one model is simply the best.
type ensemble struct {
	Plain
	weights       map[string]float64
	vote          bool
	classes, step float64
	inherit       float64
}

var ensembleKind = kind{
	accepts:  []string{"combination", "weights", "classes", "inherit"},
	defaults: settings{combination: "vote", classes: 2, inherit: 0.5, step: 0.01},
	build: func(s *settings) Algorithm {
		return ensemble{weights: s.weights, vote: s.combination == "vote", classes: s.classes, step: s.step,
			inherit: s.inherit}
	},
}

func (p ensemble) Check(arms []Arm) []string { return checkWeights(p.weights, arms) }

func (p ensemble) Ask(arms []Arm, _ Request) []Ask {
	var space [16]float64
	weights := scratch(space[:], len(arms))
	p.Shares(weights, arms)
	return askAll(arms, weights)
}

func (p ensemble) Say(arms []Arm, i int) float64 {
	a := &arms[i]
	if p.weights != nil {
		return math.Log(given(p.weights, a)) // -Inf for 0
	}
	n := a.Count
	if p.step > 0 {
		n = min(n, 1/p.step)
	}
	q := (a.Loss*n + 0.5) / (n + 1)
	if p.vote {
		return math.Log(max(0.01, math.Log((1-q)/q)+math.Log(p.classes-1)))
	}
	return -math.Log(q)
}

func (p ensemble) Shares(shares []float64, arms []Arm) {
	for i := range arms {
		shares[i] = p.Say(arms, i)
	}
	softmax(shares)
}

func (p ensemble) Join(arms []Arm, i int) { joinAtMeanLoss(arms, i) }

func (p ensemble) Follow(arms []Arm, i int) { arms[i].Count *= p.inherit }
