//go:build !race

package scheduler_test

const race = false
