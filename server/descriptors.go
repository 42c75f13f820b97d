package server

import (
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/server/config"
)

// Descriptors that are not client connections: listeners, event polls, logs and profiles, the admin
// door, containers and the pipes of their processes. gnet ends when an accept finds no descriptor
// left, so these are set aside before any client is accepted.
const (
	reserved   = 80 // the admin door's 16 connections are among them
	perProcess = 4  // pipes, and descriptors needed to start one
)

// A share is how many connections of each kind, and regions of shared memory, may be open.
type share struct{ tcp, rest, grpc, frigate, containers, regions int }

// apply returns the configuration limited to this share.
func (h share) apply(c config.Config) config.Config {
	c.TCP.Connections, c.REST.Connections, c.GRPC.Connections, c.Containers.Sessions = h.tcp, h.rest, h.grpc,
		h.containers
	if h.frigate > 0 {
		c.Frigate.Connections = h.frigate
	}
	if h.regions > 0 {
		c.SharedMemory.Regions = h.regions
	}
	return c
}

// split divides the process's descriptors among the connections that a configuration allows, and
// logs if there are fewer.
func split(c config.Config, log *slog.Logger) (share, error) {
	processes := 0
	for _, c := range c.Supervised {
		processes += max(c.Replicas.Max, 1)
	}
	for _, m := range c.ModelFiles {
		processes += max(m.Replicas.Max, 1)
	}
	wanted := share{tcp: c.TCP.Connections, rest: c.REST.Connections, grpc: c.GRPC.Connections,
		containers: c.Containers.Sessions}
	if len(c.Frigate.Listen) > 0 {
		wanted.frigate = c.Frigate.Connections
	}
	if c.SharedMemory.Directory != "" {
		wanted.regions = c.SharedMemory.Regions
	}
	got, err := divide(wanted, processes)
	if err == nil && got != wanted {
		log.Info("the limit of open files allows fewer connections or regions than configured",
			"tcp.connections", got.tcp, "rest.connections", got.rest, "grpc.connections", got.grpc,
			"frigate.connections", got.frigate, "containers.sessions", got.containers, "shared_memory.regions",
			got.regions)
	}
	return got, err
}

// divide gives containers at most a quarter of the process's descriptors, and an eighth each to
// clients over HTTP, clients over gRPC, whose connections carry many calls, detectors, and regions
// of shared memory. The rest is for clients over TCP.
func divide(wanted share, processes int) (share, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return share{}, fmt.Errorf("server: reading the limit of open files: %w", err)
	}
	free := int(min(limit.Cur, 1<<30)) - reserved - perProcess*processes
	s := share{rest: min(wanted.rest, free/8), grpc: min(wanted.grpc, free/8), frigate: min(wanted.frigate, free/8),
		containers: min(wanted.containers, free/4), regions: min(wanted.regions, free/8)}
	s.tcp = min(wanted.tcp, free-s.rest-s.grpc-s.frigate-s.containers-s.regions)
	if s.tcp < 1 || s.rest < 1 || s.grpc < 1 || s.frigate < min(1, wanted.frigate) || s.containers < 1 {
		return share{}, fmt.Errorf("server: the limit of %d open files is too low: the server itself needs %d, and %d for %d processes; raise the limit (ulimit -n)",
			limit.Cur, reserved, perProcess*processes, processes)
	}
	return s, nil
}
