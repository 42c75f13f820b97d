package containers

import (
	"os"
	"syscall"
)

// processAttributes puts a child into a process group of its own, so that Ctrl-C reaches this
// process alone, which then stops its children in order; and has the kernel kill it when this
// process dies: one that is busy might not obey anything milder, and would be nobody's.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// signalProcess signals the child's group.
func signalProcess(p *os.Process, sig syscall.Signal) error { return syscall.Kill(-p.Pid, sig) }
