package setting

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// Keep is how many frames of a stream may wait for a model, of which the newest stay. Where several
// rooms may set it, the zero value leaves it to the next one.
type Keep int32

const (
	KeepAll    Keep = -1 // any number
	KeepLatest Keep = 1

	// MaxKeep is the upper bound of a number. Each submitted frame walks the waiting frames of its
	// stream.
	MaxKeep = 1 << 10
)

// KeepValues are the values of a Keep in words.
var KeepValues = fmt.Sprintf(`"all", "latest" or a whole number from 1 to %d`, MaxKeep)

// KeepOf reads "all" and "latest".
func KeepOf(word string) (k Keep, ok bool) {
	switch word {
	case "all":
		return KeepAll, true
	case "latest":
		return KeepLatest, true
	}
	return 0, false
}

// ParseKeep reads the text of a Keep: "all", "latest" or a number.
func ParseKeep(s string) (Keep, error) {
	if k, ok := KeepOf(s); ok {
		return k, nil
	}
	if n, err := strconv.Atoi(s); err == nil && 1 <= n && n <= MaxKeep {
		return Keep(n), nil
	}
	return 0, fmt.Errorf("expected %s, got %q", KeepValues, s)
}

// Valid reports whether k is one of KeepValues.
func (k Keep) Valid() bool { return k == KeepAll || 1 <= k && k <= MaxKeep }

// String is the text that ParseKeep reads; "" for the zero value.
func (k Keep) String() string {
	switch k {
	case 0:
		return ""
	case KeepAll:
		return "all"
	case KeepLatest:
		return "latest"
	}
	return strconv.Itoa(int(k))
}

// MarshalJSON writes a number as a number, all else as a text.
func (k Keep) MarshalJSON() ([]byte, error) {
	if k > KeepLatest {
		return strconv.AppendInt(nil, int64(k), 10), nil
	}
	return strconv.AppendQuote(nil, k.String()), nil
}

// UnmarshalJSON is ParseKeep for a text or a number; "" is the zero value.
func (k *Keep) UnmarshalJSON(value []byte) (err error) {
	text := string(value)
	if text[0] == '"' {
		if err = json.Unmarshal(value, &text); err != nil {
			return err
		}
	}
	if *k = 0; text != "" {
		*k, err = ParseKeep(text)
	}
	return err
}
