//go:build !linux

package containers

import (
	"errors"
	"os/exec"
)

func (p Privileges) supported() error {
	if p.User != "" || p.ReadOnly || p.Memory > 0 || p.FileBytes > 0 || p.OpenFiles > 0 || p.Processes > 0 {
		return errors.New("a user, read_only and limits need Linux")
	}
	return nil
}

func onThread(f func()) { f() }

func (Privileges) takeFromThread() error { return nil }

func (Privileges) start(c *exec.Cmd) error { return c.Start() }
