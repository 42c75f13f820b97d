//go:build !linux

package containers

import (
	"os"
	"syscall"
)

// processAttributes: other systems have no signal for a parent's death.
func processAttributes() *syscall.SysProcAttr { return nil }

func signalProcess(p *os.Process, sig syscall.Signal) error { return p.Signal(sig) }
