//go:build (!amd64 && !arm64) || purego

package tensor

// swapVector has no kernel for this build; swapWords does it all.
func swapVector(_, _ []byte, _ int) int { return 0 }

func swapThrough(_, _ []byte, _ int) int { return 0 }
