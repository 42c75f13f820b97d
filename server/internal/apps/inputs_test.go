package apps

import (
	"fmt"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/tensor"
)

// Inputs are dropped separately: the predictions stay known, and a request larger than the bound
// loses only its input.
func TestInputsGiveWay(t *testing.T) {
	var p Predictions
	now := time.Now()
	data := make([]byte, maxInputBytes)
	input := func(n int) []Inputs { return []Inputs{{Rows: 1, Tensors: []tensor.Tensor{{Data: data[:n]}}}} }
	const n = 10
	for i := range n {
		p.Keep("app", "u", fmt.Sprint(i), now, nil, input(maxInputBytes/4))
		// The fan-out stores a second time when its shadows are done.
		p.Keep("app", "u", fmt.Sprint(i), now.Add(1), nil, input(maxInputBytes/4))
	}
	p.Keep("app", "u", "large", now, nil, input(maxInputBytes))
	held := 0
	for i := range n {
		reply := p.Find("app", "u", fmt.Sprint(i), now)
		if reply == nil {
			t.Fatalf("%d is not known any more", i)
		}
		if in := reply.Inputs(); in != nil {
			held++
			if i < n-3 || in[0].Rows != 1 {
				t.Errorf("%d has %v", i, in)
			}
		}
	}
	if reply := p.Find("app", "u", "large", now); held != 3 || reply == nil || reply.Inputs() != nil {
		t.Errorf("%d have their inputs, the large one is %v", held, reply)
	}
	p.forget("app")
	if p.inputBytes != 0 || p.withInputs.Len() != 0 {
		t.Errorf("%d bytes of %d inputs are left", p.inputBytes, p.withInputs.Len())
	}
}
