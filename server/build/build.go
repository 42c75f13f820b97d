// Package build says which shivad this is: for the server, and for the tools beside it.
package build

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// Version is that of the release, as clients and containers are told.
const Version = "0.1.0"

// commit is that of the sources in programs of "make dist", which sets it by the linker.
var commit string

// Commit is that of the sources that the program was built of; "" if the build does not know it.
// A build of changed sources ends with "+changes".
func Commit() string {
	if commit != "" {
		return commit
	}
	info, _ := debug.ReadBuildInfo()
	return commitOf(info)
}

// commitOf is what Go itself has noted of the repository, unless GOFLAGS has -buildvcs=false.
func commitOf(info *debug.BuildInfo) (found string) {
	if info == nil {
		return ""
	}
	changed := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			found = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+changes"
		}
	}
	if found == "" {
		return ""
	}
	return found + changed
}

// Line is what a program says of itself when it is asked for its version: name and number, and in
// brackets the commit, if it is known, the version of Go and the platform.
func Line(program string) string {
	built := strings.TrimSpace(Commit() + " " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH)
	return program + " " + Version + " (" + built + ")"
}
