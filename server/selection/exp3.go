package selection

import "math"

// exp3 asks one model, chosen by chance with a probability that grows exponentially with its estimated reward, and
// learns from the loss of that one. It assumes nothing of how losses come about: they may depend on time and on what
// was chosen before.
//
// It is Exp3.S of Auer, Cesa-Bianchi, Freund and Schapire, "The Nonstochastic Multiarmed Bandit Problem", SIAM Journal
// on Computing 32(1), 2002, section 8, for K models of weights w, with gamma, and with share for its alpha:
//
//	p_i = (1-gamma) w_i / sum(w) + gamma/K                       the probability of asking model i
//	x^  = (1 - loss) / p_i                                       for the model that was asked
//	w_i = w_i exp(gamma x^ / K)                                  then, for every model j:
//	w_j = w_j + e share/K * sum(w)                               with the sum from before the feedback
//
// No model's probability is below gamma/K. With share 0 it is Exp3 (section 3), which competes with the best single
// model; a share of one over the number of feedbacks T competes with the best sequence of S models, and loses more than
// it by no more than 2 sqrt(e-1) sqrt(K T (S ln(K T) + e)) in expectation, with
// gamma = min(1, sqrt(K (S ln(K T) + e) / ((e-1) T))) (there). gamma and share have no unit.
//
// Feedback may be late, and models may have joined meanwhile: the probability is the one that came with the prediction,
// but no less than gamma/K of today, so that no single feedback multiplies a weight by more than e.
type exp3 struct {
	plain
	gamma, share, inherit float64
}

var exp3Kind = kind{
	accepts:  []string{"gamma", "share", "inherit"},
	defaults: settings{gamma: 0.1, share: 0.001, inherit: 0.5, step: 0.01},
	build:    func(s *settings) algorithm { return exp3{gamma: s.gamma, share: s.share, inherit: s.inherit} },
	bandit:   true, importance: true,
}

func (p exp3) shares(shares []float64, arms []Arm) {
	for i := range arms {
		shares[i] = arms[i].LogWeight
	}
	softmax(shares)
	for i := range shares {
		shares[i] = (1-p.gamma)*shares[i] + p.gamma/float64(len(arms))
	}
}

func (p exp3) ask(arms []Arm, r Request) []Ask {
	var space [16]float64
	shares := scratch(space[:], len(arms))
	p.shares(shares, arms)
	return askOne(arms, shares, r)
}

func (p exp3) learn(arms []Arm, losses, probabilities []float64) {
	k := float64(len(arms))
	total := logSum(arms, -1)
	for i, loss := range losses {
		if !math.IsNaN(loss) {
			arms[i].LogWeight += p.gamma / k * (1 - loss) / max(probabilities[i], p.gamma/k)
		}
	}
	shareWeights(arms, total, math.E*p.share)
	level(arms)
}

func (p exp3) join(arms []Arm, i int) { joinAtMean(arms, i) }

func (p exp3) follow(arms []Arm, i int) {
	arms[i].Count *= p.inherit
	inheritWeight(arms, i, p.inherit)
}
