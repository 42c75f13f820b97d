package scheduler

import "testing"

// TestGainsPayForLosses: the gain of a trial pays for the cost of an earlier one.
func TestGainsPayForLosses(t *testing.T) {
	const par = 120e6
	var tr trials
	rate := 8 / float64(par)
	tr.decide(120*ms, 6, par*6/8, 0, false)
	if tr.next(rate) != 0 {
		t.Fatal("a trial that cost a quarter of a batch is followed by another")
	}
	tr.decide(120*ms, 16, 2*par, 0, false)
	if tr.next(2*rate) == 0 {
		t.Error("a trial that has gained a whole batch pays for no other")
	}
}
