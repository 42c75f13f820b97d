//go:build !linux

package hostile

import "context"

// Burn needs the processor time of a thread, which only Linux provides.
func Burn(context.Context, float64) { panic("hostile: burning a share of a processor needs Linux") }
