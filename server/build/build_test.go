package build

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestLine(t *testing.T) {
	commit = "0123abc"
	t.Cleanup(func() { commit = "" })
	if got, want := Line("shivad"), "shivad "+Version+" (0123abc "+runtime.Version()+" "+runtime.GOOS+"/"+
		runtime.GOARCH+")"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCommitOfBuild(t *testing.T) {
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "0123abc"}
	for want, info := range map[string]*debug.BuildInfo{
		"":                {Settings: []debug.BuildSetting{{Key: "vcs.modified", Value: "true"}}},
		"0123abc":         {Settings: []debug.BuildSetting{revision, {Key: "vcs.modified", Value: "false"}}},
		"0123abc+changes": {Settings: []debug.BuildSetting{revision, {Key: "vcs.modified", Value: "true"}}},
	} {
		if got := commitOf(info); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := commitOf(nil); got != "" {
		t.Errorf("without any: got %q", got)
	}
}
