//go:build !race

package jsontest

const raceEnabled = false
