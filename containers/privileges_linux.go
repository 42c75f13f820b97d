package containers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func (Privileges) supported() error { return nil }

// onThread calls f on a thread of its own, which ends with f. No other goroutine loses the
// privileges that f drops: Go starts no thread from one that is locked. The first thread is not
// used, as it never ends, and stands for the process in /proc.
func onThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		f()
		return
	}
	over := make(chan struct{})
	go func() { // ends with f; joined below
		defer close(over)
		runtime.LockOSThread()
		f()
	}()
	<-over
	runtime.UnlockOSThread()
}

// takeFromThread drops privileges of the calling thread that its children must not have. Both
// restrictions belong to a thread, and a child inherits those of the thread that forked it, so no
// program in between is needed. They cannot be undone.
func (p Privileges) takeFromThread() error {
	// Without no_new_privs Landlock requires CAP_SYS_ADMIN: a program with more rights must not be
	// misled.
	if !p.NewPrivileges || p.ReadOnly {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("new_privileges: %w", err)
		}
	}
	if !p.ReadOnly {
		return nil
	}
	return p.landlock()
}

const (
	toFile = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	toDir  = toFile | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER

	// truncateVersion is the version of Landlock from which on truncate(2) can be denied. Without
	// that a process could empty every file of its user.
	truncateVersion = 3
)

// landlock denies the thread every change to the file system except below Writable and to devices.
func (p Privileges) landlock() error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return fmt.Errorf("read_only: this kernel has no Landlock (%w)", errno)
	}
	if version < truncateVersion {
		return fmt.Errorf("read_only: needs Landlock %d (Linux 6.2), and this kernel has %d", truncateVersion, version)
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: toDir}
	rules, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)),
		unsafe.Sizeof(attr.Handled_access_fs), 0)
	if errno != 0 {
		return fmt.Errorf("read_only: %w", errno)
	}
	defer unix.Close(int(rules))
	for _, dir := range p.Writable {
		if err := allow(int(rules), dir, toDir); err != nil {
			return fmt.Errorf("writable: %w", err)
		}
	}
	devices, err := os.ReadDir("/dev")
	if err != nil {
		return fmt.Errorf("read_only: %w", err)
	}
	for _, d := range devices {
		// shm, mqueue and hugepages are no devices but memory that other processes share; links
		// lead to pipes, which need no rule.
		if slices.Contains([]string{"shm", "mqueue", "hugepages"}, d.Name()) ||
			d.Type()&(os.ModeDevice|os.ModeDir) == 0 {
			continue
		}
		// A device that cannot be opened cannot be written to either.
		if err := allow(int(rules), filepath.Join("/dev", d.Name()), toFile); err != nil &&
			!errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("read_only: %w", err)
		}
	}
	if _, _, errno = unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0); errno != 0 {
		return fmt.Errorf("read_only: %w", errno)
	}
	return nil
}

// allow permits access to path and to everything below it.
func allow(rules int, path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var s unix.Stat_t
	if err = unix.Fstat(fd, &s); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if s.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= toFile
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
		return &os.PathError{Op: "allow", Path: path, Err: errno}
	}
	return nil
}

// start starts c under the limits, and as another user if one is configured. The calling thread
// must be locked.
//
// Limits belong to a process, so they cannot be set on the thread beforehand. ptrace stops the
// child at its first instruction, where they are set: set later, they would not bind the processes
// that the child has started by then.
func (p Privileges) start(c *exec.Cmd) error {
	if p.User != "" {
		a, err := accountOf(p.User)
		if err != nil {
			return err
		}
		if int(a.uid) != os.Geteuid() {
			c.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: a.groups}
		}
	}
	limits := p.limits()
	c.SysProcAttr.Ptrace = len(limits) > 0
	if err := c.Start(); err != nil {
		if c.SysProcAttr.Credential != nil && errors.Is(err, syscall.EPERM) {
			return fmt.Errorf("user: running as %s requires root, or CAP_SETUID and CAP_SETGID: %w", p.User, err)
		}
		return err
	}
	if len(limits) == 0 {
		return nil
	}
	err := limit(c.Process.Pid, limits)
	if err != nil {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	return err
}

// limit sets the limits of a child that ptrace stops at its first instruction, and lets it
// continue.
func limit(pid int, limits map[int]uint64) error {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("limits: %w", err)
		}
		if !status.Stopped() {
			return fmt.Errorf("limits: the process ended before its program started: %v", status)
		}
		break
	}
	for resource, n := range limits {
		var had unix.Rlimit
		err := unix.Prlimit(pid, resource, nil, &had)
		if n = min(n, had.Max); err == nil {
			err = unix.Prlimit(pid, resource, &unix.Rlimit{Cur: n, Max: n}, nil)
		}
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("limits: setting those of another user requires CAP_SYS_RESOURCE: %w", err)
		}
		if err != nil {
			return fmt.Errorf("limits: %w", err)
		}
	}
	return os.NewSyscallError("ptrace", unix.PtraceDetach(pid))
}

// limits returns the limits to set, by resource.
func (p Privileges) limits() map[int]uint64 {
	m := map[int]uint64{}
	for resource, n := range map[int]int64{unix.RLIMIT_DATA: p.Memory, unix.RLIMIT_FSIZE: p.FileBytes,
		unix.RLIMIT_NOFILE: int64(p.OpenFiles), unix.RLIMIT_NPROC: int64(p.Processes)} {
		if n > 0 {
			m[resource] = uint64(n)
		}
	}
	return m
}
