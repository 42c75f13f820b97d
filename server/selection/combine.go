package selection

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// An Answer is a policy's combination of the predictions of its models.
type Answer struct {
	// Outputs of the answer; nil if no model answered. They are tensors of the predictions, without
	// a reference of their own, or, where one combines values of several models, ordinary memory.
	Outputs []tensor.Tensor

	// Confidence is the agreement of the models that were asked to answer, in [0, 1]: the mean of
	// Agreement over all of them by Weight. A late model has Agreement 0. Confidence is 1 if all
	// predicted the same, also if there was only one.
	Confidence float64

	// Voices has the models that were asked, in the order of Combine's arguments.
	Voices []Voice
}

// A Voice is the part that one model had in an answer.
type Voice struct {
	Model  Model
	Shadow bool

	// Weight of the model among those asked to answer, including late ones; the weights sum to 1. 0
	// for a shadow.
	Weight float64

	// Agreement of the model's prediction with the answer, in [0, 1]: 1 minus its loss if the
	// answer were the truth. For a vote this is the part of the rows of the judged output in which
	// prediction and answer are equal.
	Agreement float64

	// Unheard says why the prediction could not be used; "" if it was used.
	Unheard string
}

// String explains the answer to people, in one sentence.
func (a Answer) String() string {
	var b strings.Builder
	if a.Outputs == nil {
		b.WriteString("no answer")
	} else {
		fmt.Fprintf(&b, "confidence %.3g", a.Confidence)
	}
	for i, v := range a.Voices {
		separator := "; "
		if i == 0 {
			separator = ": "
		}
		b.WriteString(separator + v.Model.String())
		switch {
		case v.Shadow && v.Unheard == "":
			fmt.Fprintf(&b, " (shadow) agrees %.3g", v.Agreement)
		case v.Unheard != "":
			fmt.Fprintf(&b, " (weight %.3g) was left out: %s", v.Weight, v.Unheard)
		default:
			fmt.Fprintf(&b, " (weight %.3g) agrees %.3g", v.Weight, v.Agreement)
		}
	}
	return b.String()
}

const late = "late"

// lowest is the logarithm of the weight of a model that the state does not have: it decides only if
// it is alone.
const lowest = -math.MaxFloat64

// Combine makes the answer from the predictions that arrived; missing has the other asks of the
// plan. Call it when all have arrived or when the time is up, with the state that Select was given
// or a later one, and with predictions in any order.
//
// With combination "vote", which also applies to policies that have one model answer, each row of
// the judged output (parameter output) is the value with the most weight behind it, and the whole
// row, with the other outputs, is that of the heaviest model that predicted this value. With
// "mean", all outputs of a float dtype are the weighted mean of the models' outputs, element by
// element, and all other outputs are those of the model that agrees best with the mean; a judged
// output of another dtype is voted on. A tie goes to the heavier model, and between equals to the
// first by name and version.
//
// A model is left out if its outputs differ from the heaviest model's in number, name, dtype or
// shape, or if they hold NaN or infinity where a mean is to be taken.
func (p *Policy) Combine(s State, predictions []Prediction, missing []Ask) Answer {
	c := combiner{Policy: p, voices: make([]Voice, 0, len(predictions)+len(missing))}
	var space [16]float64
	c.logWeights = scratch(space[:], len(predictions)+len(missing))
	for i := range predictions {
		c.addVoice(s, predictions[i].Ask, predictions[i].Outputs)
	}
	for i := range missing {
		c.addVoice(s, missing[i], nil)
	}
	c.weigh()

	var order [16]int
	heard := order[:0]
	for i := range predictions {
		if c.voices[i].Unheard == "" && !c.voices[i].Shadow {
			heard = append(heard, i)
		}
	}
	slices.SortFunc(heard, func(i, j int) int {
		return cmp.Or(cmp.Compare(c.logWeights[j], c.logWeights[i]), c.voices[i].Model.compare(c.voices[j].Model))
	})
	heard = c.fitting(predictions, heard)
	a := Answer{Voices: c.voices}
	if len(heard) == 0 {
		return a
	}
	a.Outputs = predictions[heard[0]].Outputs
	if len(heard) > 1 {
		var space [16]float64
		weights := scratch(space[:], len(heard))
		for k, i := range heard {
			weights[k] = c.logWeights[i]
		}
		softmax(weights)
		judged, _ := p.judged(a.Outputs)
		if p.settings.combination == "mean" && judged.DType.IsFloat() {
			a.Outputs = c.mean(predictions, heard, weights)
		} else {
			a.Outputs = c.vote(predictions, heard, weights)
		}
	}
	c.agree(&a, predictions)
	return a
}

// A combiner is the working state of one call of Combine.
type combiner struct {
	*Policy
	voices     []Voice
	logWeights []float64 // parallel: logarithms of weights
}

// addVoice adds the voice of a model that was asked.
func (c *combiner) addVoice(s State, ask Ask, outputs []tensor.Tensor) {
	v := Voice{Model: ask.Model, Shadow: ask.Shadow}
	if outputs == nil {
		v.Unheard = late
	}
	say := lowest
	if i := s.find(ask.Model); i >= 0 {
		say = c.algorithm.Say(s.Models, i)
	}
	c.logWeights[len(c.voices)] = say
	c.voices = append(c.voices, v)
}

// weigh sets the weight of every voice among those that are asked to answer.
func (c *combiner) weigh() {
	var space [16]float64
	weights := scratch(space[:], len(c.voices))[:0]
	for i := range c.voices {
		if !c.voices[i].Shadow {
			weights = append(weights, c.logWeights[i])
		}
	}
	softmax(weights)
	for i := range c.voices {
		if !c.voices[i].Shadow {
			c.voices[i].Weight, weights = weights[0], weights[1:]
		}
	}
}

// fitting returns the models of heard, which is sorted by weight, whose outputs can be combined.
func (c *combiner) fitting(predictions []Prediction, heard []int) []int {
	first := -1
	return slices.DeleteFunc(heard, func(i int) bool {
		v := &c.voices[i]
		if v.Unheard = c.unfit(predictions[i].Outputs); v.Unheard == "" && first >= 0 {
			v.Unheard = unlike(predictions[i].Outputs, predictions[first].Outputs)
		}
		if v.Unheard == "" && first < 0 {
			first = i
		}
		return v.Unheard != ""
	})
}

// unfit returns why outputs cannot be part of an answer, "" if they can.
func (c *combiner) unfit(outputs []tensor.Tensor) string {
	if _, err := c.judged(outputs); err != nil {
		return err.Error()
	}
	for _, t := range outputs {
		if err := t.Check(); err != nil {
			return err.Error()
		}
		if c.settings.combination == "mean" && t.DType.IsFloat() {
			var space [64]float64
			if values, err := load(space[:0], t); err != nil || !finite(values) {
				return fmt.Sprintf("output %q holds a NaN or an infinity", t.Name)
			}
		}
	}
	return ""
}

// unlike returns how outputs differ from the first model's, "" if in values only.
func unlike(outputs, first []tensor.Tensor) string {
	if len(outputs) != len(first) {
		return fmt.Sprintf("%s, and the heaviest model has %d", plural.Of(len(outputs), "output"), len(first))
	}
	for i, t := range outputs {
		if o := first[i]; t.Name != o.Name || t.DType != o.DType || !t.Shape.Equal(o.Shape) {
			return fmt.Sprintf("output %q is %s %s, and the heaviest model has %q, %s %s",
				t.Name, t.DType, t.Shape, o.Name, o.DType, o.Shape)
		}
	}
	return ""
}

// vote decides each row of the judged output by weight.
func (c *combiner) vote(predictions []Prediction, heard []int, weights []float64) []tensor.Tensor {
	first := predictions[heard[0]].Outputs
	judged, _ := c.judged(first)
	n := countRows(judged)
	for _, t := range first {
		if countRows(t) != n || len(t.Shape) == 0 {
			n = 1 // outputs without common rows are decided on as one
		}
	}
	if n == 0 {
		return first
	}
	var space [16]rows
	ballots := space[:0]
	for _, i := range heard {
		t, _ := c.judged(predictions[i].Outputs)
		ballots = append(ballots, rowsOf(t, n))
	}
	winners := make([]int, 0, 16)
	single := true
	for r := range n {
		k := elect(ballots, weights, r)
		winners = append(winners, heard[k])
		single = single && winners[0] == heard[k]
	}
	if single {
		return predictions[winners[0]].Outputs
	}
	return gather(predictions, winners)
}

// elect returns the first ballot for the value that has the most weight behind it in a row.
func elect(ballots []rows, weights []float64, row int) int {
	winner, most := 0, -1.
	for k := range ballots {
		mine, sum := ballots[k].at(row), 0.
		first := true
		for j := range ballots {
			if string(ballots[j].at(row)) == string(mine) {
				first = first && j >= k
				sum += weights[j]
			}
		}
		if first && sum > most {
			winner, most = k, sum
		}
	}
	return winner
}

// gather makes outputs whose row r is that of model winners[r].
func gather(predictions []Prediction, winners []int) []tensor.Tensor {
	out := make([]tensor.Tensor, len(predictions[winners[0]].Outputs))
	for o := range out {
		parts := make([]tensor.Tensor, 0, len(winners))
		for r := 0; r < len(winners); {
			end := r + 1
			for end < len(winners) && winners[end] == winners[r] {
				end++
			}
			part, _ := predictions[winners[r]].Outputs[o].RowSlice(r, end) // checked, and in range
			parts = append(parts, part)
			r = end
		}
		joined, _ := tensor.Concat(parts, nil) // alike, and without a budget
		out[o] = joined
	}
	return out
}

// mean averages the outputs of float dtypes.
func (c *combiner) mean(predictions []Prediction, heard []int, weights []float64) []tensor.Tensor {
	first := predictions[heard[0]].Outputs
	out := make([]tensor.Tensor, len(first))
	var spaceV, spaceM [64]float64
	values, mean := spaceV[:0], spaceM[:0]
	for o, t := range first {
		if !t.DType.IsFloat() {
			continue
		}
		// Update the mean step by step (West, "Updating Mean and Variance Estimates", CACM 22(9),
		// 1979): the mean of equal values is then exactly that value, which a sum of weighted
		// values can miss.
		mean, _ = load(mean[:0], t) // unfit has checked it
		total := weights[0]
		for k, i := range heard[1:] {
			total += weights[k+1]
			values, _ = load(values[:0], predictions[i].Outputs[o])
			for e, v := range values {
				mean[e] += (v - mean[e]) * (weights[k+1] / total)
			}
		}
		out[o] = store(t, mean)
	}
	judged, _ := c.judged(out)
	closest, least := heard[0], math.Inf(1)
	for _, i := range heard {
		t, _ := c.judged(predictions[i].Outputs)
		if loss, err := c.distance(t, judged); err == nil && loss < least {
			closest, least = i, loss
		}
	}
	for o, t := range first {
		if !t.DType.IsFloat() {
			out[o] = predictions[closest].Outputs[o]
		}
	}
	return out
}

// agree sets the agreement of each prediction with the answer.
func (c *combiner) agree(a *Answer, predictions []Prediction) {
	answer, _ := c.judged(a.Outputs)
	for i := range predictions {
		v := &a.Voices[i]
		if v.Unheard != "" {
			continue
		}
		predicted, err := c.judged(predictions[i].Outputs)
		var loss float64
		if err == nil {
			if loss, err = c.distance(predicted, answer); err != nil {
				loss, err = mismatch(predicted, answer) // not numbers: equal or not
			}
		}
		if err != nil {
			v.Unheard = err.Error() // a shadow with other outputs
			continue
		}
		v.Agreement = 1 - loss
		a.Confidence += v.Weight * v.Agreement
	}
	a.Confidence = min(1, a.Confidence)
}
