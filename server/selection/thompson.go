package selection

import "math"

// thompson draws once from the belief about each model and asks the best, so that a model is asked
// as often as it is believed to be the best, and learns from the loss of the model asked.
//
// Thompson 1933; Chapelle and Li, "An Empirical Evaluation of Thompson Sampling", NIPS 2011,
// algorithm 2, with the discount of Raj and Kalyani, "Taming Non-stationary Bandits: A Bayesian
// Approach", arXiv:1707.09727, 2017, algorithm 1 (dTS), for rewards 1 - loss:
//
//	theta_i from Beta(1 + S_i, 1 + F_i); ask the model of the greatest
//	S_j = decay S_j, F_j = decay F_j        for every model j, then for the one that was asked
//	S_i = S_i + 1 - loss, F_i = F_i + loss
//
// A loss between 0 and 1 counts in parts, which is the mean of the coin that Agrawal and Goyal
// (COLT 2012, algorithm 2) toss for it. With decay d < 1, per feedback, evidence amounts to no more
// than 1/(1-d) losses, and a model that is not asked is slowly forgotten and tried again; decay 1
// never forgets. A new model has S = F = 0: no evidence.
type thompson struct {
	Plain
	decay, inherit float64
}

var thompsonKind = kind{
	accepts:  []string{"decay", "inherit"},
	defaults: settings{decay: 0.995, inherit: 0.5, step: 0.01},
	build:    func(s *settings) Algorithm { return thompson{decay: s.decay, inherit: s.inherit} },
	bandit:   true,
}

// best draws from the beliefs and returns the index of the best model.
func (p thompson) best(arms []Arm, r *random) int {
	chosen, greatest := 0, math.Inf(-1)
	for i := range arms {
		if theta := r.beta(1+arms[i].Good, 1+arms[i].Bad); theta > greatest {
			chosen, greatest = i, theta
		}
	}
	return chosen
}

func (p thompson) Ask(arms []Arm, r Request) []Ask {
	dice := random(r.Random)
	return []Ask{{Model: arms[p.best(arms, &dice)].Model}}
}

func (p thompson) Shares(shares []float64, arms []Arm) {
	const draws = 1000
	dice := random(1)
	for range draws {
		shares[p.best(arms, &dice)] += 1. / draws
	}
}

func (p thompson) Learn(arms []Arm, losses, _ []float64) {
	for i, loss := range losses {
		a := &arms[i]
		a.Good *= p.decay
		a.Bad *= p.decay
		if !math.IsNaN(loss) {
			a.Good += 1 - loss
			a.Bad += loss
		}
	}
}

func (p thompson) Follow(arms []Arm, i int) {
	a := &arms[i]
	a.Good *= p.inherit
	a.Bad *= p.inherit
	a.Count *= p.inherit
}
