//go:build !unix

package main

import "os"

// terminalSize knows no terminals here.
func terminalSize(*os.File) (columns, rows int, ok bool) { return 0, 0, false }
