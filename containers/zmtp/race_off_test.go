//go:build !race

package zmtp_test

const raceEnabled = false
