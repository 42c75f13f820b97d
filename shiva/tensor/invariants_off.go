//go:build !invariants

package tensor

// Invariants reports whether this is the strict build, of -tags invariants. Its checks compile to
// nothing here; see invariants_on.go.
const Invariants = false

type trace struct{}

func (trace) take()          {}
func (trace) String() string { return "" }

type books struct{}

func (books) add(*Buffer)    {}
func (books) remove(*Buffer) {}

func poison([]byte) {}

// Outstanding describes the buffers of p that are out, one text with the taker's stack each. It
// needs -tags invariants and is empty without; [Pool.InUse] is always there.
func Outstanding(*Pool) []string { return nil }
