package containers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/containers/internal/adapter"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/backoff"
	"github.com/shivad/shivad/shiva/tensor"
)

// A DialConfig describes a container that listens for the server, as those of RPC v0 do. Such a
// container declares nothing, so its whole declaration is here. Log and Pool may be nil.
type DialConfig struct {
	Name  string // in logs and status
	Addr  string // "tcp://host:port", "host:port" or "ipc://path"
	Model scheduler.ModelID
	Input tensor.DType // Uint8, Int32, Float64 or Bytes
	// Connect makes a connection; nil means a net.Dialer.
	Connect   func(ctx context.Context, network, address string) (net.Conn, error)
	Scheduler *scheduler.Scheduler
	Pool      *tensor.Pool // for answers
	// WriteTimeout ends a connection whose container takes longer than this to read a batch; see
	// [Dialer.SetWriteTimeout]. Default 10 s.
	WriteTimeout time.Duration
	Log          *slog.Logger
}

// DialRPC is the protocol of the containers that Dial connects to. All others connect to the
// server.
const DialRPC = "v0"

// A Dialer connects to one container of RPC v0, retries while it fails, and is a replica of its
// model while it is connected. Its methods may be called from any goroutine.
type Dialer struct {
	cfg     DialConfig
	network string
	address string
	ctx     context.Context // ends when Shutdown or Close is called
	stop    context.CancelFunc
	wg      sync.WaitGroup // run

	writeTimeout atomic.Int64 // a duration

	mu    sync.Mutex
	info  SessionInfo
	link  *link  // while connected
	stuck string // shown in the status until the container answers something
}

const (
	dialTimeout = 5 * time.Second
	// redial is the longest pause between attempts, as in Clipper. It is longer after the scheduler
	// refused the replica.
	redial        = 500 * time.Millisecond
	redialRefused = 5 * time.Second
	// deadPeer is how long a connection may go without an acknowledgement from the other machine.
	deadPeer = 15 * time.Second
)

// Dial starts a Dialer. An unreachable container is not an error: the Dialer retries. The error
// names all faults of cfg.
func Dial(cfg DialConfig) (*Dialer, error) {
	var faults []error
	network, address, err := splitAddr(cfg.Addr)
	if err != nil {
		faults = append(faults, err)
	} else if network == "tls" {
		faults = append(faults,
			fmt.Errorf("containers: address %q: a container of RPC v0 speaks no TLS: expected tcp:// or ipc://",
				cfg.Addr))
	}
	if err := checkModel(cfg.Model.Name, cfg.Model.Version); err != nil {
		faults = append(faults, fmt.Errorf("containers: %w", err))
	}
	if _, ok := v0Codes[cfg.Input]; !ok {
		faults = append(faults, fmt.Errorf("containers: input %s, expected uint8, int32, float64 or bytes", cfg.Input))
	}
	if cfg.Scheduler == nil {
		faults = append(faults, errors.New("containers: no scheduler"))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = cfg.Log.With("container", cfg.Name, "model", cfg.Model.String(), "rpc", DialRPC, "remote", cfg.Addr)
	d := &Dialer{cfg: cfg, network: network, address: address}
	d.SetWriteTimeout(cfg.WriteTimeout)
	d.ctx, d.stop = context.WithCancel(context.Background())
	now := time.Now()
	d.info = SessionInfo{State: "calling", RPC: DialRPC, Model: cfg.Model, Remote: cfg.Addr, Label: cfg.Name,
		Since: now, LastSeen: now}
	d.wg.Go(d.run) // ends after Shutdown or Close, which join it
	return d, nil
}

// SetWriteTimeout changes the timeout for batches written from now on; 0 or less means the
// default.
func (d *Dialer) SetWriteTimeout(t time.Duration) {
	if t <= 0 {
		t = defaultWriteTimeout
	}
	d.writeTimeout.Store(int64(t))
}

// Session returns the state of the connection.
func (d *Dialer) Session() SessionInfo {
	d.mu.Lock()
	i, l := d.info, d.link
	d.mu.Unlock()
	if l == nil {
		return i
	}
	i.AtOnce, i.Slots = 1, 1
	if l.holds() {
		i.InFlight = 1
	}
	if r := l.serves(); r != nil {
		i.serves(r)
	}
	return i
}

// Model returns the model version that the container serves.
func (d *Dialer) Model() scheduler.ModelID { return d.cfg.Model }

// Shutdown stops dialing, waits for the batch in flight, says goodbye and closes the connection.
// If ctx ends first it closes the connection at once and returns the error of ctx.
func (d *Dialer) Shutdown(ctx context.Context) error {
	d.stop()
	d.mu.Lock()
	l := d.link
	d.mu.Unlock()
	var err error
	if l != nil {
		err = l.sayGoodbye(ctx)
	}
	d.Close()
	return err
}

// Close closes the connection at once. A batch in flight returns to the scheduler. It may be
// called repeatedly.
func (d *Dialer) Close() error {
	d.stop()
	d.mu.Lock()
	l := d.link
	d.mu.Unlock()
	if l != nil {
		l.kill(errors.New("server stops"))
	}
	d.wg.Wait()
	return nil
}

// run connects again and again until it is stopped.
func (d *Dialer) run() {
	connect := d.cfg.Connect
	if connect == nil {
		connect = (&net.Dialer{
			Timeout:         dialTimeout,
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: deadPeer / 3, Interval: deadPeer / 3, Count: 2},
			Control:         giveUpAfter(deadPeer),
		}).DialContext
	}
	reached := true // so that the first failure is logged
	for d.ctx.Err() == nil {
		pause := redial
		raw, err := connect(d.ctx, d.network, d.address)
		if err == nil {
			reached = true
			if err = d.serve(raw); err != nil {
				pause = redialRefused
			}
		} else if reached && d.ctx.Err() == nil {
			reached = false
			d.cfg.Log.Warn("cannot connect to the container; retrying", "reason", errorText(err))
		}
		if err != nil {
			d.setState("calling", err)
		}
		backoff.Wait(backoff.Jitter(pause), d.ctx.Done())
	}
	d.setState("ended", nil)
}

func (d *Dialer) setState(state string, reason error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.info.State = state
	if reason != nil {
		d.info.Reason = errorText(reason)
	}
}

// serve runs one connection. It returns the scheduler's refusal, if any.
func (d *Dialer) serve(raw net.Conn) error {
	l := &link{d: d, raw: raw, codec: v0{dtype: d.cfg.Input}, batches: make(chan *scheduler.Batch, 1),
		written: make(chan struct{}, 1), over: make(chan struct{})}
	now := time.Now()
	d.mu.Lock()
	d.link = l
	d.info.State, d.info.Since, d.info.Registered, d.info.LastSeen, d.info.Reason = "serving", now, now, now, d.stuck
	d.mu.Unlock()
	if d.ctx.Err() != nil { // Close may not have seen the link
		l.kill(d.ctx.Err())
	}
	defer func() {
		d.mu.Lock()
		d.link = nil
		d.info.State, d.info.Registered = "calling", time.Time{}
		d.mu.Unlock()
		close(l.over)
	}()
	replica, err := d.cfg.Scheduler.AddReplica(d.cfg.Model, adapter.Spec(d.cfg.Input, tensor.Float64), l,
		scheduler.ReplicaOptions{Label: d.cfg.Name, Slots: 1, Silent: l.endSilent, Replaced: l.endSilent})
	if err != nil {
		raw.Close()
		d.cfg.Log.Warn("container refused", "reason", errorText(err))
		return err
	}
	l.setReplica(replica)
	d.cfg.Log.Info("container connected")
	var writer sync.WaitGroup
	writer.Go(l.write) // ends when batches is closed, below
	reason := l.read()
	l.kill(reason)
	close(l.batches) // dead is set: Send no longer uses it
	writer.Wait()
	reason = l.reason()
	if l.silent.Load() && !l.answers.Load() {
		reason = fmt.Errorf("%w: %w", errStuckV0, reason)
		d.mu.Lock()
		d.stuck = errorText(errStuckV0)
		d.mu.Unlock()
	}
	l.remove(reason)
	d.setState("calling", reason)
	d.cfg.Log.Info("container gone", "reason", errorText(reason))
	return nil
}

// A link is one connection to a container of RPC v0: a [scheduler.Worker] with at most one batch
// in flight. The goroutine of serve reads, another one writes.
type link struct {
	d       *Dialer
	raw     net.Conn
	codec   v0 // used by write only
	batches chan *scheduler.Batch
	written chan struct{} // one for each request that has been written
	over    chan struct{} // closed at the end of serve

	mu      sync.Mutex
	replica *scheduler.Replica
	batch   *scheduler.Batch // in flight
	leaving bool             // goodbye was sent

	answers atomic.Bool // it has answered on this connection
	silent  atomic.Bool // it was ended because it did not answer
	end     error       // the first reason for its end
}

var errTwoBatches = errors.New("containers: a container of RPC v0 takes one batch at a time")

// Send implements scheduler.Worker.
func (l *link) Send(b *scheduler.Batch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.end != nil || l.leaving:
		return errEnded
	case l.batch != nil:
		return errTwoBatches
	}
	l.batch = b
	l.batches <- b // has room: the previous batch is answered
	return nil
}

func (l *link) holds() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.batch != nil
}

func (l *link) serves() *scheduler.Replica {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replica
}

func (l *link) setReplica(r *scheduler.Replica) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.replica = r
}

// errStuckV0 describes a container that still serves another connection, whose peer died without
// closing it.
var errStuckV0 = errors.New("it accepts the connection and answers nothing on it; a container of RPC v0 serves one connection at a time and may still wait for the previous server: restart the container")

// endSilent kills a link whose container does not answer.
func (l *link) endSilent(reason error) {
	l.silent.Store(true)
	l.kill(reason)
}

// kill ends the connection, from any goroutine and without waiting.
func (l *link) kill(reason error) {
	l.mu.Lock()
	if l.end == nil {
		l.end = reason
	}
	l.mu.Unlock()
	l.raw.Close()
}

func (l *link) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// survive is deferred. A panic ends this connection only.
func (l *link) survive() {
	if r := recover(); r != nil {
		l.d.cfg.Log.Error("panic in a container's session", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
		l.kill(fmt.Errorf("panic: %v", r))
	}
}

func (l *link) remove(reason error) {
	defer l.survive()
	l.replica.Remove(reason)
}

// take removes and returns the batch in flight.
func (l *link) take() *scheduler.Batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.batch
	l.batch = nil
	return b
}

// count counts a batch for the status.
func (l *link) count(b *scheduler.Batch, failure error) {
	d := l.d
	d.mu.Lock()
	defer d.mu.Unlock()
	d.info.LastSeen = time.Now()
	if failure == nil {
		l.answers.Store(true)
		d.stuck, d.info.Reason = "", ""
	}
	d.info.Batches++
	d.info.Rows += uint64(b.Rows)
	if failure != nil {
		d.info.Failures++
		d.info.LastFailure = errorText(failure)
	}
}

// write writes the batches passed to Send.
func (l *link) write() {
	defer close(l.written)
	defer l.survive()
	for b := range l.batches {
		request, err := l.codec.request(b)
		if err != nil {
			l.take()
			l.count(b, err)
			b.Fail(err)
			continue
		}
		_ = l.raw.SetWriteDeadline(time.Now().Add(time.Duration(l.d.writeTimeout.Load())))
		if _, err := l.raw.Write(request); err != nil {
			l.kill(fmt.Errorf("it does not read a batch: %w", err))
			return // removing the replica returns the batch to the scheduler
		}
		l.written <- struct{}{}
	}
}

// read receives answers until the connection ends, and returns the reason.
func (l *link) read() error {
	defer l.survive()
	var head [8 + 1]byte // the shortest answer, and one byte that must not follow
	for {
		n, err := l.raw.Read(head[:])
		if err == io.EOF {
			return errHungUp
		}
		if err != nil {
			return err
		}
		l.mu.Lock()
		b, leaving := l.batch, l.leaving
		l.mu.Unlock()
		if leaving {
			return l.readGoodbyeReply(head[:n])
		}
		if b == nil {
			return fmt.Errorf("it sent %d bytes without a batch to answer", n)
		}
		if err := l.answer(b, head[:n]); err != nil {
			return err
		}
	}
}

// answer reads the rest of an answer and completes its batch. Bytes after a whole answer are an
// error: without ids they would be taken for the next answer, and every later answer would be off
// by one.
func (l *link) answer(b *scheduler.Batch, head []byte) error {
	size, n := 8*b.Rows, len(head)
	buf, refused := l.d.cfg.Pool.Get(size + 1)
	if refused != nil {
		if _, err := io.CopyN(io.Discard, l.raw, int64(max(0, size-n))); err != nil {
			return err
		}
	} else {
		copy(buf.Bytes(), head)
		more, err := io.ReadAtLeast(l.raw, buf.Bytes()[n:], max(0, size-n))
		if err != nil {
			buf.Release()
			return fmt.Errorf("answer to a batch of %d rows ended early: %w", b.Rows, err)
		}
		n += more
	}
	if n > size {
		if refused == nil {
			buf.Release()
		}
		return fmt.Errorf("answer to a batch of %d rows has more than %d bytes", b.Rows, size)
	}
	// Wait here for an answer that begins before the request was written.
	if _, ok := <-l.written; !ok {
		if refused == nil {
			buf.Release()
		}
		return errEnded // the writer has set the reason
	}
	l.take()
	l.count(b, nil)
	if refused != nil {
		b.Fail(noMemory(refused))
		return nil
	}
	b.Complete([]tensor.Tensor{{Name: "output", DType: tensor.Float64, Shape: tensor.Shape{b.Rows},
		Data: buf.Bytes()[:size], Buf: buf}}, nil)
	return nil
}

// readGoodbyeReply reads the reply to goodbye.
func (l *link) readGoodbyeReply(head []byte) error {
	got := append(make([]byte, 0, 8), head...)
	if len(got) < len(v0Bye) {
		got = got[:len(v0Bye)]
		if _, err := io.ReadFull(l.raw, got[len(head):]); err != nil {
			return err
		}
	}
	if !bytes.Equal(got, v0Bye) {
		return fmt.Errorf("it replied to goodbye with % x, expected % x", got, v0Bye)
	}
	return errors.New("dismissed")
}

// part lets the container finish its batch, says goodbye, and waits for its reply.
func (l *link) sayGoodbye(ctx context.Context) error {
	replica := l.serves()
	if replica == nil {
		return nil // no replica yet
	}
	drained := make(chan struct{})
	replica.Drain(func() { close(drained) })
	select {
	case <-drained:
	case <-l.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	l.mu.Lock()
	already := l.leaving
	l.leaving = true
	l.mu.Unlock()
	if !already {
		_ = l.raw.SetDeadline(time.Now().Add(lingerTime))
		_, _ = l.raw.Write(v0Goodbye) // nothing else writes: the replica is drained
	}
	select {
	case <-l.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
