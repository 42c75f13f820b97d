package server

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Descriptors that are not client connections: listeners, event polls, logs and profiles, the admin door,
// containers and the pipes of their processes. gnet ends when an accept finds no descriptor left, so these
// are set aside before any client is let in.
const (
	reservedDescriptors   = 64
	adminConnections      = 16 // of the reserve
	containerShare        = 4  // a quarter of what is left after the reserve may be containers, at most
	maxContainers         = 1024
	descriptorsPerProcess = 4
)

// split divides the process's descriptors: how many clients and how many containers may be connected.
// want is the configured number of clients.
func split(want, processes int) (clients, containers int, err error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, 0, fmt.Errorf("server: how many descriptors may be open: %w", err)
	}
	free := int(min(limit.Cur, 1<<30)) - reservedDescriptors - descriptorsPerProcess*processes
	containers = min(free/containerShare, maxContainers)
	clients = min(want, free-containers)
	if clients < 1 || containers < 1 {
		return 0, 0, fmt.Errorf("server: %d file descriptors are too few: %d are set aside for the server itself and %d for %d processes; raise the limit (ulimit -n)",
			limit.Cur, reservedDescriptors, descriptorsPerProcess*processes, processes)
	}
	return clients, containers, nil
}
