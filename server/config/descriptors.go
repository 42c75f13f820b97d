package config

import (
	"fmt"

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
type Share struct{ TCP, REST, GRPC, Frigate, Containers, Regions int }

// Apply returns the configuration limited to this share.
func (h Share) Apply(c Config) Config {
	c.TCP.Connections, c.REST.Connections, c.GRPC.Connections, c.Containers.Sessions = h.TCP, h.REST, h.GRPC,
		h.Containers
	if h.Frigate > 0 {
		c.Frigate.Connections = h.Frigate
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
	wanted := Share{TCP: c.TCP.Connections, REST: c.REST.Connections, GRPC: c.GRPC.Connections,
		Containers: c.Containers.Sessions}
	if len(c.Frigate.Listen) > 0 {
		wanted.Frigate = c.Frigate.Connections
	}
	if c.SharedMemory.Directory != "" {
		wanted.Regions = c.SharedMemory.Regions
	}
	got, err = divide(wanted, processes)
	return got, got == wanted, err
}

// divide gives containers at most a quarter of the process's descriptors, and an eighth each to
// clients over HTTP, clients over gRPC, whose connections carry many calls, detectors, and regions
// of shared memory. The rest is for clients over TCP.
func divide(wanted Share, processes int) (Share, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return Share{}, fmt.Errorf("config: reading the limit of open files: %w", err)
	}
	free := int(min(limit.Cur, 1<<30)) - reserved - perProcess*processes
	s := Share{REST: min(wanted.REST, free/8), GRPC: min(wanted.GRPC, free/8), Frigate: min(wanted.Frigate, free/8),
		Containers: min(wanted.Containers, free/4), Regions: min(wanted.Regions, free/8)}
	s.TCP = min(wanted.TCP, free-s.REST-s.GRPC-s.Frigate-s.Containers-s.Regions)
	if s.TCP < 1 || s.REST < 1 || s.GRPC < 1 || s.Frigate < min(1, wanted.Frigate) || s.Containers < 1 {
		return Share{}, fmt.Errorf("config: the limit of %d open files is too low: the server itself needs %d, and %d for %s; raise the limit (ulimit -n)",
			limit.Cur, reserved, perProcess*processes, plural.Words(processes, "process", "processes"))
	}
	return s, nil
}
