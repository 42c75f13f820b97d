//go:build !unix

package main

import "os"

// terminalColumns knows no terminals here.
func terminalColumns(*os.File) (columns int, ok bool) { return 0, false }
