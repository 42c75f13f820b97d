package setting

import (
	"encoding/json"
	"fmt"
)

// Cast says which inputs of other dtypes a model takes.
type Cast uint8

const (
	CastNever   Cast = iota
	CastExact        // those whose values the model's dtype has, and float64 rounded to float32
	CastNearest      // also those that are rounded to a float dtype, or are true for not being 0
)

// CastValues are the values of a Cast as they are written.
const CastValues = `false, true or "nearest"`

// CastOf returns the Cast of a decoded value: a boolean or "nearest".
func CastOf(value any) (Cast, error) {
	switch value {
	case false:
		return CastNever, nil
	case true:
		return CastExact, nil
	case "nearest":
		return CastNearest, nil
	}
	return 0, fmt.Errorf("expected %s", CastValues)
}

// String is how the value is written.
func (c Cast) String() string { return [...]string{"false", "true", `"nearest"`}[c] }

// MarshalJSON writes what UnmarshalJSON reads.
func (c Cast) MarshalJSON() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalJSON reads a boolean or "nearest".
func (c *Cast) UnmarshalJSON(text []byte) error {
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return err
	}
	var err error
	*c, err = CastOf(value)
	return err
}
