package gate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/selection"
)

// leftOut are the models of the application that chosen leaves out: nil if that is nil. A name
// that none of them has is an error.
//
// An entry of chosen is "name", for each of its versions there, or "name/version".
func (a *application) leftOut(chosen []string) (left []selection.Model, err error) {
	if chosen == nil {
		return nil, nil
	}
	for _, c := range chosen {
		if !slices.ContainsFunc(a.models, func(m selection.Model) bool { return named(m, c) }) {
			return nil, fmt.Errorf("%w: %s: %s is not one of the models that application %q may ask now: %s",
				scheduler.ErrInvalidInput, parameter.CandidateModels, Cut(strconv.Quote(c), 100), a.Name, modelList(a.models))
		}
	}
	for _, m := range a.models {
		if !slices.ContainsFunc(chosen, func(c string) bool { return named(m, c) }) {
			left = append(left, m)
		}
	}
	return left, nil
}

// named reports whether "name" or "name/version" is the model.
func named(m selection.Model, as string) bool { return as == m.Name || as == m.String() }

func modelList(models []selection.Model) string {
	list := make([]string, len(models))
	for i, m := range models {
		list[i] = m.String()
	}
	return strings.Join(list, ", ")
}
