package shivatest

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

var errDeadline = os.ErrDeadlineExceeded

// A pipe is one direction of a connection.
type pipe struct {
	// Set once.
	size  int   // capacity in bytes
	piece int   // most bytes of one read; 0: no limit
	other *pipe // the other direction

	mu       sync.Mutex
	changed  sync.Cond
	changes  uint64 // number of changes so far
	data     []byte
	left     int // bytes until the connection breaks; negative: no limit
	stalled  bool
	readErr  error // for the reader, once data is empty
	writeErr error // for the writer

	readLimit, writeLimit deadline
}

func newPipe(size, piece int) *pipe {
	p := &pipe{size: size, piece: piece, left: -1}
	p.changed.L = &p.mu
	return p
}

// change wakes all waiting goroutines.
func (p *pipe) change() {
	p.changes++
	p.changed.Broadcast()
}

func (p *pipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		n, err := p.takeLocked(b)
		if err != syscall.EAGAIN {
			return n, err
		}
		p.changed.Wait()
	}
}

func (p *pipe) tryRead(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.takeLocked(b)
	if err == io.EOF {
		err = nil
	}
	return n, err
}

func (p *pipe) takeLocked(b []byte) (int, error) {
	switch {
	case errors.Is(p.readErr, net.ErrClosed):
		return 0, p.readErr
	case p.readLimit.passed:
		return 0, errDeadline
	case len(b) == 0:
		return 0, nil
	case len(p.data) > 0 && !p.stalled:
		if p.piece > 0 {
			b = b[:min(len(b), p.piece)]
		}
		n := copy(b, p.data)
		if p.data = p.data[n:]; len(p.data) == 0 {
			p.data = nil
		}
		p.change()
		return n, nil
	case len(p.data) == 0 && p.readErr != nil && !p.stalled:
		return 0, p.readErr
	}
	return 0, syscall.EAGAIN
}

func (p *pipe) write(b []byte) (n int, err error) {
	for {
		before := p.now()
		k, err := p.tryWrite(b[n:])
		if n += k; n == len(b) || err != nil {
			return n, err
		}
		p.mu.Lock()
		for k == 0 && p.changes == before {
			p.changed.Wait()
		}
		p.mu.Unlock()
	}
}

// now returns the number of changes so far, to notice later ones.
func (p *pipe) now() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changes
}

// tryWrite writes as much as there is room for. Writing the last byte that limit permits breaks the
// connection.
func (p *pipe) tryWrite(b []byte) (n int, err error) {
	p.mu.Lock()
	switch {
	case p.writeErr != nil:
		err = p.writeErr
	case p.writeLimit.passed:
		err = errDeadline
	default:
		if n = min(len(b), max(p.size-len(p.data), 0)); p.left >= 0 {
			n = min(n, p.left)
		}
	}
	breaks := false
	if n > 0 {
		p.data = append(p.data, b[:n]...)
		if p.left > 0 {
			p.left -= n
			breaks = p.left == 0
		}
		p.change()
	}
	p.mu.Unlock()
	if breaks {
		p.breakOff()
	}
	return n, err
}

// breakOff breaks the connection. Bytes in flight in this direction still arrive.
func (p *pipe) breakOff() {
	p.end(syscall.ECONNRESET, syscall.ECONNRESET, false)
	p.other.end(syscall.ECONNRESET, syscall.ECONNRESET, true)
}

// await calls done at once and after each change until done returns true. over is called with the
// mutex held; an error from it ends the wait.
func (p *pipe) await(done func() bool, over func() error) error {
	for {
		p.mu.Lock()
		before, err := p.changes, over()
		p.mu.Unlock()
		if err != nil {
			return err
		}
		if done() {
			return nil
		}
		p.mu.Lock()
		for p.changes == before {
			p.changed.Wait()
		}
		p.mu.Unlock()
	}
}

func (p *pipe) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.data)
}

// limit makes the connection break after n more bytes; negative: never.
func (p *pipe) limit(n int) {
	p.mu.Lock()
	p.left = n
	p.mu.Unlock()
	if n == 0 {
		p.breakOff()
	}
}

func (p *pipe) stall(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled != on {
		p.stalled = on
		p.change()
	}
}

func (p *pipe) closeWrite() { p.end(io.EOF, net.ErrClosed, false) }

// closeRead closes the reading side, and reports whether unread bytes were lost.
func (p *pipe) closeRead() (lost bool) {
	p.mu.Lock()
	lost = len(p.data) > 0
	p.mu.Unlock()
	p.end(net.ErrClosed, syscall.EPIPE, true)
	return lost
}

// end ends the pipe. The first error stays, except that ErrClosed of this end replaces others.
func (p *pipe) end(readErr, writeErr error, lose bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.readErr == nil || errors.Is(readErr, net.ErrClosed) {
		p.readErr = readErr
	}
	if p.writeErr == nil || errors.Is(writeErr, net.ErrClosed) {
		p.writeErr = writeErr
	}
	if lose {
		p.data, p.stalled = nil, false
	}
	p.change()
}

// A deadline is guarded by its pipe's mutex.
type deadline struct {
	timer  *time.Timer
	passed bool
}

// set changes the deadline d of p.
func (d *deadline) set(p *pipe, t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.passed = !t.IsZero() && !t.After(time.Now())
	if !t.IsZero() && !d.passed {
		var timer *time.Timer
		timer = time.AfterFunc(time.Until(t), func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if d.timer == timer { // not replaced while this waited for the mutex
				d.passed = true
				p.change()
			}
		})
		d.timer = timer
	}
	p.change()
}
