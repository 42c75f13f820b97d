package selection

import "math"

// softmax turns logarithms of weights into weights that sum to 1, in place. One that is -Inf
// becomes 0; if all are, they become equal.
func softmax(logs []float64) {
	top := math.Inf(-1)
	for _, l := range logs {
		top = max(top, l)
	}
	var sum float64
	for i, l := range logs {
		if logs[i] = 1; !math.IsInf(top, -1) {
			logs[i] = math.Exp(l - top)
		}
		sum += logs[i]
	}
	for i := range logs {
		logs[i] /= sum
	}
}

// logSum is the logarithm of the sum of the models' weights, leaving out the one at index but
// (-1 for none).
func logSum(arms []Arm, but int) float64 {
	top, sum := math.Inf(-1), 0.
	for i := range arms {
		if i != but {
			top = max(top, arms[i].LogWeight)
		}
	}
	for i := range arms {
		if i != but {
			sum += math.Exp(arms[i].LogWeight - top)
		}
	}
	return top + math.Log(sum)
}

// logAdd is ln(e^a + e^b), exact where one of them is much the smaller. b may be -Inf.
func logAdd(a, b float64) float64 {
	if a < b {
		a, b = b, a
	}
	return a + math.Log1p(math.Exp(b-a))
}

// The weight of a model of exp3 or exp4 that joins is the mean of the others' weights, and that
// of a new version lies between this mean and its predecessor's weight, on the scale of
// logarithms: inherit 1 takes over the predecessor's, 0 starts at the mean.

func joinAtMean(arms []Arm, i int) { inheritWeight(arms, i, 0) }

func inheritWeight(arms []Arm, i int, inherit float64) {
	if len(arms) > 1 {
		mean := logSum(arms, i) - math.Log(float64(len(arms)-1))
		arms[i].LogWeight = inherit*arms[i].LogWeight + (1-inherit)*mean
	}
}

// shareWeights takes a share of every model's weight and deals it out again in equal parts: w_j
// = (1-share) w_j + share/K * sum(w). So a model that was bad for long is found again within a
// number of rounds that does not depend on for how long (Fixed Share).
func shareWeights(arms []Arm, share float64) {
	part := logSum(arms, -1) + math.Log(share/float64(len(arms))) // -Inf for a share of 0
	for i := range arms {
		arms[i].LogWeight = logAdd(arms[i].LogWeight+math.Log1p(-share), part) // -Inf for one of 1
	}
}
