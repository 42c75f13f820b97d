//go:build !linux

package hostile

import "context"

// Burn needs a thread's processor time, which is known only on Linux.
func Burn(context.Context, float64) { panic("hostile: burning a share of a processor needs Linux") }
