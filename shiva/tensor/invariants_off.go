//go:build !invariants

package tensor

// Invariants reports whether this is the strict build (-tags invariants). Its checks compile to
// nothing here; see invariants_on.go.
const Invariants = false

type trace struct{}

func (trace) take()          {}
func (trace) String() string { return "" }

type books struct{}

func (books) add(*Buffer)    {}
func (books) remove(*Buffer) {}

func poison([]byte) {}

// Outstanding describes the buffers of p that are in use, one text each, with the stack that took
// it. Without -tags invariants it returns nil; [Pool.InUse] is always available.
func Outstanding(*Pool) []string { return nil }
