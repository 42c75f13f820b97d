package selection

import (
	"math"
	"slices"
)

// split sends each user to one model, in proportion to the weights: a canary, an A/B test. A user
// stays with a model for as long as its weight is not lowered and none is raised; a change of
// weights or of the models moves no more users than it must. Requests without a user are split at
// random. It learns the mean loss of each model.
//
// The model is the one with the least -ln(u_i)/w_i, where u_i in (0, 1) is the hash of salt,
// user and model: rendezvous hashing (Thaler and Ravishankar, "Using Name-Based Mappings to
// Increase Hit Rates", IEEE/ACM Transactions on Networking 6(1), 1998) with weights by the
// logarithmic method (Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", SPAA
// 2005): it is an exponential clock of rate w_i per model, of which the first to ring is model
// i with probability w_i / sum(w).
//
// Without parameter weights all models weigh the same. With it, a model has the weight of
// "name/version", else of its origin, else of "name", else 0: a new candidate gets no users until
// it is given a weight. A new version keeps its predecessor's users.
type split struct {
	Plain
	weights map[string]float64
	salt    uint64
}

var splitKind = kind{
	accepts: []string{"weights", "salt"},
	build:   func(s *settings) Algorithm { return split{weights: s.weights, salt: hash(fnvOffset, s.salt)} },
	bandit:  true,
}

// given returns the weight that parameter weights has for a model, 0 if it has none.
func given(weights map[string]float64, a *Arm) float64 {
	if weights == nil {
		return 1
	}
	// A loop over the few weights avoids building the key "name/version" for a look-up.
	weight, rank := 0., 3
	for name, w := range weights {
		switch {
		case matches(name, a.Model):
			return w
		case rank > 1 && a.Origin != (Model{}) && matches(name, a.Origin):
			weight, rank = w, 1
		case rank > 2 && name == a.Model.Name:
			weight, rank = w, 2
		}
	}
	return weight
}

// checkWeights returns a fault unless a model has a weight.
func checkWeights(weights map[string]float64, arms []Arm) []string {
	if slices.ContainsFunc(arms, func(a Arm) bool { return given(weights, &a) > 0 }) {
		return nil
	}
	return []string{"parameter weights has none above 0 for any of the models"}
}

func (p split) Check(arms []Arm) []string { return checkWeights(p.weights, arms) }

func (p split) Shares(shares []float64, arms []Arm) {
	var sum float64
	for i := range arms {
		shares[i] = given(p.weights, &arms[i])
		sum += shares[i]
	}
	for i := range shares {
		shares[i] /= sum
	}
}

func (p split) Ask(arms []Arm, r Request) []Ask {
	var space [16]float64
	shares := scratch(space[:], len(arms))
	p.Shares(shares, arms)
	user, dice := hash(p.salt, r.User), random(r.Random)
	chosen, first := 0, math.Inf(1)
	for i := range arms {
		bits := dice.uint64()
		if r.User != "" {
			origin := arms[i].origin()
			bits = mix(hash(hash(user, origin.Name), origin.Version))
		}
		// -ln of a number in (0, 1]; a model of weight 0 never rings.
		if rings := -math.Log(1-unit(bits)) / shares[i]; rings < first && shares[i] > 0 {
			chosen, first = i, rings
		}
	}
	return []Ask{{Model: arms[chosen].Model, Probability: shares[chosen]}}
}

// scratch returns space for n numbers that are 0, in the given array if it is large enough.
func scratch(space []float64, n int) []float64 {
	if n <= len(space) {
		return space[:n]
	}
	return make([]float64, n)
}

const (
	fnvOffset = 0xcbf29ce484222325
	fnvPrime  = 0x100000001b3
)

// hash continues from h with the bytes of s and an end mark (FNV-1a, 64 bits; Fowler, Noll and Vo).
func hash(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return (h ^ 0xff) * fnvPrime // no UTF-8 text holds 0xff
}
