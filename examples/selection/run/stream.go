package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/shivad/shivad/examples/internal/process"
	"github.com/shivad/shivad/examples/selection"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// models is the number of models.
const models = 3

// A round is one image: which answers were right, and the weights of the models after the
// feedback.
type round struct {
	right  bool         // the application
	single [models]bool // each model by itself
	shares [models]float64
}

// A stream sends images one after the other, each with its feedback before the next.
type stream struct {
	client *shiva.Client
	admin  string
	out    io.Writer
	rounds []round
}

func (s *stream) send(ctx context.Context, images []image) error {
	for i, im := range images {
		r, err := s.round(ctx, len(s.rounds)+1, im)
		if err != nil {
			return fmt.Errorf("image %d: %w", i, err)
		}
		s.rounds = append(s.rounds, r)
		if (i+1)%lineEvery == 0 || i+1 == len(images) {
			s.line(i%lineEvery + 1)
		}
	}
	return nil
}

// round sends an image to the application and each of its models, and the right label to the
// application as feedback. The number of the round is the id of the request.
func (s *stream) round(ctx context.Context, number int, im image) (r round, err error) {
	var labels [1 + models]int64
	var faults [1 + models]error
	var asked sync.WaitGroup
	for i, name := range append([]string{"selection"}, selection.Models...) {
		asked.Go(func() { labels[i], faults[i] = s.ask(ctx, name, number, im) })
	}
	asked.Wait()
	if err := errors.Join(faults[:]...); err != nil {
		return r, err
	}
	r.right = labels[0] == int64(im.digit)
	for i := range r.single {
		r.single[i] = labels[1+i] == int64(im.digit)
	}
	feedback := &shiva.Message{Namespace: "selection/update",
		Metadata: fmt.Appendf(nil, `{"id": %d, "label": %d}`, number, im.digit)}
	answer, err := s.client.Do(ctx, feedback)
	if err != nil {
		return r, err
	}
	defer answer.Release()
	var learned struct{ Rounds int }
	if err := json.Unmarshal(answer.Metadata, &learned); err != nil || learned.Rounds != number {
		return r, fmt.Errorf("feedback: expected round %d, got %s (%v)", number, answer.Metadata, err)
	}
	r.shares, err = s.shares(ctx)
	return r, err
}

// ask returns the label with which a model or the application answers.
func (s *stream) ask(ctx context.Context, name string, id int, im image) (int64, error) {
	pixels, err := tensor.New(tensor.Uint8, tensor.Shape{8, 8}, im.pixels)
	if err != nil {
		return 0, err
	}
	answer, err := s.client.Do(ctx,
		&shiva.Message{Namespace: name, Metadata: fmt.Appendf(nil, `{"id": %d}`, id), Tensors: []tensor.Tensor{pixels}})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	defer answer.Release()
	if len(answer.Tensors) != 1 {
		return 0, fmt.Errorf("%s: expected a label, got %d tensors and %s", name, len(answer.Tensors), answer.Metadata)
	}
	label, err := tensor.Values[int64](answer.Tensors[0])
	if err != nil || len(label) != 1 {
		return 0, fmt.Errorf("%s: expected one label, got %d (%v)", name, len(label), err)
	}
	return label[0], nil
}

// shares reads the policy's weight of each model, whatever its version.
func (s *stream) shares(ctx context.Context) (shares [models]float64, err error) {
	ok, text, err := process.Get(ctx, "http://"+s.admin+"/v1/apps/selection/policy")
	if err != nil {
		return shares, err
	}
	var learned struct {
		Users []struct {
			Models []struct {
				Model string
				Share float64
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &learned); !ok || err != nil || len(learned.Users) != 1 ||
		len(learned.Users[0].Models) != models {
		return shares, fmt.Errorf("what the policy has learned: expected %d models of one user, got %s", models, text)
	}
	for _, m := range learned.Users[0].Models {
		name, _, _ := strings.Cut(m.Model, "/")
		for i := range selection.Models {
			if selection.Models[i] == name {
				shares[i] = m.Share
			}
		}
	}
	return shares, nil
}
