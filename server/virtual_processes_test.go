package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/server/internal/operate"
)

// A command runs a [[container]]. Its processes are goroutines that connect as containers do.
//
// All methods but Roll take no time: virtual time does not pass while a goroutine waits for a lock,
// and the fleet holds one around Close.
type command struct {
	containers.Command
	scene   *scene
	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	all     sync.WaitGroup
	rolling chan struct{} // has room while no Roll runs

	mu       sync.Mutex
	replicas []*process
	next     *process // started by Roll
}

// supervise starts the processes of a command.
func (s *scene) supervise(c containers.Command) (operate.Supervisor, error) {
	one := &command{Command: c, scene: s, rolling: make(chan struct{}, 1)}
	one.ctx, one.stop = context.WithCancel(context.Background())
	for i := range c.Replicas {
		one.replicas = append(one.replicas, one.launch(i))
	}
	return one, nil
}

// A process starts again when it has ended by itself.
type process struct {
	command    *command
	address    string // from which it connects
	ctx        context.Context
	end        context.CancelFunc
	registered chan struct{} // closed when it first registers
	over       chan struct{} // closed when it has ended for good

	mu   sync.Mutex
	once bool // it has registered
	info containers.ProcessInfo
}

func (c *command) launch(replica int) *process {
	n := c.scene.processes.Add(1)
	p := &process{command: c, address: fmt.Sprintf("10.1.1.%d:4000", n), registered: make(chan struct{}),
		over: make(chan struct{})}
	p.ctx, p.end = context.WithCancel(c.ctx)
	p.info = containers.ProcessInfo{Name: c.Name, Replica: replica, State: "restarting", Since: time.Now()}
	name := fmt.Sprintf("%s%d", c.Name, n)
	seed := c.scene.plan.seed
	h := &host{scene: c.scene, name: name, from: p.address, model: c.Name, version: "1", over: p.ctx, own: true,
		rand: draw(seed, name), script: draw(seed, name+" answers")}
	c.all.Go(func() {
		defer close(p.over)
		p.run(h)
	})
	return p
}

// run runs one life after the other.
func (p *process) run(h *host) {
	c := p.command
	c.scene.running.Add(1)
	defer c.scene.running.Add(-1)
	for life := 1; ; life++ {
		p.enter("running", 1+p.info.Replica)
		select { // a program takes some time to start
		case <-time.After(time.Duration(h.rand.IntN(50)) * time.Millisecond):
		case <-p.ctx.Done():
			return
		}
		calm := c.scene.calm.Err() != nil || !c.scene.troubles.containers
		again := h.live(fmt.Sprintf("%s.%d", h.name, life), calm)
		p.enter("restarting", 0)
		if !again {
			return
		}
	}
}

func (p *process) enter(state string, pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.info.State, p.info.PID, p.info.Since, p.info.Registers = state, pid, time.Now(), false
	if pid == 0 {
		p.info.LastExit = "status 1"
		p.info.Restarts++
	}
}

func (c *command) Status() (list []containers.ProcessInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.replicas {
		p.mu.Lock()
		list = append(list, p.info)
		p.mu.Unlock()
	}
	return list
}

// Resize starts and ends processes. Those that end are told so after their last answer.
func (c *command) Resize(n int, drain func(func(net.Conn) bool) <-chan struct{}) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil || len(c.rolling) > 0 {
		return false
	}
	for len(c.replicas) < n {
		c.replicas = append(c.replicas, c.launch(len(c.replicas)))
	}
	for len(c.replicas) > n {
		last := len(c.replicas) - 1
		p := c.replicas[last]
		c.replicas = c.replicas[:last:last]
		c.all.Go(func() {
			select {
			case <-drain(func(conn net.Conn) bool { return p.address == conn.RemoteAddr().String() }):
			case <-c.ctx.Done():
			}
			p.end()
		})
	}
	return true
}

// Served does nothing: the pause before a restart does not grow here.
func (c *command) Served(net.Conn) {}

// Returns is 0: requests do not wait for a restart.
func (c *command) Returns(net.Conn) time.Duration { return 0 }

// Resume does nothing: no version is replaced by a newer one.
func (c *command) Resume() bool { return false }

func (c *command) Close() error {
	c.mu.Lock()
	c.stop()
	c.mu.Unlock()
	c.all.Wait()
	return nil
}

func (c *command) Roll(ctx context.Context, _ func(time.Time) bool) error {
	c.rolling <- struct{}{}
	defer func() { <-c.rolling }()
	c.mu.Lock()
	n := len(c.replicas)
	c.mu.Unlock()
	for i := range n {
		c.mu.Lock()
		if c.ctx.Err() != nil {
			c.mu.Unlock()
			return errors.New("it was stopped")
		}
		next := c.launch(i)
		c.next = next
		c.mu.Unlock()
		var err error
		select {
		case <-next.registered:
		case <-next.over:
			err = errors.New("it was stopped")
		case <-ctx.Done():
			err = ctx.Err()
		}
		c.mu.Lock()
		c.next = nil
		gone := c.replicas[i]
		if err == nil {
			c.replicas[i] = next
		} else {
			gone = next
		}
		c.mu.Unlock()
		gone.end()
		<-gone.over
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *command) Become(ctx context.Context, _ containers.Command, seen func(time.Time) bool) error {
	return c.Roll(ctx, seen)
}

func (c *command) Supersede(ctx context.Context, _ containers.Command, seen func(time.Time) bool, leave func()) error {
	defer leave()
	return c.Roll(ctx, seen)
}

func (c *command) Adjust(containers.Command) error { return nil }

// owner returns the process that has made a connection; nil: none.
func (c *command) owner(conn net.Conn) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range append(c.replicas[:len(c.replicas):len(c.replicas)], c.next) {
		if p != nil && p.address == conn.RemoteAddr().String() {
			return p
		}
	}
	return nil
}

func (c *command) Owns(conn net.Conn) bool { return c.owner(conn) != nil }

func (c *command) Registered(conn net.Conn) bool {
	p := c.owner(conn)
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.info.Registers = true
	if !p.once {
		p.once = true
		close(p.registered)
	}
	return true
}

// Dismiss does nothing: a dismissed process connects again, like any other.
func (c *command) Dismiss(net.Conn) {}

// Kill does nothing: a process lives as long as its connection, which the server ends.
func (c *command) Kill(conn net.Conn, _ error) bool { return c.owner(conn) != nil }
