//go:build race

package budgettest

const Race = true
