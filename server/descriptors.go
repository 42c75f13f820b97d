package server

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Descriptors that are not client connections: listeners, event polls, logs and profiles, the admin door,
// containers and the pipes of their processes. gnet ends when an accept finds no descriptor left, so these
// are set aside before any client is let in.
const (
	reserved   = 64 // the admin door's 16 connections are among them
	perProcess = 4  // pipes and what starting one takes
)

// split divides the process's descriptors: how many clients and how many containers may be connected, of
// those that are wanted. Containers get at most a quarter.
func split(clients, containers, processes int) (int, int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, 0, fmt.Errorf("server: how many files may be open: %w", err)
	}
	free := int(min(limit.Cur, 1<<30)) - reserved - perProcess*processes
	containers = min(containers, free/4)
	clients = min(clients, free-containers)
	if clients < 1 || containers < 1 {
		return 0, 0, fmt.Errorf("server: %d open files are too few: %d are set aside for the server itself and %d for %d processes; raise the limit (ulimit -n)",
			limit.Cur, reserved, perProcess*processes, processes)
	}
	return clients, containers, nil
}
