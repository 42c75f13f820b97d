package parameter

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
)

// A kind is what a key's value is, and where it goes.
type kind struct {
	expected string                    // type, unit and range in words
	schema   string                    // likewise in the words of JSON Schema: members of an object
	read     func(*Values, Value) bool // false: the value is none of the kind
	anyText  bool                      // any text is one
}

func boolean(set func(*Values, bool)) kind {
	return kind{expected: "true or false", schema: `"type": "boolean"`, read: func(v *Values, value Value) bool {
		b, ok := value.boolean()
		if ok {
			set(v, b)
		}
		return ok
	}}
}

func text(set func(*Values, string)) kind {
	return kind{anyText: true, expected: "a string", schema: `"type": "string"`, read: func(v *Values, value Value) bool {
		s, ok := value.text()
		if ok {
			set(v, s)
		}
		return ok
	}}
}

// names is a list of 1 to most names.
func names(most int, set func(*Values, []string)) kind {
	return kind{
		expected: fmt.Sprintf(`1 to %d names, none of them empty: a text with commas between them or, in JSON, a list such as ["digits/1", "digits/2"]`, most),
		schema:   `"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]`,
		read: func(v *Values, value Value) bool {
			list, ok := value.names()
			if ok = ok && 0 < len(list) && len(list) <= most && !slices.Contains(list, ""); ok {
				set(v, list)
			}
			return ok
		}}
}

// whole is a whole number from 0 to most. Its unit may be "".
func whole(unit string, most uint64, set func(*Values, uint64)) kind {
	schema := `"type": "integer", "minimum": 0`
	if most != math.MaxUint64 {
		schema += `, "maximum": ` + strconv.FormatUint(most, 10)
	}
	return kind{expected: fmt.Sprintf("a whole number%s from 0 to %d", of(unit), most), schema: schema, read: func(v *Values, value Value) bool {
		n, ok := value.whole()
		if ok = ok && n <= most; ok {
			set(v, n)
		}
		return ok
	}}
}

// number is one above 0.
func number(unit string, set func(*Values, float64)) kind {
	return kind{expected: fmt.Sprintf("a number%s above 0", of(unit)), schema: `"type": "number", "exclusiveMinimum": 0`, read: func(v *Values, value Value) bool {
		f, ok := value.number()
		if ok = ok && f > 0; ok {
			set(v, f)
		}
		return ok
	}}
}

// firstMoment is in 1973; as many seconds end in 5138.
const firstMoment = 100_000_000_000

// moment is a time in milliseconds since 1970. Seconds are refused: they would be in January 1970.
func moment(set func(*Values, time.Time)) kind {
	return kind{
		expected: fmt.Sprintf("a whole number of milliseconds since 1970, at least %d", firstMoment),
		schema:   `"type": "integer", "minimum": ` + strconv.Itoa(firstMoment),
		read: func(v *Values, value Value) bool {
			n, ok := value.whole()
			if ok = ok && firstMoment <= n && n <= math.MaxInt64/uint64(time.Millisecond); ok {
				set(v, time.UnixMilli(int64(n)))
			}
			return ok
		}}
}

// keep is how many frames of a stream may wait.
func keep(set func(*Values, setting.Keep)) kind {
	return kind{
		expected: setting.KeepValues,
		schema:   `"anyOf": [{"type": "string"}, {"type": "integer"}]`,
		read: func(v *Values, value Value) bool {
			k, ok := setting.Keep(0), false
			if s, is := value.text(); is {
				k, ok = setting.KeepOf(s)
			} else if n, is := value.whole(); is && n <= setting.MaxKeep {
				k, ok = setting.Keep(n), n > 0
			}
			if ok {
				set(v, k)
			}
			return ok
		}}
}

func of(unit string) string {
	if unit == "" {
		return ""
	}
	return " of " + unit
}
