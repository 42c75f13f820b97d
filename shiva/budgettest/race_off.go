//go:build !race

package budgettest

// Race reports whether the race detector is on. The detector makes a test take ten times as long,
// and allocates by itself.
const Race = false
