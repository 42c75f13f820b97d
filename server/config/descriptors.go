package config

import (
	"fmt"
	"maps"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/shiva/plural"
)

// Descriptors that are not client connections: listeners, event polls, logs and profiles, the admin
// door, containers and the pipes of their processes. gnet ends when an accept finds no descriptor
// left, so these are set aside before any client is accepted.
const (
	reserved   = 80 // the admin door's 16 connections are among them
	perProcess = 4  // pipes, and descriptors needed to start one
)

// A Share is how many connections of each kind, and regions of shared memory, may be open.
type Share struct {
	Doors               map[string]int // by name; without doors that do not listen
	Containers, Regions int
}

// Apply returns the configuration limited to this share.
func (h Share) Apply(c Config) Config {
	c.Containers.Sessions = h.Containers
	for _, d := range c.Doors() {
		if n, has := h.Doors[d.Name]; has {
			*d.Connections = n
		}
	}
	if h.Regions > 0 {
		c.SharedMemory.Regions = h.Regions
	}
	return c
}

// Share divides the descriptors that this process may have among the connections and regions that
// the configuration allows. all reports whether there is one for each of them.
func (c Config) Share() (got Share, all bool, err error) {
	processes := 0
	for _, c := range c.Supervised {
		processes += max(c.Replicas.Max, 1)
	}
	for _, m := range c.ModelFiles {
		processes += max(m.Replicas.Max, 1)
	}
	wanted := Share{Doors: map[string]int{}, Containers: c.Containers.Sessions}
	for _, d := range c.Doors() {
		if len(*d.Listen) > 0 {
			wanted.Doors[d.Name] = *d.Connections
		}
	}
	if c.SharedMemory.Directory != "" {
		wanted.Regions = c.SharedMemory.Regions
	}
	got, err = divide(wanted, processes)
	all = got.Containers == wanted.Containers && got.Regions == wanted.Regions && maps.Equal(got.Doors, wanted.Doors)
	return got, all, err
}

// divide gives containers at most a quarter of the process's descriptors, and an eighth each to the
// clients of the other doors than tcp and to regions of shared memory. The rest is for clients over
// TCP.
func divide(wanted Share, processes int) (Share, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return Share{}, fmt.Errorf("config: reading the limit of open files: %w", err)
	}
	free := int(min(limit.Cur, 1<<30)) - reserved - perProcess*processes
	s := Share{Doors: map[string]int{}, Containers: min(wanted.Containers, free/4),
		Regions: min(wanted.Regions, free/8)}
	left, least := free-s.Containers-s.Regions, s.Containers
	for name, n := range wanted.Doors {
		if name != "tcp" {
			s.Doors[name] = min(n, free/8)
			left, least = left-s.Doors[name], min(least, s.Doors[name])
		}
	}
	if n, listens := wanted.Doors["tcp"]; listens {
		s.Doors["tcp"] = min(n, left)
		least = min(least, s.Doors["tcp"])
	}
	if least < 1 {
		return Share{}, fmt.Errorf("config: the limit of %d open files is too low: the server itself needs %d, and %d for %s; raise the limit (ulimit -n)",
			limit.Cur, reserved, perProcess*processes, plural.Words(processes, "process", "processes"))
	}
	return s, nil
}
