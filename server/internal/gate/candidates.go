package gate

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/selection"
)

// Names of what a request says about its answer on every wire: the models that it may be asked of, whether caches take part, and what
// makes requests unequal to them.
const (
	CandidatesKey = "candidate_models"
	CacheKey      = "cache"
	SaltKey       = "salt"
)

// Candidates narrow an application's choice to some of the models that it links to: "name" for each of its versions there, or
// "name/version".
type Candidates []string

// ParseCandidates reads a JSON value: a list of names, or one text with commas between them, for wires whose parameters are no lists.
func ParseCandidates(value []byte) (Candidates, error) {
	var list []string
	if err := json.Unmarshal(value, &list); err == nil && list != nil {
		return NewCandidates(list)
	}
	var text string
	if len(value) > 0 && value[0] == '"' && json.Unmarshal(value, &text) == nil {
		return SplitCandidates(text)
	}
	return nil, fmt.Errorf(`%w: %s: expected a list of models, as ["digits/1", "digits/2"], got %s`, scheduler.ErrInvalidInput, CandidatesKey, Cut(string(value), 60))
}

// SplitCandidates reads a text with commas between the names.
func SplitCandidates(text string) (Candidates, error) {
	list := strings.Split(text, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return NewCandidates(list)
}

// NewCandidates takes a list of names. It refuses lists that leave nothing to choose, and those that are longer than any application's.
func NewCandidates(list []string) (Candidates, error) {
	if len(list) == 0 || len(list) > apps.MaxLinks || slices.Contains(list, "") {
		return nil, fmt.Errorf("%w: %s: expected 1 to %d names of models, none of them empty; got %d", scheduler.ErrInvalidInput, CandidatesKey, apps.MaxLinks, len(list))
	}
	return list, nil
}

// leftOut are the models of the application that chosen leaves out: nil if that is nil. A name that none of them has is an error.
func (a *application) leftOut(chosen Candidates) (left []selection.Model, err error) {
	if chosen == nil {
		return nil, nil
	}
	for _, c := range chosen {
		if !slices.ContainsFunc(a.models, func(m selection.Model) bool { return named(m, c) }) {
			return nil, fmt.Errorf("%w: %s: %s is not one of the models that application %q may ask now: %s",
				scheduler.ErrInvalidInput, CandidatesKey, Cut(strconv.Quote(c), 100), a.Name, modelList(a.models))
		}
	}
	for _, m := range a.models {
		if !slices.ContainsFunc(chosen, func(c string) bool { return named(m, c) }) {
			left = append(left, m)
		}
	}
	return left, nil
}

// named tells whether "name" or "name/version" is the model.
func named(m selection.Model, as string) bool { return as == m.Name || as == m.String() }

func modelList(models []selection.Model) string {
	list := make([]string, len(models))
	for i, m := range models {
		list[i] = m.String()
	}
	return strings.Join(list, ", ")
}
