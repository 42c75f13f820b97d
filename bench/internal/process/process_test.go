package process

import (
	"testing"
	"time"
)

// The time of a tree has that of a grandchild.
func TestTreeCPU(t *testing.T) {
	p, err := Start(t.TempDir(), "sh", "-c", `sh -c 'while :; do :; done' '(a name)) 1 2' & trap "kill $!" TERM; wait`)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		own, err := p.CPU()
		if err != nil {
			t.Fatal(err)
		}
		all, err := p.TreeCPU()
		if err != nil {
			t.Fatal(err)
		}
		if all > own+100*time.Millisecond {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the tree used %v, the process itself %v", all, own)
		}
	}
}
