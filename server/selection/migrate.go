package selection

import "slices"

// How many models that are not candidates are remembered, and how many versions of one name.
const (
	maxAside         = 64
	maxVersionsAside = 3
)

// New returns the state of a policy that has learned nothing, for these models in any order. It
// fails with an *Error if a model is misnamed or duplicated, if there are none or more than
// MaxModels, or if the parameters do not fit them.
func (p *Policy) New(models []Model) (State, error) {
	s := State{Policy: p.name, Models: make([]Arm, len(models))}
	for i, m := range models {
		s.Models[i] = Arm{Model: m}
	}
	slices.SortFunc(s.Models, byModel)
	return p.fit(s)
}

// Migrate returns a state for exactly these models. It adapts a stored state to the current
// candidates, whatever happened meanwhile, and to those of another server and back. A model that
// was a candidate before keeps what was learned about it, unless too many have left since. A new
// model takes the place of a version of the same name that leaves now (or has left before, if no
// other version is a candidate) and inherits what was learned about it, discounted by parameter
// inherit; otherwise it joins. The package comment has a row for each policy with the numbers that
// such models start with; all other models keep theirs relative to each other. What was learned
// about a model that leaves is set aside. The state of another policy moves to Others, and a state
// of this policy among Others is restored.
func (p *Policy) Migrate(s State, models []Model) (State, error) {
	if s.Policy != p.name {
		var err error
		if s, err = p.convert(s, models); err != nil {
			return State{}, err
		}
	}
	if len(s.Models) == 0 || len(models) == 0 {
		return p.New(models)
	}
	models = slices.SortedFunc(slices.Values(models), Model.compare)
	s.Models, s.Aside = slices.Clone(s.Models), slices.Clone(s.Aside)
	var gone []Arm
	for i := 0; i < len(s.Models); {
		if slices.Contains(models, s.Models[i].Model) {
			i++
			continue
		}
		gone = append(gone, s.Models[i])
		s.sleep(i)
	}
	for _, m := range models {
		if s.find(m) >= 0 || s.wake(m) {
			continue
		}
		named := func(a Arm) bool { return a.Model.Name == m.Name }
		if i := slices.IndexFunc(gone, named); i >= 0 {
			p.follow(&s, gone[i], m)
			gone = slices.Delete(gone, i, i+1)
		} else if i := lastIndex(s.Aside, named); i >= 0 && !slices.ContainsFunc(s.Models, named) {
			p.follow(&s, s.Aside[i], m)
		} else {
			p.join(&s, m)
		}
	}
	s.level()
	return p.fit(s)
}

func lastIndex(arms []Arm, is func(Arm) bool) int {
	for i := len(arms) - 1; i >= 0; i-- {
		if is(arms[i]) {
			return i
		}
	}
	return -1
}

// convert returns a state of this policy, given a state of another policy.
func (p *Policy) convert(s State, models []Model) (State, error) {
	others := slices.Clone(s.Others)
	s.Others = nil
	if len(s.Models) > 0 && s.Rounds > 0 {
		others = append(others, s)
	}
	own := State{Policy: p.name}
	if i := slices.IndexFunc(others, func(o State) bool { return o.Policy == p.name }); i >= 0 {
		own = others[i]
		others = slices.Delete(others, i, i+1)
	} else {
		var err error
		if own, err = p.New(models); err != nil {
			return State{}, err
		}
	}
	if len(others) > 0 {
		own.Others = others
	}
	return own, nil
}

// fit returns s if it is a state that the policy can work with.
func (p *Policy) fit(s State) (State, error) {
	if err := s.check(); err != nil {
		return State{}, &Error{p.name, []string{err.Error()}}
	}
	if faults := p.algorithm.Check(s.Models); faults != nil {
		return State{}, &Error{p.name, faults}
	}
	return s, nil
}

// join adds a model about which nothing is known.
func (p *Policy) join(s *State, m Model) {
	if i := s.insert(Arm{Model: m}); len(s.Models) > 1 {
		p.algorithm.Join(s.Models, i)
	}
}

// follow adds a model that takes the place of another.
func (p *Policy) follow(s *State, old Arm, next Model) {
	origin := old.origin()
	if origin == next {
		origin = Model{} // it is the first version again
	}
	arm := old
	arm.Model, arm.Origin = next, origin
	p.algorithm.Follow(s.Models, s.insert(arm))
}

// insert adds a model at its place in the order. If another model has it as its origin, insert
// clears that origin: otherwise two models would have the same users.
func (s *State) insert(arm Arm) (i int) {
	for i := range s.Models {
		if s.Models[i].Origin == arm.Model {
			s.Models[i].Origin = Model{}
		}
	}
	i, _ = slices.BinarySearchFunc(s.Models, arm, byModel)
	s.Models = slices.Insert(s.Models, i, arm)
	return i
}

// sleep sets the model at index i aside.
func (s *State) sleep(i int) {
	arm := s.Models[i]
	s.Models = slices.Delete(s.Models, i, i+1)
	s.Aside = append(s.Aside, arm)
	oldest, versions := 0, 0
	for k := len(s.Aside) - 1; k >= 0; k-- {
		if s.Aside[k].Model.Name == arm.Model.Name {
			oldest = k
			versions++
		}
	}
	if versions > maxVersionsAside {
		s.Aside = slices.Delete(s.Aside, oldest, oldest+1)
	}
	if len(s.Aside) > maxAside {
		s.Aside = slices.Delete(s.Aside, 0, 1)
	}
}

// wake restores a model that was set aside, and reports whether there was one.
func (s *State) wake(m Model) bool {
	i := slices.IndexFunc(s.Aside, func(a Arm) bool { return a.Model == m })
	if i < 0 {
		return false
	}
	arm := s.Aside[i]
	if s.Aside = slices.Delete(s.Aside, i, i+1); len(s.Aside) == 0 {
		s.Aside = nil
	}
	s.insert(arm)
	return true
}
