package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/tensor"
)

// refusal is err as the admin door answers it, with the status that requests get for the same condition.
func refusal(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*admin.Error](err); ok {
		return err
	}
	if errors.Is(err, apps.ErrExists) {
		return &admin.Error{Status: http.StatusConflict, Text: strings.TrimPrefix(err.Error(), "apps: ")}
	}
	for _, one := range []struct {
		err    error
		status int
	}{
		{state.ErrTooLarge, http.StatusRequestEntityTooLarge},
		{state.ErrUnavailable, http.StatusServiceUnavailable},
		{state.ErrFull, http.StatusServiceUnavailable},
		{state.ErrConflict, http.StatusServiceUnavailable},
		{state.ErrClosed, http.StatusServiceUnavailable},
	} {
		if errors.Is(err, one.err) {
			return &admin.Error{Status: one.status, Text: gate.Text(err)}
		}
	}
	status := gate.StatusOf(err)
	if status.HTTP == http.StatusInternalServerError {
		return err // the door logs it
	}
	return &admin.Error{Status: status.HTTP, Text: gate.Text(err)}
}

// kept gives the applications and the store, which the admin door may be asked for before they are open.
func (s *Server) kept() (*apps.Registry, state.Store, error) {
	s.opening.RLock()
	defer s.opening.RUnlock()
	if s.apps == nil {
		return nil, nil, &admin.Error{Status: http.StatusServiceUnavailable, Text: "this server is not serving yet"}
	}
	return s.apps, s.store, nil
}

// shown is an application in the words of the admin door.
func shown(d apps.Definition) admin.App {
	a := admin.App{Name: d.Name, Policy: d.Policy, Params: d.Params, Default: d.Default, Models: make([]string, len(d.Models))}
	for i, l := range d.Models {
		a.Models[i] = string(l)
	}
	if d.SLO != 0 {
		a.SLO = time.Duration(d.SLO).String()
	}
	return a
}

// defined undoes shown. What it gives beside an error is all but the SLO, whose form is at fault.
func defined(a admin.App) (d apps.Definition, err error) {
	d = apps.Definition{Name: a.Name, Policy: a.Policy, Params: a.Params, Default: a.Default}
	for _, l := range a.Models {
		d.Models = append(d.Models, apps.Link(l))
	}
	if a.SLO != "" {
		if err := d.SLO.UnmarshalText([]byte(a.SLO)); err != nil {
			return d, fmt.Errorf("slo: %w", err)
		}
	}
	return d, nil
}

func (s *Server) applications() ([]admin.App, error) {
	r, store, err := s.kept()
	if err != nil {
		return nil, err
	}
	if _, err := store.List("apps/"); err != nil { // what is not known yet is not nothing
		return nil, refusal(err)
	}
	var list []admin.App
	for _, a := range r.Apps() {
		list = append(list, shown(a.Definition))
	}
	return list, nil
}

// checkApplication lists all that is wrong with an application.
func (s *Server) checkApplication(a admin.App) error {
	r, _, err := s.kept()
	if err != nil {
		return err
	}
	d, form := defined(a)
	_, err = r.Check(d)
	switch {
	case form != nil && err != nil:
		err = fmt.Errorf("%w; %w", err, form)
	case form != nil:
		err = fmt.Errorf("%w: application %q: %w", scheduler.ErrInvalidInput, a.Name, form)
	}
	return refusal(err)
}

func (s *Server) createApplication(ctx context.Context, a admin.App) (admin.App, error) {
	r, _, err := s.kept()
	if err != nil {
		return a, err
	}
	d, err := defined(a)
	if err != nil {
		return a, s.checkApplication(a)
	}
	made, err := r.Create(ctx, d)
	if err != nil {
		return a, refusal(err)
	}
	return shown(made.Definition), nil
}

func (s *Server) changeApplication(ctx context.Context, name string, change func(admin.App) (admin.App, error)) (admin.App, error) {
	r, _, err := s.kept()
	if err != nil {
		return admin.App{}, err
	}
	made, err := r.Change(ctx, name, func(d *apps.Definition) error {
		a, err := change(shown(*d))
		if err != nil {
			return err
		}
		if *d, err = defined(a); err != nil {
			return s.checkApplication(a)
		}
		return nil
	})
	if err != nil {
		return admin.App{}, refusal(err)
	}
	return shown(made.Definition), nil
}

func (s *Server) deleteApplication(ctx context.Context, name string) error {
	r, _, err := s.kept()
	if err != nil {
		return err
	}
	return refusal(r.Delete(ctx, name))
}

// learned is what an application's policy knows, of one user or of every one.
func (s *Server) learned(name, user string, every bool, most int) (admin.Learned, error) {
	r, _, err := s.kept()
	if err != nil {
		return admin.Learned{}, err
	}
	a := r.App(name)
	if a == nil {
		return admin.Learned{}, refusal(r.Unknown(name))
	}
	l := admin.Learned{Application: name, Policy: a.Policy, Params: a.Selection.Params(), Users: []admin.LearnedUser{}}
	all := most
	if !every {
		all = math.MaxInt // the user may come last
	}
	list, more, err := r.Learned(a, all)
	if err != nil {
		return l, refusal(err)
	}
	l.More = more
	for _, one := range list {
		if !every && one.User != user {
			continue
		}
		u := admin.LearnedUser{User: one.User, Rounds: one.State.Rounds, Models: []admin.LearnedModel{}}
		for i, arm := range one.State.Models {
			u.Models = append(u.Models, admin.LearnedModel{Model: arm.Model.String(), Share: one.Shares[i], Loss: arm.Loss, Count: arm.Count})
		}
		l.Users = append(l.Users, u)
	}
	return l, nil
}

func (s *Server) forget(ctx context.Context, name string) error {
	r, _, err := s.kept()
	if err != nil {
		return err
	}
	if r.App(name) == nil {
		return refusal(r.Unknown(name))
	}
	return refusal(r.Reset(ctx, name))
}

// selectionPolicies are what applications can choose by.
func selectionPolicies() []admin.Policy {
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

// A teacher waits for feedback to be learned.
type teacher struct {
	gate.Call
	done chan struct{}
}

// Complete implements scheduler.Owner.
func (t *teacher) Complete(*scheduler.Request) { close(t.done) }

// feedback takes an object as the metadata of name/update has it. Tensors come in JSON: "input" is the value of the only input, or an object of
// values by name.
func (s *Server) feedback(ctx context.Context, name string, body json.RawMessage) (any, error) {
	var q struct {
		ID    json.RawMessage `json:"id"`
		User  string          `json:"user"`
		Input any             `json:"input"`

		Candidates json.RawMessage `json:"candidate_models"`
		Cache      *bool           `json:"cache"`
		Salt       string          `json:"salt"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, refusal(fmt.Errorf("%w: feedback: %w", scheduler.ErrInvalidInput, err))
	}
	if string(q.ID) == "null" {
		q.ID = nil
	}
	var inputs []tensor.Tensor
	if q.Input != nil {
		target, err := s.gate.Target(name, "")
		if err == nil {
			inputs, err = fromJSON(q.Input, target.Spec.Inputs)
		}
		if err != nil {
			return nil, refusal(err)
		}
	}
	p := gate.Params{Now: time.Now(), Priority: 5, User: q.User, ID: q.ID, Forward: body, Fresh: q.Cache != nil && !*q.Cache, Salt: q.Salt}
	if len(q.Candidates) > 0 && string(q.Candidates) != "null" {
		var err error
		if p.Choose, err = gate.ParseCandidates(q.Candidates); err != nil {
			return nil, refusal(err)
		}
	}
	t := &teacher{done: make(chan struct{})}
	if err := s.gate.Open(&t.Call, name+"/update", inputs, &p); err != nil {
		return nil, refusal(err)
	}
	defer t.Close()
	t.Owner = t
	s.gate.Submit(&t.Request)
	select {
	case <-t.done:
	case <-ctx.Done():
		s.gate.Cancel(&t.Call)
		<-t.done
	}
	if t.Err != nil {
		return nil, refusal(t.Err)
	}
	return json.RawMessage(slices.Clone(t.Reply)), nil
}

// fromJSON makes the inputs of a model of a decoded JSON value.
func fromJSON(value any, specs []tensor.Spec) ([]tensor.Tensor, error) {
	byName, isObject := value.(map[string]any)
	if !isObject {
		if len(specs) != 1 {
			return nil, fmt.Errorf("%w: input: expected an object with a value for each of the %d inputs", scheduler.ErrInvalidInput, len(specs))
		}
		byName = map[string]any{specs[0].Name: value}
	}
	byName = maps.Clone(byName)
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
		t, err := apps.FromJSON(value, spec.DType)
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
