//go:build !race && amd64

package tensor

const raceEnabled = false
