package process

import (
	"slices"
	"strings"
	"time"
)

// A Group is the processes of one system, in the order in which they were started.
type Group []*Process

// Start starts a command and adds it to the group.
func (g *Group) Start(dir, name string, args ...string) error {
	p, err := Start(dir, name, args...)
	if err == nil {
		*g = append(*g, p)
	}
	return err
}

// Stop ends the processes, the latest first.
func (g Group) Stop() {
	for _, p := range slices.Backward(g) {
		p.Stop()
	}
}

// CPU returns the processor time so far of all processes and of those that they have started.
func (g Group) CPU() (sum time.Duration, err error) {
	for _, p := range g {
		d, err := p.TreeCPU()
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// Alive returns an error that tells how a process ended, or nil while all run.
func (g Group) Alive() error {
	for _, p := range g {
		if err := p.Alive(); err != nil {
			return err
		}
	}
	return nil
}

// Output returns the output of all processes so far.
func (g Group) Output() string {
	var text strings.Builder
	for _, p := range g {
		text.WriteString(p.Output())
	}
	return text.String()
}
