package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// Learning shows what the policies of applications have learned, and teaches them.
type Learning struct {
	Store *Store
	Gate  *gate.Gate
}

// Learned returns what an application's policy has learned, for one user or for all.
func (l Learning) Learned(name, user string, every bool, most int) (admin.Learned, error) {
	r := l.Store.Apps()
	a := r.Find(name)
	if a == nil {
		return admin.Learned{}, r.Unknown(name)
	}
	out := admin.Learned{Application: name, Policy: a.Policy, Params: a.Selection.Params(),
		Users: []admin.LearnedUser{}}
	if !every {
		one, ok, err := r.LearnedFor(a, user)
		if ok {
			out.Users = append(out.Users, learnedUser(one))
		}
		return out, err
	}
	list, more, err := r.Learned(a, most)
	if err != nil {
		return out, err
	}
	out.More = more
	for _, one := range list {
		out.Users = append(out.Users, learnedUser(one))
	}
	return out, nil
}

// First returns what an application's policy has learned for the first of its users; nil: nothing.
func (l Learning) First(name string) (*admin.LearnedUser, error) {
	r := l.Store.Apps()
	a := r.Find(name)
	if a == nil {
		return nil, r.Unknown(name)
	}
	one, ok, err := r.First(a)
	if !ok || err != nil {
		return nil, err
	}
	u := learnedUser(one)
	return &u, nil
}

func learnedUser(l apps.Learned) admin.LearnedUser {
	u := admin.LearnedUser{User: l.User, Rounds: l.State.Rounds, Models: []admin.LearnedModel{}}
	for i, arm := range l.State.Models {
		u.Models = append(u.Models,
			admin.LearnedModel{Model: arm.Model.String(), Share: l.Shares[i], Loss: arm.Loss, Count: arm.Count})
	}
	return u
}

// Forget deletes what an application's policy has learned.
func (l Learning) Forget(ctx context.Context, name string) error {
	r := l.Store.Apps()
	if r.Find(name) == nil {
		return r.Unknown(name)
	}
	return r.Reset(ctx, name)
}

// Policies lists the policies that applications can have.
func (l Learning) Policies() []admin.Policy {
	var list []admin.Policy
	for _, name := range selection.Names() {
		p := admin.Policy{Name: name}
		for _, one := range selection.Parameters(name) {
			p.Parameters = append(p.Parameters, admin.Parameter{Name: one.Name, Wants: one.Wants, Default: one.Default})
		}
		list = append(list, p)
	}
	return list
}

// Feedback takes an object in the form of the metadata of name/update. Tensors are in JSON: "input"
// is the value of the only input, or an object of values by name.
func (l Learning) Feedback(ctx context.Context, name string, body json.RawMessage) (any, error) {
	var q struct {
		ID    json.RawMessage `json:"id"`
		Input json.RawMessage `json:"input"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, fmt.Errorf("%w: feedback: %w", scheduler.ErrInvalidInput, jsonscan.Words(err))
	}
	if string(q.ID) == "null" {
		q.ID = nil
	}
	var inputs []tensor.Tensor
	if q.Input != nil && string(q.Input) != "null" {
		target, err := l.Gate.Target(name, "")
		if err == nil {
			inputs, err = fromJSON(q.Input, target.Spec.Inputs)
		}
		if err != nil {
			return nil, err
		}
	}
	r := gate.Request{Model: name, Inputs: inputs, Arrived: time.Now(), ID: q.ID, Parameters: body}
	if err := parameter.Feedback.Members(&r.Values, body, nil); err != nil {
		return nil, err
	}
	f, err := l.Gate.OpenFeedback(&r, nil)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	reply, err := gate.Learn(ctx, f)
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// fromJSON makes the inputs of a model from JSON.
func fromJSON(text []byte, specs []tensor.Spec) ([]tensor.Tensor, error) {
	byName, err := valuesByName(text, specs)
	if err != nil {
		return nil, fmt.Errorf("%w: input: %w", scheduler.ErrInvalidInput, err)
	}
	var inputs []tensor.Tensor
	for _, spec := range specs {
		value, ok := byName[spec.Name]
		if !ok && spec.Optional {
			continue
		}
		if !ok {
			return nil, fmt.Errorf("%w: input: %q is missing", scheduler.ErrInvalidInput, spec.Name)
		}
		delete(byName, spec.Name)
		t, err := fromValue(value, spec.DType)
		if err != nil {
			return nil, fmt.Errorf("%w: input %q: %w", scheduler.ErrInvalidInput, spec.Name, err)
		}
		t.Name = spec.Name
		inputs = append(inputs, t)
	}
	for name := range byName {
		return nil, fmt.Errorf("%w: input: the models have no %q", scheduler.ErrInvalidInput, name)
	}
	return inputs, nil
}

// valuesByName splits an object of values by input; any other value is that of the
// only input.
func valuesByName(text []byte, specs []tensor.Spec) (byName map[string]json.RawMessage, err error) {
	sole := tensor.Sole(specs)
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		if err := jsonscan.Unmarshal(text, &byName); err != nil {
			return nil, err
		}
		if _, isBytes := jsonscan.Unquote(byName["b64"]); !isBytes || sole < 0 {
			return byName, nil
		}
	}
	if len(specs) == 0 {
		return nil, errors.New("expected {}, since the model takes no inputs")
	}
	if sole < 0 {
		return nil, fmt.Errorf("expected an object with a value for each of the %d inputs", len(specs))
	}
	return map[string]json.RawMessage{specs[sole].Name: text}, nil
}
