// Package setting is how rooms speak of their settings: sizes and durations as people write
// them, the bounds of values, and faults by the names that the configuration file has. Each room
// declares and checks its own settings with it, so that a rule stands once, and whoever reads
// them from somewhere puts the name of that place before a fault.
package setting

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Upper bounds of settings that have no natural one. They lie far above any use, and far enough
// below what 64 bits hold that a door can add and multiply without a look at each sum: a message
// of MaxBytes that may take a second for each 16 KiB has 34 years, which is still a
// [time.Duration].
const (
	MaxBytes = Bytes(16 << 40)
	MaxWait  = 24 * time.Hour       // for what somebody waits for: no deadline is longer
	MaxIdle  = 365 * 24 * time.Hour // for what nobody waits for
)

// A Fault is one thing that is wrong with a setting.
type Fault struct {
	Key  string // of the setting, as "max_batch"; "" if no single one is at fault
	Text string // what was expected and what came
}

func (f Fault) String() string {
	if f.Key == "" {
		return f.Text
	}
	return f.Key + ": " + f.Text
}

// Faults are all that is wrong with the settings of a room. The zero value is ready.
type Faults []Fault

// Error is all faults in one line.
func (fs Faults) Error() string {
	texts := make([]string, len(fs))
	for i, f := range fs {
		texts[i] = f.String()
	}
	return strings.Join(texts, "; ")
}

// Err is fs, or nil if nothing is wrong.
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

// Check adds the error about a setting, if there is one.
func (fs *Faults) Check(key string, err error) {
	if err != nil {
		fs.Add(key, "%v", err)
	}
}

// Between adds a fault if a setting is not from low to high.
func Between[N int | Bytes | time.Duration](fs *Faults, key string, v, low, high N) {
	if v < low || v > high {
		fs.Add(key, "expected %s to %s, got %s", text(low), text(high), text(v))
	}
}

// OneOf adds a fault if v is none of the words.
func (fs *Faults) OneOf(key, v string, words ...string) {
	if !slices.Contains(words, v) {
		fs.Add(key, "expected one of %s, got %q", strings.Join(words, ", "), v)
	}
}
