package containers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shivad/shivad/shiva/backoff"
)

// ServersEnv names the environment variable with the server's addresses, comma-separated, that is
// set for supervised containers. The SDKs use it by default.
const ServersEnv = "SHIVA_SERVERS"

// ReplicaEnv names the environment variable with the number of a supervised process among those of
// its command, from 0: it tells one of several devices to use.
const ReplicaEnv = "SHIVA_REPLICA"

// A Command is a command for a [Supervisor].
type Command struct {
	// Name is the container's name in logs and status.
	Name string
	// Args are the program and its arguments; there is no shell.
	Args []string
	// Replicas is the number of processes. Default 1.
	Replicas int
	// Privileges restrict what the processes may do.
	Privileges Privileges
	// Env is added to the environment that they inherit from this process; Fallback, too, except
	// for variables that they inherit or that Env has.
	Env, Fallback map[string]string
	// Dir is the working directory; empty means this process's.
	Dir string
	// Servers are the addresses for SHIVA_SERVERS; see [Listener.Dialable].
	Servers []string
	// StopTimeout is the time from SIGTERM until SIGKILL. Default 10 s.
	StopTimeout time.Duration
	// Log receives the processes' starts and ends, and their output, line by line: at most 50 lines
	// a second of each process, and how many more there were. Nil disables it.
	Log *slog.Logger
}

const (
	defaultStopTimeout = 10 * time.Second
	maxReplicas        = 1024

	// The end of a process is early if it comes before this time.
	earlyEnd = 10 * time.Second
	// crashLoop is the number of early ends in a row after which the state is "crash loop".
	crashLoop = 3
)

// restarts is the pace of restarts, by the early ends of a process that has answered nothing.
var restarts = backoff.Backoff{First: 500 * time.Millisecond, Most: 30 * time.Second}

// A Supervisor runs a number of processes of one command. It restarts them with growing, jittered
// pauses, and stops them when it is closed. On Linux they also end when this process is killed.
//
// What they have started is killed with them, on Linux also what has made sessions of its own: this
// process becomes a subreaper (prctl(2)), reaps their orphans, and finds them by their session or
// by the variable SHIVA_PROCESS in their environment. Descendants that have neither, and those of a
// process that is killed by SIGKILL together with this one, live until their cgroup ends.
//
// A process that ends by itself is restarted, whatever its exit status. Only one that was told to
// end, by Close or by a dismissal (see Dismiss), is not.
type Supervisor struct {
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup // one goroutine for each process

	rolling sync.Mutex // held during Roll and Resize

	mu       sync.Mutex
	cmd      Command    // of the next processes
	replicas []*process // the current process of each replica
	next     []*process // started to replace current ones
	leaving  []*process // no longer current, until they have ended
}

// ProcessInfo is the state of one supervised process.
type ProcessInfo struct {
	Name    string `json:"name"`
	Replica int    `json:"replica"` // counts from 0
	// Running, restarting, crash loop, retired (ended after a dismissal), stopped.
	State     string    `json:"state"`
	PID       int       `json:"pid,omitempty"` // while it runs
	Since     time.Time `json:"since"`         // of the state
	Registers bool      `json:"registers"`     // a connection of the process has registered
	Restarts  int       `json:"restarts"`      // in total
	// It was killed, as it did not end within StopTimeout.
	Forced    bool     `json:"forced"`
	LastExit  string   `json:"last_exit,omitempty"` // its latest end
	LastLines []string `json:"last_lines"`          // the latest lines of its output
}

// validate returns an error that names all faults.
func (cmd Command) validate() error {
	var faults []error
	if cmd.Name == "" {
		faults = append(faults, errors.New("containers: a supervised container has no name"))
	}
	if len(cmd.Args) == 0 || cmd.Args[0] == "" {
		faults = append(faults, fmt.Errorf("containers: %q has no command", cmd.Name))
	}
	if cmd.Replicas < 0 || cmd.Replicas > maxReplicas {
		faults = append(faults, fmt.Errorf("containers: %q has %d replicas, expected 1 to %d",
			cmd.Name, cmd.Replicas, maxReplicas))
	}
	for k := range cmd.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			faults = append(faults, fmt.Errorf("containers: %q has an environment variable named %q", cmd.Name, k))
		}
	}
	if err := cmd.Privileges.Faults().Err(); err != nil {
		faults = append(faults, fmt.Errorf("containers: %q: %w", cmd.Name, err))
	}
	return errors.Join(faults...)
}

func (cmd Command) withDefaults() Command {
	cmd.Replicas = max(1, cmd.Replicas)
	if cmd.StopTimeout <= 0 {
		cmd.StopTimeout = defaultStopTimeout
	}
	if cmd.Log == nil {
		cmd.Log = slog.New(slog.DiscardHandler)
	}
	return cmd
}

// Supervise starts the processes. The error names all faults of the command. A program that cannot
// be started is not an error: it is retried, since it may appear later.
func Supervise(cmd Command) (*Supervisor, error) {
	if err := cmd.validate(); err != nil {
		return nil, err
	}
	cmd = cmd.withDefaults()
	s := &Supervisor{cmd: cmd}
	s.ctx, s.stop = context.WithCancel(context.Background())
	for i := range cmd.Replicas {
		s.replicas = append(s.replicas, s.launch(i))
	}
	return s, nil
}

// launch starts a process of a replica.
func (s *Supervisor) launch(replica int) *process {
	p := &process{cmd: s.cmd, log: s.cmd.Log.With("container", s.cmd.Name, "replica", replica),
		done: make(chan struct{}), registered: make(chan struct{}), crashed: make(chan struct{})}
	p.output = newThrottle(p.log, linesOfProcess, linesOfProcess)
	p.info = ProcessInfo{Name: s.cmd.Name, Replica: replica, State: "restarting", Since: time.Now()}
	p.stopTimeout.Store(int64(s.cmd.StopTimeout))
	ctx, end := context.WithCancel(s.ctx)
	p.end = end
	s.wg.Go(func() { // ends with its process after Close or end; joined by Close
		defer close(p.done)
		onThread(func() { p.supervise(ctx) })
	})
	return p
}

// all returns the current processes, those that are to replace them, and those that are to end.
func (s *Supervisor) all() []*process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(s.replicas, s.next, s.leaving)
}

// Status returns the state of every replica's process.
func (s *Supervisor) Status() []ProcessInfo {
	s.mu.Lock()
	current := slices.Clone(s.replicas)
	s.mu.Unlock()
	list := make([]ProcessInfo, len(current))
	for i, p := range current {
		list[i] = p.snapshot()
	}
	return list
}

// Resume restarts retired processes, and reports whether there were any.
func (s *Supervisor) Resume() (any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range s.replicas {
		if p.snapshot().State == stateRetired && s.ctx.Err() == nil {
			s.replicas[i] = s.launch(i)
			any = true
		}
	}
	return any
}

// Close tells the processes to end, kills them after StopTimeout, and waits until all have ended.
func (s *Supervisor) Close() error {
	s.mu.Lock() // no process is launched after this
	s.stop()
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

// Kill kills the process that holds the other end of conn, which does not answer, and restarts it
// as after any other end. It returns false if none of the processes does, or on a system other
// than Linux, where it cannot tell.
func (s *Supervisor) Kill(conn net.Conn, reason error) bool {
	p := s.owner(conn)
	return p != nil && p.kill(reason)
}

// Registered records that conn has registered, if one of the processes, or a child of one, holds
// the other end. It returns false if none does, or the system cannot tell.
func (s *Supervisor) Registered(conn net.Conn) bool {
	p := s.owner(conn)
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.info.Registers {
		p.info.Registers = true
		p.registerOnce.Do(func() { close(p.registered) })
	}
	return true
}

// Served records that the process at the other end of conn has answered a batch. Its end is then no
// sign that its command fails, so the pause before its restart does not grow: a request may have
// ended it.
func (s *Supervisor) Served(conn net.Conn) {
	if p := s.owner(conn); p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.served = true
	}
}

// Returns is how long after its end the process at the other end of conn, which is about to
// register, will have been replaced: twice the time that its own start took, and the pause before
// the restart. 0: none of the processes holds conn, or they keep ending early.
func (s *Supervisor) Returns(conn net.Conn) time.Duration {
	p := s.owner(conn)
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.early >= crashLoop {
		return 0
	}
	return 2*time.Since(p.info.Since) + 2*restarts.First
}

// Owns reports whether one of the processes, or a child of one, holds the other end of conn. It
// returns false also if the system cannot tell.
func (s *Supervisor) Owns(conn net.Conn) bool { return s.owner(conn) != nil }

// Dismiss records that the process at the other end of conn is being dismissed: if it ends within
// a minute it is not restarted.
func (s *Supervisor) Dismiss(conn net.Conn) {
	if p := s.owner(conn); p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.dismissed = time.Now()
	}
}

// owner returns the process that holds, itself or through a child, the other end of conn; nil if
// none does.
func (s *Supervisor) owner(conn net.Conn) *process {
	child, err := originOf(conn)
	if child == 0 || err != nil {
		return nil
	}
	all := s.all()
	if i := slices.IndexFunc(all, func(p *process) bool { return p.snapshot().PID == child }); i >= 0 {
		return all[i]
	}
	return nil
}

// An identified is a connection that knows the process at its other end once it was asked for.
type identified struct {
	net.Conn
	origin func() (child int, err error)
}

// Identified returns conn for calls of several Supervisors: the process at its other end is looked
// for once. Each search reads the kernel's files about all processes.
func Identified(conn net.Conn) net.Conn {
	return identified{conn, sync.OnceValues(func() (int, error) { return originOf(conn) })}
}

// A process is the process of one replica, restarted whenever it ends by itself.
type process struct {
	// Set once.
	cmd        Command
	log        *slog.Logger
	output     *throttle          // of lines of its output
	end        context.CancelFunc // tells the process to end
	done       chan struct{}      // closed when it has ended and is not restarted
	registered chan struct{}      // closed when it has registered for the first time
	crashed    chan struct{}      // closed when it has ended by itself for the first time

	registerOnce, crashOnce sync.Once // guard the closing of registered and crashed

	stopTimeout atomic.Int64 // see Adjust

	mu        sync.Mutex
	info      ProcessInfo
	lines     []string
	child     *os.Process // while it runs
	fault     error       // why it was killed
	served    bool        // it has answered a batch, since it was started
	early     int         // early ends in a row
	dismissed time.Time   // see Dismiss
}

const stateRetired = "retired"

// dismissalWindow is how long after a dismissal the end of a process counts as its effect.
const dismissalWindow = time.Minute

// kill kills the process without SIGTERM: it does not answer.
func (p *process) kill(reason error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil {
		return false
	}
	p.fault = reason
	return signalProcess(p.child, syscall.SIGKILL) == nil
}

func (p *process) snapshot() ProcessInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.info
	i.LastLines = slices.Clone(p.lines)
	return i
}

func (p *process) state(state string, pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setState(state, pid)
}

// setState sets the state. The caller holds the lock.
func (p *process) setState(state string, pid int) {
	p.info.State, p.info.PID, p.info.Since = state, pid, time.Now()
	if pid == 0 {
		p.info.Registers = false
	}
}

// recordExit records how the process ended. dismissed reports that it had been told to.
func (p *process) recordExit(err error) (exit string, dismissed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.info.LastExit = "status 0"
	if err != nil {
		p.info.LastExit = errorText(err)
	}
	dismissed = !p.dismissed.IsZero() && time.Since(p.dismissed) < dismissalWindow
	p.dismissed = time.Time{}
	return p.info.LastExit, dismissed
}

// countEnd returns how many times in a row, with this one, the process has ended early: soon after
// its start, and before it had answered anything.
func (p *process) countEnd(soon bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !soon || p.served {
		p.early = 0
	}
	p.early++
	return p.early
}

// supervise runs and restarts the process until ctx ends, on a thread of its own (see onThread):
// the parent-death signal is sent when the thread that forked ends, not the process.
func (p *process) supervise(ctx context.Context) {
	confined := false
	for ctx.Err() == nil {
		began := time.Now()
		var err error
		// Restrictions of a thread are permanent, and the kernel limits how many it may have.
		if !confined {
			err = p.cmd.Privileges.takeFromThread()
			confined = err == nil
		}
		if err == nil {
			err = p.run(ctx)
		}
		exit, dismissed := p.recordExit(err)
		if ctx.Err() != nil {
			break
		}
		if dismissed {
			p.log.Info("container process ended after its dismissal", "exit", exit)
			p.state(stateRetired, 0)
			return
		}
		quick := p.countEnd(time.Since(began) < earlyEnd)
		pause := restarts.After(quick)
		state := "restarting"
		if quick >= crashLoop {
			state = "crash loop"
		}
		p.state(state, 0)
		p.crashOnce.Do(func() { close(p.crashed) })
		p.log.Warn("container process ended",
			"reason", exit, "in_a_row", quick, "restart_in", pause.Round(time.Millisecond))
		backoff.Wait(pause, ctx.Done())
		p.mu.Lock()
		p.info.Restarts++
		p.mu.Unlock()
	}
	p.state("stopped", 0)
}

// run runs the process once; nil means that it ended with status 0.
func (p *process) run(ctx context.Context) error {
	c := exec.CommandContext(ctx, p.cmd.Args[0], p.cmd.Args[1:]...)
	c.Dir = p.cmd.Dir
	mark := newMark()
	inherited := p.cmd.Privileges.environment()
	c.Env = append(slices.Clone(inherited), ServersEnv+"="+strings.Join(p.cmd.Servers, ","),
		ReplicaEnv+"="+strconv.Itoa(p.info.Replica), mark)
	for k, v := range p.cmd.Fallback {
		if !slices.ContainsFunc(inherited, func(variable string) bool { return strings.HasPrefix(variable, k+"=") }) {
			c.Env = append(c.Env, k+"="+v)
		}
	}
	for k, v := range p.cmd.Env { // the last one of a name counts
		c.Env = append(c.Env, k+"="+v)
	}
	c.SysProcAttr = processAttributes()
	out, err := listenTo(p, "stdout")
	if err != nil {
		return err
	}
	defer out.close()
	errs, err := listenTo(p, "stderr")
	if err != nil {
		return err
	}
	defer errs.close()
	c.Stdout, c.Stderr = out.in, errs.in
	var patience time.Time
	c.Cancel = func() error {
		c.WaitDelay = time.Duration(p.stopTimeout.Load()) // which is read after Cancel
		patience = time.Now().Add(c.WaitDelay)
		return signalProcess(c.Process, syscall.SIGTERM)
	}
	// The child may connect before Start returns: owner must wait until its PID is known.
	p.mu.Lock()
	err = relatives.enter(func() (int, error) {
		if err := p.cmd.Privileges.start(c); err != nil {
			return 0, err
		}
		return c.Process.Pid, nil
	})
	if err == nil {
		p.child, p.fault, p.served = c.Process, nil, false
		p.setState("running", c.Process.Pid)
	}
	p.mu.Unlock()
	out.in.Close() // the child has a copy
	errs.in.Close()
	if err != nil {
		return err
	}
	p.log.Info("container process started", "pid", c.Process.Pid)
	err = p.wait(c)
	if !patience.IsZero() { // its children were told to end as well, and may take as long
		out.wait(patience)
		errs.wait(patience)
		p.force(err)
	}
	// Kill the children that it left behind.
	_ = signalProcess(c.Process, syscall.SIGKILL)
	relatives.leave(c.Process.Pid, mark)
	return err
}

// force records that the process had to be killed after it had been told to end.
func (p *process) force(err error) {
	status, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return
	}
	if w, ok := status.Sys().(syscall.WaitStatus); ok && w.Signaled() && w.Signal() == syscall.SIGKILL {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.info.Forced = true
	}
}

// wait waits for the end of the process, after which its PID may be reused.
func (p *process) wait(c *exec.Cmd) error {
	err := c.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.child = nil
	if p.fault != nil && err != nil {
		return fmt.Errorf("killed: %w", p.fault)
	}
	return err
}
