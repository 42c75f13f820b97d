//go:build !unix

package main

import "os"

// terminalSize recognises no terminals on this system.
func terminalSize(*os.File) (columns, rows int, ok bool) { return 0, 0, false }
