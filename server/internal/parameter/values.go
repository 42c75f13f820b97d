package parameter

import (
	"time"

	"github.com/shivad/shivad/scheduler/setting"
)

// Newest says which answers of a stream will do for a request that asks for the newest one.
type Newest struct {
	After  int64         // one with a higher number; negative: with any number
	MaxAge time.Duration // one that is at most this old; 0 = of any age
	Wait   bool          // if there is none yet, the first that comes until the deadline
}

// AskNewest makes the request one for the newest answer of a stream.
func (v *Values) AskNewest() *Newest {
	if v.Newest == nil {
		v.Newest = &Newest{After: -1}
	}
	return v.Newest
}

func setLatest(v *Values, yes bool) {
	if yes {
		v.AskNewest()
	}
}

// MaxTimeout is the longest Timeout: longer ones are cut to this.
const MaxTimeout = setting.MaxWait

// MaxCandidates is how many models an application links to at most.
const MaxCandidates = 64

// MaxStream is the longest name of a stream, in bytes.
const MaxStream = 256

// The Predict Protocol counts priorities from 1, the highest.
const (
	Priorities      = 10
	DefaultPriority = 6
)

// Level returns the priority as the scheduler counts: 0, the highest, to Priorities-1.
func (v *Values) Level() int {
	if v.Priority == 0 {
		return DefaultPriority - 1
	}
	return int(v.Priority) - 1
}

// SetPriority sets the priority; any number beyond the lowest becomes the lowest.
func (v *Values) SetPriority(n uint64) { v.Priority = uint8(min(n, Priorities)) }

// A Form is how outputs are encoded.
type Form uint8

// Forms of outputs.
const (
	AsUsual  Form = iota // elements over HTTP, bytes over gRPC
	Elements             // JSON, or typed contents
	Bytes                // little-endian
)
