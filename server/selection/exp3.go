package selection

import "math"

// exp3 asks one model, chosen at random with a probability that falls exponentially with its
// estimated loss, and learns from the loss of that one. It assumes nothing about how losses arise:
// they may depend on time and on earlier choices.
//
// It is Exp3 with losses (Bubeck and Cesa-Bianchi, "Regret Analysis of Stochastic and Nonstochastic
// Multi-armed Bandit Problems", 2012, section 3.1), explores as Exp3 of Auer, Cesa-Bianchi, Freund
// and Schapire does (SIAM Journal on Computing 32(1), 2002, section 3), and shares weight like exp4
// here, for K models of weights w:
//
//	p_i = (1-gamma) w_i / sum(w) + gamma/K        the probability of asking model i
//	l^  = loss / p_i                              for the model that was asked, which is i
//	w_i = w_i exp(-eta l^)                        then, for every model j:
//	w_j = (1-share) w_j + share/K * sum(w)
//
// No model's probability is below gamma/K. Thanks to share, a model that was bad is found again
// within a number of rounds that does not depend on how long it was bad. Over T feedbacks the
// expected loss exceeds that of the best sequence of models with m changes by no more than
//
//	((m+1) ln K - m ln(share) - (T-m-1) ln(1-share)) / eta + eta K T / (2 (1-gamma)) + gamma T
//
// which is exp4's bound with the estimate's second moment, of which K/(1-gamma) bounds the
// mean. All three parameters have no unit.
//
// The rate eta is not tied to gamma, and losses are estimated, not rewards. With one parameter for
// both (Exp3.S, of the same paper, with gamma 0.1) a user with three models, of which one errs on
// 10 %, one on 35 % and one on 70 % of the requests, still lost 0.31 per request after 100
// feedbacks and 0.23 after 500; with these defaults it is 0.20 and 0.15 (choosing at random loses
// 0.38).
//
// Feedback may be late, and models may have joined meanwhile: p_i is the probability stored with
// the prediction, but at least the current gamma/K, so that no single feedback divides a weight by
// more than exp(eta K/gamma), from which share lets it recover.
type exp3 struct {
	Plain
	gamma, eta, share, inherit float64
}

var exp3Kind = kind{
	accepts:  []string{"gamma", "eta", "share", "inherit"},
	defaults: settings{gamma: 0.05, eta: 0.2, share: 0.001, inherit: 0.5, step: 0.01},
	build: func(s *settings) Algorithm {
		return exp3{gamma: s.gamma, eta: s.eta, share: s.share, inherit: s.inherit}
	},
	bandit: true, importance: true,
}

func (p exp3) Shares(shares []float64, arms []Arm) {
	exp4{}.Shares(shares, arms)
	for i := range shares {
		shares[i] = (1-p.gamma)*shares[i] + p.gamma/float64(len(arms))
	}
}

func (p exp3) Ask(arms []Arm, r Request) []Ask {
	var space [16]float64
	shares := scratch(space[:], len(arms))
	p.Shares(shares, arms)
	return askOne(arms, shares, r)
}

func (p exp3) Learn(arms []Arm, losses, probabilities []float64) {
	least := p.gamma / float64(len(arms))
	for i, loss := range losses {
		if !math.IsNaN(loss) {
			arms[i].LogWeight -= p.eta * loss / max(probabilities[i], least)
		}
	}
	shareWeights(arms, p.share)
}

func (p exp3) Join(arms []Arm, i int) { joinAtMean(arms, i) }

func (p exp3) Follow(arms []Arm, i int) {
	arms[i].Count *= p.inherit
	inheritWeight(arms, i, p.inherit)
}
