package parameter

import "github.com/shivad/shivad/scheduler/setting"

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
