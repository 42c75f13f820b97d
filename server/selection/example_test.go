package selection_test

import (
	"fmt"
	"math"

	"github.com/shivad/shivad/server/selection"
)

// upperBound asks the model whose loss may be the least, by what is known of each: UCB1 (Auer, Cesa-Bianchi and Fischer,
// "Finite-time Analysis of the Multiarmed Bandit Problem", Machine Learning 47, 2002), with the mean losses that every
// state has.
type upperBound struct {
	selection.Plain
	width float64
}

// least gives the index of the model with the lowest bound.
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

// Ask asks that one.
func (u upperBound) Ask(arms []selection.Arm, _ selection.Request) []selection.Ask {
	return []selection.Ask{{Model: arms[u.least(arms)].Model, Probability: 1}}
}

// Shares says who would be asked now.
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

// A policy that a program adds is used by its name. Applications of a server in the same process have it as
// "policy": "ucb1"; here it is asked and taught directly.
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
		said := []selection.Prediction{{Ask: ask}}
		if state, err = p.Feedback(state, said, selection.ByLoss(loss[ask.Model.Name])); err != nil {
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
