// Package process builds and starts the programs that are measured.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A Process is one process of a system.
type Process struct {
	cmd    *exec.Cmd
	log    *os.File
	ended  chan struct{} // closed when it has ended
	result error         // of its end; read after ended
}

// AtTop changes to the top of the source tree, from any directory in it.
func AtTop() error {
	for {
		if _, err := os.Stat("cmd/shivad"); err == nil {
			return nil
		}
		if dir, err := os.Getwd(); err != nil || dir == "/" {
			return errors.New("process: this directory is not in the source tree of shivad")
		}
		if err := os.Chdir(".."); err != nil {
			return err
		}
	}
}

// Main runs a bench of that name, at the top of the source tree and until it is interrupted, and
// ends this program: with status 1 after an error or a broken promise.
func Main(name string, measure func(context.Context) (broken []string, err error)) {
	log.SetFlags(0)
	log.SetPrefix(name + ": ")
	if err := AtTop(); err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	broken, err := measure(ctx)
	stop()
	if err != nil {
		log.Fatal(err)
	}
	for _, b := range broken {
		fmt.Println("BROKEN:", b)
	}
	if len(broken) > 0 {
		os.Exit(1)
	}
}

// Python returns the interpreter for programs that need our packages: $PYTHON, or the one that make
// has made, or the system's.
func Python() string {
	made, err := filepath.Abs(".venv/bin/python")
	if _, missing := os.Stat(made); err != nil || missing != nil {
		made = ""
	}
	return cmp.Or(os.Getenv("PYTHON"), made, "python3")
}

// Build builds commands into dir. They are directories relative to the top of the source tree,
// which must be the working directory ([AtTop]).
func Build(ctx context.Context, dir string, commands ...string) error {
	args := []string{"build", "-o", dir + string(filepath.Separator)}
	for _, command := range commands {
		args = append(args, "./"+command)
	}
	if text, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("process: go %s: %w\n%s", strings.Join(args, " "), err, text)
	}
	return nil
}

// Start runs a command whose output goes to a file in dir. Stop ends it.
func Start(dir, name string, args ...string) (*Process, error) {
	log, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s-%d.log", filepath.Base(name), time.Now().UnixNano())))
	if err != nil {
		return nil, err
	}
	p := &Process{cmd: exec.Command(name, args...), log: log, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		log.Close()
		return nil, err
	}
	go func() { // Stop joins it
		p.result = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Stop ends the process by SIGTERM, and after five seconds by SIGKILL. It may be called
// repeatedly.
func (p *Process) Stop() {
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(5 * time.Second):
		p.cmd.Process.Kill()
		<-p.ended
	}
	p.log.Close()
}

// Kill ends the process with SIGKILL.
func (p *Process) Kill() {
	p.cmd.Process.Kill()
	<-p.ended
	p.log.Close()
}

// Pause stops the process for a time, as other work of the machine does.
func (p *Process) Pause(d time.Duration) error {
	err := p.cmd.Process.Signal(syscall.SIGSTOP)
	time.Sleep(d)
	return errors.Join(err, p.cmd.Process.Signal(syscall.SIGCONT))
}

// Alive returns an error that tells how the process ended, or nil while it runs.
func (p *Process) Alive() error {
	select {
	case <-p.ended:
		return fmt.Errorf("process: %s has ended (%v); it printed\n%s", filepath.Base(p.cmd.Path), p.result, p.Output())
	default:
		return nil
	}
}

// Output returns the output of the process so far.
func (p *Process) Output() string {
	text, err := os.ReadFile(p.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// CPU returns the processor time of the process, user and system, to the nanosecond.
func (p *Process) CPU() (time.Duration, error) { return cpuOf(p.cmd.Process.Pid) }

// Processors returns the idle time and the total time of all processors of the machine together, in
// ticks of the kernel: the quotient of their differences is the idle share of an interval.
func Processors() (idle, all uint64, err error) { return processors() }

// Memory returns the resident memory of the process, now and at its peak, in bytes.
func (p *Process) Memory() (now, most int64, err error) { return memoryOf(p.cmd.Process.Pid) }

// Tree returns the ids of the process and of its running descendants.
func (p *Process) Tree() ([]int, error) { return treeOf(p.cmd.Process.Pid) }

// TreeCPU returns the processor time of its Tree. Processes that have ended are not counted, so
// call it before any of them ends.
func (p *Process) TreeCPU() (sum time.Duration, err error) {
	tree, err := p.Tree()
	if err != nil {
		return 0, err
	}
	for _, pid := range tree {
		d, err := cpuOf(pid)
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended meanwhile
		}
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// FreeAddrs sets variables to free local addresses, which all differ.
func FreeAddrs(addrs ...*string) error {
	for _, addr := range addrs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close() // when all are known
		*addr = l.Addr().String()
	}
	return nil
}

// FreeAddr returns a free local address.
func FreeAddr() (addr string, err error) {
	err = FreeAddrs(&addr)
	return addr, err
}
