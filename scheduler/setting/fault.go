// Package setting validates settings: sizes and durations in their written form, bounds of values,
// and faults by the names in the configuration file. Each room declares and validates its own
// settings with it, so that every rule exists once. The reader of a file puts the name of the table
// before a fault.
package setting

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Upper bounds of settings without a natural one. They are far above any use, and far enough
// below 64 bits that sums and products cannot overflow: the [Allowance] of a message of MaxBytes is
// 34 years, which fits a [time.Duration].
const (
	MaxBytes = Bytes(16 << 40)
	MaxWait  = 24 * time.Hour       // of times that a caller waits for: no deadline is longer
	MaxIdle  = 365 * 24 * time.Hour // of other times
)

// A Fault is one fault of a setting.
type Fault struct {
	Key  string // of the setting, such as "max_batch"; "" if no single one is at fault
	Text string // the expectation and the value
}

func (f Fault) String() string {
	if f.Key == "" {
		return f.Text
	}
	return f.Key + ": " + f.Text
}

// Faults are all faults of the settings of a room. The zero value is ready to use.
type Faults []Fault

// Error returns all faults in one line.
func (fs Faults) Error() string {
	texts := make([]string, len(fs))
	for i, f := range fs {
		texts[i] = f.String()
	}
	return strings.Join(texts, "; ")
}

// Err returns fs, or nil if there are no faults.
func (fs Faults) Err() error {
	if len(fs) == 0 {
		return nil
	}
	return fs
}

// Add adds a fault of a setting.
func (fs *Faults) Add(key, format string, args ...any) {
	*fs = append(*fs, Fault{key, fmt.Sprintf(format, args...)})
}

// Check adds err as a fault of a setting, unless it is nil.
func (fs *Faults) Check(key string, err error) {
	if err != nil {
		fs.Add(key, "%v", err)
	}
}

// Between adds a fault if a setting is not in [low, high].
func Between[N int | Bytes | time.Duration](fs *Faults, key string, v, low, high N) {
	if v < low || v > high {
		fs.Add(key, "expected %s to %s, got %s", text(low), text(high), text(v))
	}
}

// OneOf adds a fault if v is none of words.
func (fs *Faults) OneOf(key, v string, words ...string) {
	if !slices.Contains(words, v) {
		fs.Add(key, "expected one of %s, got %q", strings.Join(words, ", "), v)
	}
}
