package containers

import (
	"os"
	"syscall"
)

// processAttributes puts a child into a session and process group of its own, so that Ctrl-C
// reaches this process alone, which then stops its children in order, and that no child can join
// the process group of another. The kernel sends it SIGKILL when this process dies, since a busy
// child might ignore anything milder and would be orphaned.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

// signalProcess signals the child's group.
func signalProcess(p *os.Process, sig syscall.Signal) error { return syscall.Kill(-p.Pid, sig) }
