package parameter

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// A kind is what a key's value is, and where it goes.
type kind interface {
	expected() string         // type, unit and range in words
	schema() string           // likewise in the words of JSON Schema: members of an object
	read(*Values, Value) bool // false: the value is none of the kind
}

type boolean func(*Values, bool)

func (boolean) expected() string { return "true or false" }
func (boolean) schema() string   { return `"type": "boolean"` }

func (set boolean) read(v *Values, value Value) bool {
	b, ok := value.boolean()
	if ok {
		set(v, b)
	}
	return ok
}

type text func(*Values, string)

func (text) expected() string { return "a string" }
func (text) schema() string   { return `"type": "string"` }

func (set text) read(v *Values, value Value) bool {
	s, ok := value.text()
	if ok {
		set(v, s)
	}
	return ok
}

// A names is a list of 1 to max names.
type names struct {
	max int
	set func(*Values, []string)
}

func (k names) expected() string {
	return fmt.Sprintf(`1 to %d names, none of them empty: a text with commas between them or, in JSON, a list such as ["digits/1", "digits/2"]`, k.max)
}

func (names) schema() string {
	return `"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]`
}

func (k names) read(v *Values, value Value) bool {
	list, ok := value.names()
	if ok = ok && 0 < len(list) && len(list) <= k.max && !slices.Contains(list, ""); ok {
		k.set(v, list)
	}
	return ok
}

// A whole is a whole number from 0 to max.
type whole struct {
	unit string // "" = none
	max  uint64
	set  func(*Values, uint64)
}

func (k whole) expected() string {
	return fmt.Sprintf("a whole number%s from 0 to %d", of(k.unit), k.max)
}

func (k whole) schema() string {
	if k.max == math.MaxUint64 {
		return `"type": "integer", "minimum": 0`
	}
	return `"type": "integer", "minimum": 0, "maximum": ` + strconv.FormatUint(k.max, 10)
}

func (k whole) read(v *Values, value Value) bool {
	n, ok := value.whole()
	if ok = ok && n <= k.max; ok {
		k.set(v, n)
	}
	return ok
}

// A number is one above 0.
type number struct {
	unit string // "" = none
	set  func(*Values, float64)
}

func (k number) expected() string { return fmt.Sprintf("a number%s above 0", of(k.unit)) }
func (k number) schema() string   { return `"type": "number", "exclusiveMinimum": 0` }

func (k number) read(v *Values, value Value) bool {
	f, ok := value.number()
	if ok = ok && f > 0; ok {
		k.set(v, f)
	}
	return ok
}

func of(unit string) string {
	if unit == "" {
		return ""
	}
	return " of " + unit
}
