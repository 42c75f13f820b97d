//go:build !unix

package main

import "os"

// resizes tells nothing: this system has no signal for that, and the next output has the new size.
func resizes() (changed <-chan os.Signal, stop func()) { return nil, func() {} }
