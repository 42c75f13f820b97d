package selection

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Prediction is one model's answer to a request: the Ask of the plan, and the model's outputs.
// Predictions given to Feedback may include a model that was asked and has not answered, without
// outputs.
type Prediction struct {
	Ask
	Outputs []tensor.Tensor // neither changed nor retained
}

// An Outcome is what became known about a request afterwards: make one with ByTruth, ByLoss or
// ByLosses.
type Outcome struct {
	kind   string
	truth  []tensor.Tensor
	loss   float64
	losses map[Model]float64
}

// ByTruth gives the right answer: the judged output, or several tensors of which one has its name.
// The dtype may differ if the values are representable in the model's ("7" as int64 for a model of
// int32); the number of elements must be the model's.
func ByTruth(truth ...tensor.Tensor) Outcome { return Outcome{kind: "truth", truth: truth} }

// ByLoss says how bad the answer was, from 0 (best) to 1. A reward r from 0 to 1 is a loss of 1-r.
// It teaches a policy that has one model answer; exp4 and ensemble refuse it, because it does not
// tell which of their models were right.
func ByLoss(loss float64) Outcome { return Outcome{kind: "loss", loss: loss} }

// ByLosses says how bad each model was, from 0 to 1, also for models that have not answered. Models
// that the state does not have are ignored.
func ByLosses(losses map[Model]float64) Outcome { return Outcome{kind: "losses", losses: losses} }

// Feedback returns the state after learning from the predictions for one request, and its outcome.
// Models that are no longer candidates are ignored; if nothing is left to learn from, Rounds does
// not change. Feedback fails, and nothing is learned, for a loss that is not a number from 0 to 1,
// for a truth that cannot be compared with any of the predictions, and for a prediction without the
// probability that the policy needs. Given the same feedback twice, it learns twice.
func (p *Policy) Feedback(s State, predictions []Prediction, o Outcome) (State, error) {
	if err := p.owns(s); err != nil {
		return State{}, err
	}
	var spaceL, spaceP [16]float64
	losses, probabilities := scratch(spaceL[:], len(s.Models)), scratch(spaceP[:], len(s.Models))
	for i := range losses {
		losses[i] = math.NaN()
	}
	if err := p.assess(s, predictions, o, losses, probabilities); err != nil {
		return State{}, fmt.Errorf("selection: feedback for %s: %w", p.name, err)
	}
	if !slices.ContainsFunc(losses, func(l float64) bool { return !math.IsNaN(l) }) {
		return s, nil
	}
	s.Rounds++
	s.Models, s.Aside = slices.Clone(s.Models), slices.Clone(s.Aside)
	total := logSum(s.Models, -1)
	for i, loss := range losses {
		if a := &s.Models[i]; !math.IsNaN(loss) {
			a.Count++
			a.Loss += max(1/a.Count, p.settings.step) * (loss - a.Loss)
		}
	}
	p.algorithm.Learn(s.Models, losses, probabilities)
	if len(s.Aside) > 0 {
		// Models set aside keep their weight relative to the total of the candidates, as if they
		// slept (Freund, Schapire, Singer and Warmuth, STOC 1997).
		shift(s.Models, total-logSum(s.Models, -1))
	}
	s.level()
	return s, nil
}

// assess fills in the losses that the policy learns from and the probabilities of the models asked;
// unknown losses stay NaN, unknown probabilities 0.
func (p *Policy) assess(s State, predictions []Prediction, o Outcome, losses, probabilities []float64) error {
	if len(predictions) == 0 {
		return errors.New("no model was asked")
	}
	answering := 0
	for _, pr := range predictions {
		if !pr.Shadow {
			answering++
		}
	}
	if p.kind.bandit && answering != 1 {
		return fmt.Errorf("%d models were asked to answer, want the one that was chosen", answering)
	}
	if o.kind == "loss" && answering != 1 {
		return fmt.Errorf("%d models were asked to answer, and the loss of the answer does not tell what each of them lost: give the truth, or a loss for each",
			answering)
	}
	if !isLoss(o.loss) {
		return fmt.Errorf("loss %g, want 0 to 1", o.loss)
	}
	for m, l := range o.losses {
		if !isLoss(l) {
			return fmt.Errorf("model %s has loss %g, want 0 to 1", m, l)
		}
	}
	if o.kind == "losses" && !p.kind.bandit {
		for i := range s.Models {
			if l, ok := o.losses[s.Models[i].Model]; ok {
				losses[i] = l
			}
		}
	}
	var unlike error // of the first model whose outputs the truth cannot be compared with
	judged := false
	for _, pr := range predictions {
		i := s.find(pr.Model)
		if i < 0 || pr.Shadow && p.kind.bandit {
			continue
		}
		if !(pr.Probability >= 0 && pr.Probability <= 1) || pr.Probability == 0 && p.kind.importance {
			return fmt.Errorf("model %s was chosen with probability %g, want that of its plan",
				pr.Model, pr.Probability)
		}
		probabilities[i] = pr.Probability
		switch o.kind {
		case "truth":
			if pr.Outputs == nil {
				continue // no prediction to judge
			}
			loss, err := p.Loss(pr.Outputs, o.truth)
			if err != nil {
				unlike = cmp.Or(unlike, fmt.Errorf("model %s: %w", pr.Model, err))
				continue
			}
			losses[i] = loss
			judged = true
		case "loss":
			if !pr.Shadow {
				losses[i] = o.loss
			}
		case "losses":
			if l, ok := o.losses[pr.Model]; ok {
				losses[i] = l
			}
		default:
			return errors.New("an outcome without truth and without a loss")
		}
	}
	if judged {
		return nil // one model with odd outputs does not keep the others from learning
	}
	return unlike
}

func isLoss(l float64) bool { return l >= 0 && l <= 1 }

// Loss returns how far a prediction is from the truth, in [0, 1], according to parameter loss: over
// the rows of the judged output
//
//	label     the part of them that is not equal to the truth's row
//
// or over its elements, with d for the difference from the truth divided by parameter scale,
// the mean of
//
//	absolute  min(1, |d|)
//	squared   min(1, d^2)
//
// For 10 labels of which 9 are right the loss is 0.1. Loss fails if the two cannot be compared.
// Combine uses it for agreement, which is 1 minus the loss against the answer.
func (p *Policy) Loss(predicted, truth []tensor.Tensor) (float64, error) {
	x, err := p.judged(predicted)
	if err != nil {
		return 0, err
	}
	y := truth
	if len(truth) > 1 {
		i := slices.IndexFunc(truth, func(t tensor.Tensor) bool { return t.Name == x.Name })
		if i < 0 {
			return 0, fmt.Errorf("the truth has no output %q", x.Name)
		}
		y = truth[i : i+1]
	}
	if len(y) == 0 {
		return 0, errors.New("the truth has no outputs")
	}
	return p.distance(x, y[0])
}

// judged returns the output that parameter output names.
func (p *Policy) judged(outputs []tensor.Tensor) (tensor.Tensor, error) {
	i := 0
	if name := p.settings.output; name != "" {
		i = slices.IndexFunc(outputs, func(t tensor.Tensor) bool { return t.Name == name })
	}
	if i < 0 || i >= len(outputs) {
		return tensor.Tensor{}, fmt.Errorf("there is no output %q", p.settings.output)
	}
	return outputs[i], outputs[i].Check()
}

// distance returns the loss of x if y is the truth.
func (p *Policy) distance(x, y tensor.Tensor) (float64, error) {
	n, err := elements(x, y)
	if n == 0 || err != nil {
		return 0, err
	}
	if p.settings.loss == "label" {
		return mismatch(x, y)
	}
	return p.difference(x, y)
}

// elements returns how many elements both tensors have; x must have been checked.
func elements(x, y tensor.Tensor) (int, error) {
	if err := y.Check(); err != nil {
		return 0, err
	}
	n, _ := x.Shape.Elements()
	if m, _ := y.Shape.Elements(); m != n {
		return 0, fmt.Errorf("output %q has %s, and the truth %d", x.Name, plural.Of(n, "element"), m)
	}
	return n, nil
}

// mismatch returns the part of x's rows that differ from y's.
func mismatch(x, y tensor.Tensor) (float64, error) {
	if n, err := elements(x, y); n == 0 || err != nil {
		return 0, err
	}
	if y.DType != x.DType {
		cast, err := tensor.Cast(y, x.DType, nil)
		if err != nil {
			return 0, fmt.Errorf("the truth is no %s: %w", x.DType, err)
		}
		y = cast
	}
	rows := countRows(x)
	predicted, right, wrong := rowsOf(x, rows), rowsOf(y, rows), 0
	for r := range rows {
		if !bytes.Equal(predicted.at(r), right.at(r)) {
			wrong++
		}
	}
	return float64(wrong) / float64(rows), nil
}

// difference returns the mean of the elements' losses, for two tensors of numbers.
func (p *Policy) difference(x, y tensor.Tensor) (float64, error) {
	var spaceX, spaceY [64]float64
	a, err := load(spaceX[:0], x)
	if err != nil {
		return 0, err
	}
	b, err := load(spaceY[:0], y)
	if err != nil {
		return 0, fmt.Errorf("the truth: %w", err)
	}
	if !finite(b) {
		return 0, errors.New("the truth holds a NaN or an infinity")
	}
	return p.spread(a, b), nil
}

// spread returns the loss of a if b, finite and of the same length, is the truth.
func (p *Policy) spread(a, b []float64) float64 {
	var sum float64
	for i := range a {
		d := math.Abs(a[i]-b[i]) / p.settings.scale
		if p.settings.loss == "squared" {
			d *= d
		}
		if !(d <= 1) { // also NaN
			d = 1
		}
		sum += d
	}
	return min(1, sum/float64(len(a)))
}
