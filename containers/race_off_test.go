//go:build !race

package containers_test

const raceEnabled = false
