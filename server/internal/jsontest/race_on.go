//go:build race

package jsontest

const raceEnabled = true
