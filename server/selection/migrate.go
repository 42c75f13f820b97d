package selection

import (
	"fmt"
	"slices"
)

// New is the state of a policy that has learned nothing, for these models in any order. It fails with an *Error when a
// model is misnamed or doubled, when there are none or more than MaxModels, or when the parameters do not fit them.
func (p *Policy) New(models []Model) (State, error) {
	s := State{Policy: p.name, Models: make([]Arm, len(models))}
	for i, m := range models {
		s.Models[i] = Arm{Model: m}
	}
	slices.SortFunc(s.Models, byModel)
	return p.fit(s)
}

// AddModel gives a state with one model more. What the model starts with, and that the others keep what they have
// relative to each other, is in each policy's row of the package comment.
func (p *Policy) AddModel(s State, m Model) (State, error) {
	return p.change(s, func(s *State) error { return p.add(s, m) })
}

// RemoveModel gives a state with one model less, and the others as they are relative to each other.
func (p *Policy) RemoveModel(s State, m Model) (State, error) {
	return p.change(s, func(s *State) error { return p.remove(s, m) })
}

// UpdateVersion gives a state in which model next has taken the place of old, and starts with what was learned of it
// less the discount that parameter inherit says. Either may have any name.
func (p *Policy) UpdateVersion(s State, old, next Model) (State, error) {
	return p.change(s, func(s *State) error { return p.replace(s, old, next) })
}

// Migrate gives a state for just these models: the way to bring a stored state up to the candidates of today, whatever
// happened meanwhile. A model that is new takes the place of a version of the same name that is gone, as UpdateVersion
// does, or is added; others that are gone are removed. From a state of another policy it takes nothing, and gives New.
func (p *Policy) Migrate(s State, models []Model) (State, error) {
	if s.Policy != p.name || len(s.Models) == 0 || len(models) == 0 {
		return p.New(models)
	}
	models = slices.Clone(models)
	slices.SortFunc(models, Model.compare)
	return p.change(s, func(s *State) error {
		for _, m := range models {
			if s.find(m) >= 0 {
				continue
			}
			gone := slices.IndexFunc(s.Models, func(a Arm) bool {
				return a.Model.Name == m.Name && !slices.Contains(models, a.Model)
			})
			var err error
			if gone >= 0 {
				err = p.replace(s, s.Models[gone].Model, m)
			} else {
				err = p.add(s, m)
			}
			if err != nil {
				return err
			}
		}
		for i := len(s.Models) - 1; i >= 0; i-- {
			if m := s.Models[i].Model; !slices.Contains(models, m) {
				if err := p.remove(s, m); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// change applies f to a copy of s and gives what comes out if it is a state that the policy can work with.
func (p *Policy) change(s State, f func(*State) error) (State, error) {
	if err := p.owns(s); err != nil {
		return State{}, err
	}
	s.Models = slices.Clone(s.Models)
	if err := f(&s); err != nil {
		return State{}, &Error{p.name, []string{err.Error()}}
	}
	return p.fit(s)
}

// fit gives s if it is a state that the policy can work with.
func (p *Policy) fit(s State) (State, error) {
	if err := checkArms(s.Models); err != nil {
		return State{}, &Error{p.name, []string{err.Error()}}
	}
	if faults := p.check(s.Models); faults != nil {
		return State{}, &Error{p.name, faults}
	}
	return s, nil
}

func (p *Policy) add(s *State, m Model) error {
	if s.find(m) >= 0 {
		return fmt.Errorf("model %s is there already", m)
	}
	s.free(m)
	i, _ := slices.BinarySearchFunc(s.Models, Arm{Model: m}, byModel)
	s.Models = slices.Insert(s.Models, i, Arm{Model: m})
	if len(s.Models) > 1 {
		p.join(s.Models, i)
	}
	return nil
}

func (p *Policy) remove(s *State, m Model) error {
	i := s.find(m)
	switch {
	case i < 0:
		return fmt.Errorf("there is no model %s", m)
	case len(s.Models) == 1:
		return fmt.Errorf("%s is the only model", m)
	}
	s.Models = slices.Delete(s.Models, i, i+1)
	level(s.Models)
	return nil
}

func (p *Policy) replace(s *State, old, next Model) error {
	i := s.find(old)
	switch {
	case i < 0:
		return fmt.Errorf("there is no model %s", old)
	case s.find(next) >= 0:
		return fmt.Errorf("model %s is there already", next)
	}
	origin := s.Models[i].origin()
	s.free(next)
	if origin == next {
		origin = Model{} // back where it came from
	}
	s.Models[i].Model, s.Models[i].Origin = next, origin
	p.follow(s.Models, i)
	slices.SortFunc(s.Models, byModel)
	return nil
}

// free takes m as an origin away from the model that has it, when m is to be a model itself: two models would have the
// same users.
func (s *State) free(m Model) {
	for i := range s.Models {
		if s.Models[i].Origin == m {
			s.Models[i].Origin = Model{}
		}
	}
}
