package operate

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/shivad/shivad/shiva/jsonscan"
)

// A change is JSON that turns one document into another. An object {"=": VALUE} puts a value in the
// place of the old one; any other object has the changes of some members of an object, or of some
// elements of an array by their index; all else is the new value itself. Most of what a large
// server shows is the same a second later, so a change is a small part of the document.

// appendChange appends the change from one value to another. Both are valid JSON without white
// space.
func appendChange(to, from, now []byte) []byte {
	old, names, list := children(from)
	next, others, _ := children(now)
	switch {
	case now[0] != '{' && now[0] != '[':
		return append(to, now...)
	case from[0] != now[0] || len(next) == 0 || len(old) != len(next) || !slices.Equal(names, others) ||
		slices.Contains(names, "="):
		return append(append(append(to, `{"=":`...), now...), '}')
	}
	to = append(to, '{')
	for i, value := range next {
		if bytes.Equal(old[i], value) {
			continue
		}
		if to[len(to)-1] != '{' {
			to = append(to, ',')
		}
		name := strconv.Itoa(i)
		if !list {
			name = names[i]
		}
		quoted, _ := json.Marshal(name) // of a string: cannot fail
		to = appendChange(append(append(to, quoted...), ':'), old[i], value)
	}
	return append(to, '}')
}

// children returns the members of an object with their names, or the elements of an array; none of
// anything else.
func children(value []byte) (values [][]byte, names []string, list bool) {
	switch value[0] {
	case '{':
		for name, one := range jsonscan.Members(value) {
			names, values = append(names, string(name)), append(values, one)
		}
	case '[':
		list = true
		s := jsonscan.Scanner{Text: value, Depth: len(value)}
		for range s.Elements {
			values = append(values, s.Raw())
		}
	}
	return values, names, list
}
