package selection_test

import (
	"fmt"
	"math"

	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

// Three models vote on a label. Two always predict 4, which is wrong, and win until feedback has
// taken their weight away.
func Example() {
	policy, err := selection.Parse("exp4", map[string]any{"eta": 1.0, "share": 0.0})
	if err != nil {
		fmt.Println(err)
		return
	}
	label := func(digit int64) []tensor.Tensor {
		t, _ := tensor.FromSlice(tensor.Shape{1}, []int64{digit})
		t.Name = "label"
		return []tensor.Tensor{t}
	}
	state, err := policy.New([]selection.Model{{Name: "good", Version: "1"}, {Name: "bad", Version: "1"},
		{Name: "worse", Version: "1"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		plan, err := policy.Select(state, selection.Request{User: "anna"})
		if err != nil {
			fmt.Println(err)
			return
		}
		var predictions []selection.Prediction
		for _, ask := range plan.Asks { // a server asks them concurrently
			digit := int64(4)
			if ask.Model.Name == "good" {
				digit = 9
			}
			predictions = append(predictions, selection.Prediction{Ask: ask, Outputs: label(digit)})
		}
		answer := policy.Combine(state, predictions, nil)
		digit, err := tensor.Values[int64](answer.Outputs[0])
		fmt.Println(digit, err)
		if state, err = policy.Feedback(state, predictions, selection.ByTruth(label(9)...)); err != nil {
			fmt.Println(err)
			return
		}
	}
	// Output:
	// [4] <nil>
	// [9] <nil>
	// [9] <nil>
}

// upperBound asks the model with the lowest confidence bound on its loss: UCB1 (Auer, Cesa-Bianchi
// and Fischer, "Finite-time Analysis of the Multiarmed Bandit Problem", Machine Learning 47, 2002),
// with the mean losses that every state has.
type upperBound struct {
	selection.Plain
	width float64
}

// least returns the index of the model with the lowest bound.
func (u upperBound) least(arms []selection.Arm) int {
	var total float64
	for _, a := range arms {
		total += a.Count
	}
	chosen, lowest := 0, math.Inf(1)
	for i, a := range arms {
		bound := math.Inf(-1) // never asked
		if a.Count > 0 {
			bound = a.Loss - u.width*math.Sqrt(math.Log(total)/a.Count)
		}
		if bound < lowest {
			chosen, lowest = i, bound
		}
	}
	return chosen
}

// Ask asks the model with the lowest bound.
func (u upperBound) Ask(arms []selection.Arm, _ selection.Request) []selection.Ask {
	return []selection.Ask{{Model: arms[u.least(arms)].Model, Probability: 1}}
}

// Shares gives 1 to the model that would be asked now.
func (u upperBound) Shares(shares []float64, arms []selection.Arm) { shares[u.least(arms)] = 1 }

func init() {
	selection.Register(selection.Kind{
		Name:       "ucb1",
		Parameters: []selection.Parameter{{Name: "width", Wants: "a number above 0", Default: 1.4}},
		New: func(params map[string]any) (selection.Algorithm, error) {
			width, ok := params["width"].(float64)
			if !ok || width <= 0 {
				return nil, fmt.Errorf("parameter width is %v, want a number above 0", params["width"])
			}
			return upperBound{width: width}, nil
		},
		One: true,
	})
}

// A policy that a program registers is used by its name. Applications of a server in the same
// process name it as "policy": "ucb1"; here it is called directly.
func ExampleRegister() {
	p, err := selection.Parse("ucb1", map[string]any{"width": 0.5})
	if err != nil {
		fmt.Println(err)
		return
	}
	state, err := p.New([]selection.Model{{Name: "good", Version: "1"}, {Name: "poor", Version: "1"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	loss := map[string]float64{"good": 0.1, "poor": 0.8}
	asked := map[string]int{}
	for range 200 {
		plan, err := p.Select(state, selection.Request{})
		if err != nil {
			fmt.Println(err)
			return
		}
		ask := plan.Asks[0]
		asked[ask.Model.Name]++
		predictions := []selection.Prediction{{Ask: ask}}
		if state, err = p.Feedback(state, predictions, selection.ByLoss(loss[ask.Model.Name])); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(asked["good"] > 10*asked["poor"], state.Rounds)
	_, err = selection.Parse("ucb1", map[string]any{"width": "wide"})
	fmt.Println(err)
	// Output:
	// true 200
	// selection: policy ucb1: parameter width is wide, want a number above 0
}
