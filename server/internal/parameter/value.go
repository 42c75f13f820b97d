package parameter

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/shivad/shivad/shiva/jsonscan"
)

// A Value is a request's value for a key, as its wire encodes it.
type Value struct {
	json  []byte // nil: typed
	typed any
}

// JSON returns the value of a valid JSON text, which is not retained.
func JSON(text []byte) Value { return Value{json: text} }

// Typed returns a value of a wire whose values have types: bool, int64, uint64, float64, string or
// []string, which is not copied; nil is no value.
func Typed(v any) Value { return Value{typed: v} }

func (v Value) boolean() (b, ok bool) {
	if v.json == nil {
		b, ok = v.typed.(bool)
		return b, ok
	}
	b = string(v.json) == "true"
	return b, b || string(v.json) == "false"
}

// Whole returns a whole number of 0 or more.
func (v Value) Whole() (uint64, bool) {
	switch n := v.typed.(type) {
	case int64:
		return uint64(n), n >= 0
	case uint64:
		return n, true
	}
	n, err := strconv.ParseUint(string(v.json), 10, 64)
	return n, err == nil
}

func (v Value) number() (float64, bool) {
	switch n := v.typed.(type) {
	case int64:
		return float64(n), true
	case uint64:
		return float64(n), true
	case float64:
		return n, true
	}
	f, err := strconv.ParseFloat(string(v.json), 64)
	return f, err == nil
}

// text returns a text, or a number as it is written: users and cameras have numbers, too.
func (v Value) text() (string, bool) {
	switch s := v.typed.(type) {
	case string:
		return s, true
	case int64, uint64, float64:
		return fmt.Sprint(s), true
	}
	if len(v.json) > 0 && (v.json[0] == '-' || '0' <= v.json[0] && v.json[0] <= '9') {
		return string(v.json), true
	}
	return jsonscan.Unquote(v.json)
}

// names returns a list of names, which is a text with commas between them on wires without lists.
func (v Value) names() ([]string, bool) {
	if s, ok := v.text(); ok {
		list := strings.Split(s, ",")
		for i := range list {
			list[i] = strings.TrimSpace(list[i])
		}
		return list, true
	}
	if list, ok := v.typed.([]string); ok {
		return list, true
	}
	var list []string
	return list, len(v.json) > 0 && json.Unmarshal(v.json, &list) == nil
}

// String formats the value for an error.
func (v Value) String() string {
	s := string(v.json)
	switch {
	case v.json != nil:
	case v.typed == nil:
		s = "no value"
	default:
		s = fmt.Sprintf("%T %v", v.typed, v.typed)
	}
	const most = 60
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strings.ToValidUTF8(s, "")
}
