package selection

import "math"

// softmax turns logarithms of weights into weights that sum to 1, in place. A logarithm of -Inf
// becomes 0; if all are -Inf, the weights become equal.
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

// logSum returns the logarithm of the sum of the models' weights, without the model at index but
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

// logAdd returns ln(e^a + e^b), exact even if one of them is much smaller. b may be -Inf.
func logAdd(a, b float64) float64 {
	if a < b {
		a, b = b, a
	}
	return a + math.Log1p(math.Exp(b-a))
}

// For exp3 and exp4, the weight of a joining model is the mean of the others' weights, and that of
// a new version lies between this mean and its predecessor's weight, on a logarithmic scale:
// inherit 1 takes over the predecessor's weight, 0 starts at the mean.

func joinAtMean(arms []Arm, i int) { inheritWeight(arms, i, 0) }

func inheritWeight(arms []Arm, i int, inherit float64) {
	if len(arms) > 1 {
		mean := logSum(arms, i) - math.Log(float64(len(arms)-1))
		arms[i].LogWeight = inherit*arms[i].LogWeight + (1-inherit)*mean
	}
}

// shareWeights takes a share of every model's weight and redistributes it in equal parts: w_j =
// (1-share) w_j + share/K * sum(w). So a model that was bad is found again within a number of
// rounds that does not depend on how long it was bad (Fixed Share).
func shareWeights(arms []Arm, share float64) {
	part := logSum(arms, -1) + math.Log(share/float64(len(arms))) // -Inf for a share of 0
	for i := range arms {
		arms[i].LogWeight = logAdd(arms[i].LogWeight+math.Log1p(-share), part) // -Inf for one of 1
	}
}
