// Package build says which shivad this is: for the server, and for the tools beside it.
package build

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// Version is the release's, which clients and containers are told.
const Version = "0.1.0"

// commit is set by the linker in the programs of "make dist".
var commit string

// Commit returns the commit that the program was built from, or "" if the build does not know it.
// It ends with "+changes" if the sources differed from the commit.
func Commit() string {
	if commit != "" {
		return commit
	}
	info, _ := debug.ReadBuildInfo()
	return commitOf(info)
}

// commitOf returns the commit that Go recorded, which it does unless GOFLAGS has -buildvcs=false.
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

// Line returns what a program prints for -version: its name and version, and in brackets the commit
// if it is known, the version of Go, and the platform.
func Line(program string) string {
	built := strings.TrimSpace(Commit() + " " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH)
	return program + " " + Version + " (" + built + ")"
}
