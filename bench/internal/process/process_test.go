package process

import (
	"strings"
	"testing"
	"time"
)

// A group is alive until one of its processes has ended, and its error names that one.
func TestGroup(t *testing.T) {
	var g Group
	defer g.Stop()
	for _, script := range []string{"echo one; sleep 60", "echo two; read line"} {
		if err := g.Start(t.TempDir(), "sh", "-c", script); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Start(t.TempDir(), "/no/such/program"); err == nil || len(g) != 2 {
		t.Errorf("%v, %d processes", err, len(g))
	}
	<-g[1].ended // its input is empty
	if err := g.Alive(); err == nil || !strings.Contains(err.Error(), "sh has ended") || g[:1].Alive() != nil {
		t.Errorf("the second has ended: %v; the first: %v", err, g[:1].Alive())
	}
	for end := time.Now().Add(20 * time.Second); g.Output() != "one\ntwo\n"; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("they printed %q", g.Output())
		}
	}
	if cpu, err := g[:1].CPU(); err != nil || cpu <= 0 {
		t.Errorf("processor time %v, %v", cpu, err)
	}
}

// The time of a tree includes that of a grandchild.
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

// The memory of a process is below its peak once the process has returned some.
func TestMemory(t *testing.T) {
	p, err := Start(t.TempDir(), "sh", "-c", `x=$(printf %020000000d 0); x=; echo done; read line; sleep 60`)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	var now, most int64
	for end := time.Now().Add(20 * time.Second); !strings.Contains(p.Output(), "done"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it printed %q", p.Output())
		}
	}
	if now, most, err = p.Memory(); err != nil || now <= 0 || most < 10<<20 || now > most/2 {
		t.Errorf("%d bytes now, %d at the most, %v", now, most, err)
	}
}

// The total time of the processors grows with the clock, and the idle time by a part of that.
func TestProcessors(t *testing.T) {
	_, before, err := Processors()
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		idle, all, err := Processors()
		if err != nil || idle == 0 || idle > all {
			t.Fatalf("idle for %d of %d: %v", idle, all, err)
		}
		if all > before {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("in 20 s there are still %d ticks", all)
		}
	}
}
