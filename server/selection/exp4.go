package selection

import "math"

// exp4 asks all models, combines their predictions by weight, and learns from the loss of every
// model that answered.
//
// It is Exp4 of Auer, Cesa-Bianchi, Freund and Schapire, "The Nonstochastic Multiarmed Bandit
// Problem", SIAM Journal on Computing 32(1), 2002, section 7, with the models as its experts, as
// Clipper uses it (Crankshaw and others, NSDI 2017, section 5.2). There an expert's weight grows by
// exp(gamma y^/K), with y^ an estimate of its reward that is made from the one answer given. Here
// the truth shows what every answer would have earned, the estimate becomes the reward itself, and
// exploration is not needed. With eta for gamma/K this leaves
//
//	w_i = w_i exp(-eta loss_i)
//	w_j = (1-share) w_j + share/K * sum(w)                        for every model j
//
// The second line is Fixed Share (Herbster and Warmuth, "Tracking the Best Expert", Machine
// Learning 32, 1998; in the form of Cesa-Bianchi and Lugosi, "Prediction, Learning, and Games",
// 2006, section 5.2): weights recover when the best model changes. Over T feedbacks sum(w_i
// loss_i)/sum(w) exceeds the loss of the best sequence of models with m changes by no more than
// ((m+1) ln K - m ln(share) - (T-m-1) ln(1-share)) / eta + eta T/8 (there). A weighted mean has
// at most that loss, if the loss is convex; a weighted vote errs at most twice as much. eta is
// per unit of loss.
//
// A model that has not answered in time is not judged: the models that have answered redistribute
// their total weight among themselves (Freund, Schapire, Singer and Warmuth, "Using and Combining
// Predictors That Specialize", STOC 1997).
type exp4 struct {
	Plain
	eta, share, inherit float64
}

var exp4Kind = kind{
	accepts:  []string{"eta", "share", "inherit", "combination"},
	defaults: settings{eta: 0.2, share: 0.001, inherit: 0.5, combination: "vote", step: 0.01},
	build:    func(s *settings) Algorithm { return exp4{eta: s.eta, share: s.share, inherit: s.inherit} },
}

func (p exp4) Ask(arms []Arm, _ Request) []Ask {
	var space [16]float64
	weights := scratch(space[:], len(arms))
	p.Shares(weights, arms)
	return askAll(arms, weights)
}

func (p exp4) Say(arms []Arm, i int) float64 { return arms[i].LogWeight }

func (p exp4) Shares(shares []float64, arms []Arm) {
	for i := range arms {
		shares[i] = arms[i].LogWeight
	}
	softmax(shares)
}

func (p exp4) Learn(arms []Arm, losses, _ []float64) {
	before, after := math.Inf(-1), math.Inf(-1) // logarithms of the sums over those judged
	for i, loss := range losses {
		if !math.IsNaN(loss) {
			before = logAdd(before, arms[i].LogWeight)
			arms[i].LogWeight -= p.eta * loss
			after = logAdd(after, arms[i].LogWeight)
		}
	}
	for i, loss := range losses {
		if !math.IsNaN(loss) {
			arms[i].LogWeight += before - after
		}
	}
	shareWeights(arms, p.share)
}

func (p exp4) Join(arms []Arm, i int) { joinAtMean(arms, i) }

func (p exp4) Follow(arms []Arm, i int) {
	arms[i].Count *= p.inherit
	inheritWeight(arms, i, p.inherit)
}
