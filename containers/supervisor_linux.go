package containers

import (
	"os"
	"syscall"
)

// processAttributes puts a child into a process group of its own, so that Ctrl-C reaches this
// process alone, which then stops its children in order. The kernel sends it SIGKILL when this
// process dies, since a busy child might ignore anything milder and would be orphaned.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// signalProcess signals the child's group.
func signalProcess(p *os.Process, sig syscall.Signal) error { return syscall.Kill(-p.Pid, sig) }
