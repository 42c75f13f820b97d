package selection

// epsilonGreedy asks the model with the least mean loss, and with probability epsilon any model,
// and learns from the loss of the model asked.
//
// Sutton and Barto, "Reinforcement Learning", 2nd edition, 2018, section 2.4, with the mean of
// equation 2.3, and from 1/step losses on with the constant step size of equation 2.5, under
// which old losses fade and a change is noticed:
//
//	Q_i = Q_i + max(1/n_i, step) (loss - Q_i)
//	p_i = epsilon/K, and 1-epsilon more for the least Q, divided among those that are equally good
//
// A model without a loss yet has Q = 0, so that each is tried (section 2.6); a model that joins
// others starts with their mean Q as if it were an observed loss, so that it does not get all
// requests before its first feedback. No parameter has a unit other than that of loss.
type epsilonGreedy struct {
	Plain
	epsilon, inherit float64
}

var epsilonKind = kind{
	accepts:  []string{"epsilon", "inherit"},
	defaults: settings{epsilon: 0.1, inherit: 0.5, step: 0.01},
	build:    func(s *settings) Algorithm { return epsilonGreedy{epsilon: s.epsilon, inherit: s.inherit} },
	bandit:   true,
}

func (p epsilonGreedy) Shares(shares []float64, arms []Arm) {
	best, equals := arms[0].Loss, 0.
	for i := range arms {
		if loss := arms[i].Loss; loss < best {
			best, equals = loss, 1
		} else if loss == best {
			equals++
		}
	}
	for i := range arms {
		if shares[i] = p.epsilon / float64(len(arms)); arms[i].Loss == best {
			shares[i] += (1 - p.epsilon) / equals
		}
	}
}

func (p epsilonGreedy) Ask(arms []Arm, r Request) []Ask {
	var space [16]float64
	shares := scratch(space[:], len(arms))
	p.Shares(shares, arms)
	return askOne(arms, shares, r)
}

func (p epsilonGreedy) Join(arms []Arm, i int) { joinAtMeanLoss(arms, i) }

func (p epsilonGreedy) Follow(arms []Arm, i int) { arms[i].Count *= p.inherit }

// joinAtMeanLoss gives arm i the mean of the others' mean losses, with the weight of one loss.
func joinAtMeanLoss(arms []Arm, i int) {
	var sum, judged float64
	for j := range arms {
		if j != i && arms[j].Count > 0 {
			sum += arms[j].Loss
			judged++
		}
	}
	if judged > 0 {
		arms[i].Loss, arms[i].Count = sum/judged, 1
	}
}
