//go:build !linux

package doctor

// synchronized cannot be told here.
func synchronized() bool { return true }
