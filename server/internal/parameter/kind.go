package parameter

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
)

// A kind describes the value of a key, and stores it in Values.
type kind struct {
	expected string                    // type, unit and range in words
	schema   string                    // the same in JSON Schema: members of an object
	read     func(*Values, Value) bool // false: the value is not of the kind
	anyText  bool                      // any text is a value of the kind
}

// reads makes the read function of a kind: as reads a value, takes selects the accepted values of
// that type (nil: all), and set stores them.
func reads[T any](as func(Value) (T, bool), takes func(T) bool, set func(*Values, T)) func(*Values, Value) bool {
	return func(v *Values, value Value) bool {
		got, ok := as(value)
		if ok = ok && (takes == nil || takes(got)); ok {
			set(v, got)
		}
		return ok
	}
}

func boolean(set func(*Values, bool)) kind {
	return kind{expected: "true or false", schema: `"type": "boolean"`, read: reads(Value.boolean, nil, set)}
}

func text(set func(*Values, string)) kind {
	return kind{anyText: true, expected: "a string", schema: `"type": "string"`, read: reads(Value.text, nil, set)}
}

// name is a text of 1 to most bytes.
func name(most int, set func(*Values, string)) kind {
	return kind{
		expected: fmt.Sprintf("a string of 1 to %d bytes", most),
		schema:   `"type": "string"`, // JSON Schema counts characters
		read:     reads(Value.text, func(s string) bool { return 0 < len(s) && len(s) <= most }, set),
	}
}

// names is a list of 1 to most names.
func names(most int, set func(*Values, []string)) kind {
	return kind{
		expected: fmt.Sprintf(`1 to %d names, none of them empty: a text with commas between them or, in JSON, a list such as ["digits/1", "digits/2"]`, most),
		schema:   `"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]`,
		read: reads(Value.names, func(list []string) bool {
			return 0 < len(list) && len(list) <= most && !slices.Contains(list, "")
		}, set),
	}
}

// whole is a whole number from 0 to most. The unit may be "".
func whole(unit string, most uint64, set func(*Values, uint64)) kind {
	schema := `"type": "integer", "minimum": 0`
	if most != math.MaxUint64 {
		schema += `, "maximum": ` + strconv.FormatUint(most, 10)
	}
	return kind{
		expected: fmt.Sprintf("a whole number%s from 0 to %d", ofUnit(unit), most),
		schema:   schema,
		read:     reads(Value.Whole, func(n uint64) bool { return n <= most }, set),
	}
}

// number is a number above 0.
func number(unit string, set func(*Values, float64)) kind {
	return kind{
		expected: fmt.Sprintf("a number%s above 0", ofUnit(unit)),
		schema:   `"type": "number", "exclusiveMinimum": 0`,
		read:     reads(Value.number, func(f float64) bool { return f > 0 }, set),
	}
}

// Times outside of these, in milliseconds since 1970, are no moments: firstMoment is in 1973, and
// as a number of seconds it would be in 5138.
const (
	firstMoment = 100_000_000_000
	lastMoment  = math.MaxInt64 / int64(time.Millisecond)
)

// moment is a time in milliseconds since 1970. A time that is no moment is set as the zero Time: it
// comes from a clock that nobody has set, as devices without a battery have it, or counts seconds.
func moment(set func(*Values, time.Time)) kind {
	return kind{
		expected: "a number of milliseconds since 1970",
		schema:   `"type": "number"`,
		read: reads(Value.number, nil, func(v *Values, ms float64) {
			if ms < firstMoment || float64(lastMoment) <= ms || ms != ms {
				set(v, time.Time{})
				return
			}
			whole, part := math.Modf(ms)
			set(v, time.UnixMilli(int64(whole)).Add(time.Duration(part*float64(time.Millisecond))))
		}),
	}
}

// keep is how many frames of a stream may wait.
func keep(set func(*Values, setting.Keep)) kind {
	return kind{
		expected: setting.KeepValues,
		schema:   `"anyOf": [{"type": "string"}, {"type": "integer"}]`,
		read:     reads(Value.keep, nil, set),
	}
}

func (v Value) keep() (setting.Keep, bool) {
	if n, ok := v.Whole(); ok {
		return setting.Keep(n), 0 < n && n <= setting.MaxKeep
	}
	s, _ := v.text()
	return setting.KeepOf(s)
}

func ofUnit(unit string) string {
	if unit == "" {
		return ""
	}
	return " of " + unit
}
