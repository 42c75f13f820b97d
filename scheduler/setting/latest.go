package setting

import (
	"encoding/json"
	"fmt"
)

// Latest says whose answers are kept for those who ask for the newest one of a stream.
type Latest uint8

const (
	LatestAsked  Latest = iota // while somebody asks; each identity has those of its own streams
	LatestAlways               // whether or not somebody asks
	LatestShared               // the same, and whoever may ask the model has them all
)

// LatestValues are the values of a Latest as they are written.
const LatestValues = `false, true or "shared"`

// LatestOf returns the Latest of a decoded value: a boolean or "shared".
func LatestOf(value any) (Latest, error) {
	switch value {
	case false:
		return LatestAsked, nil
	case true:
		return LatestAlways, nil
	case "shared":
		return LatestShared, nil
	}
	return 0, fmt.Errorf("expected %s", LatestValues)
}

// String is how the value is written.
func (l Latest) String() string { return [...]string{"false", "true", `"shared"`}[l] }

// MarshalJSON writes what UnmarshalJSON reads.
func (l Latest) MarshalJSON() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalJSON reads a boolean or "shared".
func (l *Latest) UnmarshalJSON(text []byte) error {
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return err
	}
	var err error
	*l, err = LatestOf(value)
	return err
}
