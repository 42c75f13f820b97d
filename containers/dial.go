package containers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/containers/adapter"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// A DialConfig is a container that waits to be called, as those of RPC v0 do. It says nothing
// of itself, so everything about it is said here. Log and Pool may be left out.
type DialConfig struct {
	Name      string // in logs and status
	Addr      string // "tcp://host:port", "host:port" or "ipc://path"
	Model     scheduler.ModelID
	Input     tensor.DType // Uint8, Int32, Float64 or Bytes
	Scheduler *scheduler.Scheduler
	Pool      *tensor.Pool // of answers
	// WriteTimeout ends a connection whose container takes not all of a batch for this long; see
	// [Dialer.SetWriteTimeout].
	// Default 10 s.
	WriteTimeout time.Duration
	Log          *slog.Logger
}

// A Dialer calls one container of RPC v0, again and again when there is none, and is a replica
// of its model while it is connected.
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
	stuck string // what is to be shown until the container answers something
}

const (
	dialTimeout = 5 * time.Second
	// redial is the pause between calls, Clipper's; after a call that the scheduler refused it
	// is longer.
	redial        = 500 * time.Millisecond
	redialRefused = 5 * time.Second
	// deadPeer is how long a connection may stay without a sign of the other machine.
	deadPeer = 15 * time.Second
)

// Dial begins to call a container. That there is none is no error. The error names all faults
// of cfg.
func Dial(cfg DialConfig) (*Dialer, error) {
	var faults []error
	network, address, err := splitAddr(cfg.Addr)
	if err != nil {
		faults = append(faults, err)
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
	cfg.Log = cfg.Log.With("container", cfg.Name, "model", cfg.Model.String(), "rpc", "v0", "remote", cfg.Addr)
	d := &Dialer{cfg: cfg, network: network, address: address}
	d.SetWriteTimeout(cfg.WriteTimeout)
	d.ctx, d.stop = context.WithCancel(context.Background())
	now := time.Now()
	d.info = SessionInfo{State: "calling", Generation: "v0", Model: cfg.Model, Remote: cfg.Addr, Label: cfg.Name, Since: now, LastSeen: now}
	d.wg.Go(d.run) // ends after Shutdown or Close, which join it
	return d, nil
}

// SetWriteTimeout changes the timeout for the batches that are written from now on; 0 or less
// is the default.
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

// Model returns what the container serves.
func (d *Dialer) Model() scheduler.ModelID { return d.cfg.Model }

// Shutdown calls no more, waits for the batch that is out, says goodbye and hangs up. When ctx
// ends first, the connection is cut, and ctx's error is returned.
func (d *Dialer) Shutdown(ctx context.Context) error {
	d.stop()
	d.mu.Lock()
	l := d.link
	d.mu.Unlock()
	var err error
	if l != nil {
		err = l.part(ctx)
	}
	d.Close()
	return err
}

// Close hangs up at once. A batch that is out goes back to the scheduler. It may be called
// repeatedly.
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

// run calls until it is told to stop.
func (d *Dialer) run() {
	dialer := net.Dialer{
		Timeout:         dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: deadPeer / 3, Interval: deadPeer / 3, Count: 2},
		Control:         giveUpAfter(deadPeer),
	}
	reached := true // so that the first failure is logged
	for d.ctx.Err() == nil {
		pause := redial
		raw, err := dialer.DialContext(d.ctx, d.network, d.address)
		if err == nil {
			reached = true
			if err = d.serve(raw); err != nil {
				pause = redialRefused
			}
		} else if reached && d.ctx.Err() == nil {
			reached = false
			d.cfg.Log.Warn("cannot call the container; calling again", "reason", bounded(err))
		}
		if err != nil {
			d.note("calling", err)
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-d.ctx.Done():
			timer.Stop()
		}
	}
	d.note("ended", nil)
}

func (d *Dialer) note(state string, reason error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.info.State = state
	if reason != nil {
		d.info.Reason = bounded(reason)
	}
}

// serve is the life of one connection. The error is the scheduler's refusal.
func (d *Dialer) serve(raw net.Conn) error {
	l := &link{d: d, raw: raw, codec: v0{dtype: d.cfg.Input}, batches: make(chan *scheduler.Batch, 1), written: make(chan struct{}, 1), over: make(chan struct{})}
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
	replica, err := d.cfg.Scheduler.AddReplica(d.cfg.Model, adapter.Spec(d.cfg.Input, tensor.Float64), l, scheduler.ReplicaOptions{Label: d.cfg.Name, Slots: 1, Silent: l.hangs})
	if err != nil {
		raw.Close()
		d.cfg.Log.Warn("container refused", "reason", bounded(err))
		return err
	}
	l.setReplica(replica)
	d.cfg.Log.Info("container connected")
	var writer sync.WaitGroup
	writer.Go(l.write) // ends when batches is closed, below
	reason := l.read()
	l.kill(reason)
	close(l.batches) // dead is set: nobody sends on it any more
	writer.Wait()
	reason = l.reason()
	if l.silent.Load() && !l.answers.Load() {
		reason = fmt.Errorf("%w: %w", errStuckV0, reason)
		d.mu.Lock()
		d.stuck = bounded(errStuckV0)
		d.mu.Unlock()
	}
	l.remove(reason)
	d.note("calling", reason)
	d.cfg.Log.Info("container gone", "reason", bounded(reason))
	return nil
}

// A link is one connection to a container of RPC v0: a [scheduler.Worker] with one batch out at
// most. The goroutine of serve reads, another one writes.
type link struct {
	d       *Dialer
	raw     net.Conn
	codec   v0 // the writer's
	batches chan *scheduler.Batch
	written chan struct{} // one for each request that has been written
	over    chan struct{} // closed at the end of serve

	mu      sync.Mutex
	replica *scheduler.Replica
	batch   *scheduler.Batch // out
	leaving bool             // goodbye has been said

	answers atomic.Bool // it has answered on this connection
	silent  atomic.Bool // it was given up as it did not answer
	end     error       // the first reason
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
	l.batches <- b // has room: the batch before is answered
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

// errStuckV0 is what can be seen of a container that serves a connection whose other end has
// died without a word.
var errStuckV0 = errors.New("it takes the connection and answers nothing on it; a container of RPC v0 serves one connection at a time, and may still wait for the server of the one before: restart the container")

// hangs is kill for a container that does not answer.
func (l *link) hangs(reason error) {
	l.silent.Store(true)
	l.kill(reason)
}

// kill ends the connection from anywhere, without waiting.
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

// survive is deferred. A panic, of ours or of whoever is told of an answer, costs this
// connection only.
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

// take removes the batch that is out.
func (l *link) take() *scheduler.Batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.batch
	l.batch = nil
	return b
}

// count notes a batch in the status.
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
		d.info.LastFailure = bounded(failure)
	}
}

// write sends what Send was given.
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
			l.kill(fmt.Errorf("it does not take a batch: %w", err))
			return // the batch goes back to the scheduler with the replica
		}
		l.written <- struct{}{}
	}
}

// read takes answers until the connection ends, and says why it did.
func (l *link) read() error {
	defer l.survive()
	var head [8 + 1]byte // the shortest answer, and the byte that must not follow
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
			return l.bye(head[:n])
		}
		if b == nil {
			return fmt.Errorf("%d bytes from it without a batch to answer", n)
		}
		if err := l.answer(b, head[:n]); err != nil {
			return err
		}
	}
}

// answer reads the rest of an answer and completes its batch. What comes with an answer that is
// whole would be taken for the next one, and that one's for the one after it: there are no ids.
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
	// Whoever answers before the question has come to its end waits here.
	if _, ok := <-l.written; !ok {
		if refused == nil {
			buf.Release()
		}
		return errEnded // with the first reason, that of the writer
	}
	l.take()
	l.count(b, nil)
	if refused != nil {
		b.Fail(noMemory(refused))
		return nil
	}
	b.Complete([]tensor.Tensor{{Name: "output", DType: tensor.Float64, Shape: tensor.Shape{b.Rows}, Data: buf.Bytes()[:size], Buf: buf}}, nil)
	return nil
}

// bye reads the answer to goodbye.
func (l *link) bye(head []byte) error {
	got := append(make([]byte, 0, 8), head...)
	if len(got) < len(v0Bye) {
		got = got[:len(v0Bye)]
		if _, err := io.ReadFull(l.raw, got[len(head):]); err != nil {
			return err
		}
	}
	if !bytes.Equal(got, v0Bye) {
		return fmt.Errorf("it answered goodbye with % x, expected % x", got, v0Bye)
	}
	return errors.New("told goodbye")
}

// part lets the container finish what it has, says goodbye, and waits for its end.
func (l *link) part(ctx context.Context) error {
	replica := l.serves()
	if replica == nil {
		return nil // it has only just connected
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
	said := l.leaving
	l.leaving = true
	l.mu.Unlock()
	if !said {
		_ = l.raw.SetDeadline(time.Now().Add(lingerTime))
		_, _ = l.raw.Write(v0Goodbye) // nothing else is being written: the replica is drained
	}
	select {
	case <-l.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
