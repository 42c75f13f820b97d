//go:build e2e

package e2e

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"os"
	"path/filepath"
	"testing"
)

// The binaries run on any Linux, even in an image with nothing else, and come with the licence of
// each module in them.
func TestE2EBuild(t *testing.T) {
	notice, err := os.ReadFile(filepath.Join(root(t), "bin/NOTICE"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bin/shivad", "bin/shivactl"} {
		path := filepath.Join(root(t), name)
		program, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer program.Close()
		for _, segment := range program.Progs {
			if segment.Type == elf.PT_INTERP || segment.Type == elf.PT_DYNAMIC {
				t.Errorf("%s is linked dynamically: it has a segment %v", name, segment.Type)
			}
		}
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(info.Deps) == 0 {
			t.Errorf("%s names no modules", name)
		}
		for _, module := range info.Deps {
			if !bytes.Contains(notice, []byte("\n"+module.Path+" "+module.Version+": LICEN")) {
				t.Errorf("bin/NOTICE lacks the licence of %s %s, which is in %s", module.Path, module.Version, name)
			}
		}
	}
}
