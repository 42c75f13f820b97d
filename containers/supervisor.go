package containers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ServersEnv names the environment variable in which a supervised container finds the server's
// addresses, comma-separated. The SDKs connect there when they are not told otherwise.
const ServersEnv = "SHIVA_SERVERS"

// A Command is what a [Supervisor] runs.
type Command struct {
	// Name is the container's, in logs and status.
	Name string
	// Args are the program and its arguments; there is no shell.
	Args []string
	// Replicas is the number of processes. Default 1.
	Replicas int
	// Env is added to the environment of this process.
	Env map[string]string
	// Dir is the working directory; empty means this process's.
	Dir string
	// Servers are the addresses to put into SHIVA_SERVERS; see [Listener.Dialable].
	Servers []string
	// StopTimeout is the time from SIGTERM until SIGKILL. Default 10 s.
	StopTimeout time.Duration
	// Log gets the processes' output, line by line, and what happens to them; nil means silent.
	Log *slog.Logger
}

const (
	defaultStopTimeout = 10 * time.Second
	maxReplicas        = 1024

	// The pause before a restart doubles with every quick end.
	minRestart = 500 * time.Millisecond
	maxRestart = 30 * time.Second
	// A process that lived this long has not ended quickly.
	settled = 10 * time.Second
	// crashLoop is how many quick ends in a row are called a loop.
	crashLoop = 3

	lastLines    = 20      // kept for the status
	maxLineBytes = 4 << 10 // longer ones are cut
)

// A Supervisor keeps a number of processes of one command running: it restarts them with
// growing, jittered pauses, and stops them when it is stopped. Where the system can do it
// (Linux), they also end when this process is killed.
//
// A process that ends by itself is started again, whatever its status: only one that was told
// to end, by Close or by a goodbye for good (see Dismiss), stays ended.
type Supervisor struct {
	cmd  Command
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup // one goroutine for each process

	rolling sync.Mutex // held by Roll from begin to end

	mu       sync.Mutex
	replicas []*process // the current one of each replica
	next     *process   // that Roll has started, and that may become current
}

// ProcessInfo is the state of one supervised process.
type ProcessInfo struct {
	Name      string    `json:"name"`
	Replica   int       `json:"replica"`             // counts from 0
	State     string    `json:"state"`               // running, restarting, crash loop, retired (told goodbye for good, and ended), stopped
	PID       int       `json:"pid,omitempty"`       // while it runs
	Since     time.Time `json:"since"`               // of the state
	Registers bool      `json:"registers"`           // a connection of the process that runs has registered
	Restarts  int       `json:"restarts"`            // in all
	Forced    bool      `json:"forced"`              // told to end, it did not within the StopTimeout, and was killed
	LastExit  string    `json:"last_exit,omitempty"` // how it ended the last time
	LastLines []string  `json:"last_lines"`          // of its output
}

// Supervise starts the processes. The error names all faults of the command; a program that
// cannot be started is no error here but a restart, as it may appear later.
func Supervise(cmd Command) (*Supervisor, error) {
	var faults []error
	if cmd.Name == "" {
		faults = append(faults, errors.New("containers: a supervised container has no name"))
	}
	if len(cmd.Args) == 0 || cmd.Args[0] == "" {
		faults = append(faults, fmt.Errorf("containers: %q has no command", cmd.Name))
	}
	if cmd.Replicas < 0 || cmd.Replicas > maxReplicas {
		faults = append(faults, fmt.Errorf("containers: %q has %d replicas, expected 1 to %d", cmd.Name, cmd.Replicas, maxReplicas))
	}
	for k := range cmd.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			faults = append(faults, fmt.Errorf("containers: %q has an environment variable named %q", cmd.Name, k))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	cmd.Replicas = max(1, cmd.Replicas)
	if cmd.StopTimeout <= 0 {
		cmd.StopTimeout = defaultStopTimeout
	}
	if cmd.Log == nil {
		cmd.Log = slog.New(slog.DiscardHandler)
	}
	s := &Supervisor{cmd: cmd}
	s.ctx, s.stop = context.WithCancel(context.Background())
	for i := range cmd.Replicas {
		s.replicas = append(s.replicas, s.launch(i))
	}
	return s, nil
}

// launch starts a process of a replica.
func (s *Supervisor) launch(replica int) *process {
	p := &process{cmd: &s.cmd, log: s.cmd.Log.With("container", s.cmd.Name, "replica", replica), over: make(chan struct{}), registers: make(chan struct{}), fails: make(chan struct{})}
	p.info = ProcessInfo{Name: s.cmd.Name, Replica: replica, State: "restarting", Since: time.Now()}
	ctx, end := context.WithCancel(s.ctx)
	p.end = end
	s.wg.Go(func() { // ends with its process after Close or end; joined by Close
		defer close(p.over)
		p.keep(ctx)
	})
	return p
}

// all are the current processes, and the one that may become current.
func (s *Supervisor) all() []*process {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Clone(s.replicas)
	if s.next != nil {
		list = append(list, s.next)
	}
	return list
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

// Resume starts again what was retired, and tells whether something was.
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

// Close asks the processes to end, kills them after the StopTimeout, and waits for all of it.
func (s *Supervisor) Close() error {
	s.mu.Lock() // nothing is launched afterwards
	s.stop()
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

// Kill kills the process that holds the other end of conn, which does not answer, and starts it
// again as after any other end. False: none of these does, or the system cannot tell (all but
// Linux).
func (s *Supervisor) Kill(conn net.Conn, reason error) bool {
	p := s.owner(conn)
	return p != nil && p.kill(reason)
}

// Registered notes that conn has registered, if one of the processes, or one that it started,
// holds the other end of it. False: none does, or the system cannot tell.
func (s *Supervisor) Registered(conn net.Conn) bool {
	p := s.owner(conn)
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.info.Registers {
		p.info.Registers = true
		p.once.Do(func() { close(p.registers) })
	}
	return true
}

// Dismiss notes that who holds the other end of conn is told goodbye for good: a process that
// ends soon after has been told to.
func (s *Supervisor) Dismiss(conn net.Conn) {
	if p := s.owner(conn); p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.dismissed = time.Now()
	}
}

// owner is the process that holds the other end of conn, itself or by what it started; nil if
// none does.
func (s *Supervisor) owner(conn net.Conn) *process {
	all := s.all()
	groups := make([]int, 0, len(all))
	for _, p := range all {
		groups = append(groups, p.snapshot().PID) // each leads a group of its own
	}
	i := slices.Index(groups, groupOf(conn, slices.DeleteFunc(slices.Clone(groups), func(pid int) bool { return pid == 0 })))
	if i < 0 || groups[i] == 0 {
		return nil
	}
	return all[i]
}

// A process is one of a replica, started again whenever it ends by itself.
type process struct {
	// Set once.
	cmd       *Command
	log       *slog.Logger
	end       context.CancelFunc // tells it to end
	over      chan struct{}      // closed when it has ended for good
	registers chan struct{}      // closed when it has registered for the first time
	fails     chan struct{}      // closed when it has ended by itself for the first time

	once, failed sync.Once // close registers and fails

	mu        sync.Mutex
	info      ProcessInfo
	lines     []string
	child     *os.Process // while it runs
	fault     error       // why it was killed
	dismissed time.Time   // see Dismiss
}

const stateRetired = "retired"

// dismissal is how long after a goodbye for good the end of a process is put down to it.
const dismissal = time.Minute

// kill kills the process, asking nothing first: it does not answer.
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
	p.enter(state, pid)
}

// enter is state for who holds the lock.
func (p *process) enter(state string, pid int) {
	p.info.State, p.info.PID, p.info.Since = state, pid, time.Now()
	if pid == 0 {
		p.info.Registers = false
	}
}

// ended notes how the process ended. dismissed: it had been told to.
func (p *process) ended(err error) (exit string, dismissed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.info.LastExit = "status 0"
	if err != nil {
		p.info.LastExit = bounded(err)
	}
	dismissed = !p.dismissed.IsZero() && time.Since(p.dismissed) < dismissal
	p.dismissed = time.Time{}
	return p.info.LastExit, dismissed
}

// keep runs the process again and again until ctx ends.
func (p *process) keep(ctx context.Context) {
	// The parent-death signal is sent when the thread that forked ends, not the process. So this
	// goroutine keeps its thread, and outlives the child.
	runtime.LockOSThread()
	quick := 0
	for ctx.Err() == nil {
		began := time.Now()
		exit, dismissed := p.ended(p.run(ctx))
		if ctx.Err() != nil {
			break
		}
		if dismissed {
			p.log.Info("container process ended, as it was told to", "exit", exit)
			p.state(stateRetired, 0)
			return
		}
		if time.Since(began) >= settled {
			quick = 0
		}
		quick++
		pause := min(minRestart<<min(quick-1, 10), maxRestart)
		pause = pause/2 + rand.N(pause/2)
		state := "restarting"
		if quick >= crashLoop {
			state = "crash loop"
		}
		p.state(state, 0)
		p.failed.Do(func() { close(p.fails) })
		p.log.Warn("container process ended", "reason", exit, "in_a_row", quick, "restart_in", pause.Round(time.Millisecond))
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
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
	c.Env = append(os.Environ(), ServersEnv+"="+strings.Join(p.cmd.Servers, ","))
	for k, v := range p.cmd.Env {
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
	c.WaitDelay = p.cmd.StopTimeout
	var patience time.Time
	c.Cancel = func() error {
		patience = time.Now().Add(p.cmd.StopTimeout)
		return signalProcess(c.Process, syscall.SIGTERM)
	}
	p.mu.Lock() // the child may have connected before Start returns: who asks whose that is waits for the answer
	if err = c.Start(); err == nil {
		p.child, p.fault = c.Process, nil
		p.enter("running", c.Process.Pid)
	}
	p.mu.Unlock()
	out.in.Close() // the child has its own
	errs.in.Close()
	if err != nil {
		return err
	}
	p.log.Info("container process started", "pid", c.Process.Pid)
	err = p.wait(c)
	if !patience.IsZero() { // what it started was told to end as well, and may take as long
		out.wait(patience)
		errs.wait(patience)
		p.force(err)
	}
	// What it left behind goes with it.
	_ = signalProcess(c.Process, syscall.SIGKILL)
	return err
}

// force notes that the process had to be killed when it had been told to end.
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

// wait waits for the end of the process. From then on its number may be another's.
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

// lastWords is how long the output of a process is waited for that has ended: what it started
// may hold the pipe, in a process group of its own.
const lastWords = time.Second

// An ear reads one stream of a process's output into the log. (A writer that os/exec reads for
// would keep Wait until everybody has closed the stream who inherited it.)
type ear struct {
	in, out *os.File // ends of a pipe
	over    chan struct{}
}

func listenTo(p *process, stream string) (*ear, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	e := &ear{in: in, out: out, over: make(chan struct{})}
	go func() { // ends with the stream; joined by close
		defer close(e.over)
		l := &lines{p: p, stream: stream}
		_, _ = io.Copy(l, out)
		l.flush()
	}()
	return e, nil
}

// wait waits for the end of the stream.
func (e *ear) wait(until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-e.over:
	case <-timer.C:
	}
}

// close takes in what is left of the stream.
func (e *ear) close() {
	e.in.Close()
	_ = e.out.SetReadDeadline(time.Now().Add(lastWords))
	<-e.over
	e.out.Close()
}

// A line writer passes a process's output on as log lines.
type lines struct {
	p       *process
	stream  string
	partial []byte
	cut     bool // the rest of an overlong line is being dropped
}

// Write takes any piece of output. It is called by one goroutine.
func (l *lines) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		end := slices.Index(b, '\n')
		piece := b
		if end >= 0 {
			piece = b[:end]
		}
		if room := maxLineBytes - len(l.partial); len(piece) > room {
			piece = piece[:room]
			l.cut = true
		}
		l.partial = append(l.partial, piece...)
		if end < 0 {
			break
		}
		l.flush()
		b = b[end+1:]
	}
	return n, nil
}

// flush passes on what there is of a line.
func (l *lines) flush() {
	if len(l.partial) == 0 {
		return
	}
	text := strings.ToValidUTF8(strings.TrimRight(string(l.partial), "\r"), "\uFFFD")
	if l.cut {
		text += "..."
	}
	l.partial, l.cut = l.partial[:0], false
	l.p.mu.Lock()
	if len(l.p.lines) == lastLines {
		l.p.lines = slices.Delete(l.p.lines, 0, 1)
	}
	l.p.lines = append(l.p.lines, text)
	l.p.mu.Unlock()
	l.p.log.Info(text, "stream", l.stream)
}
