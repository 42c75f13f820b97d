package shiva

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/shivad/shivad/shiva/tensor"
)

// WithSharedMemory shares this many bytes of /dev/shm with a server on the same machine, if the
// server offers it: inputs and outputs of 64 KiB or more pass through it, as far as there is room.
// Messages must name their inputs, in metadata "__tensors__" or by their Names. A stream has shared
// memory of its own, of the same size.
//
// Answers are the same with or without it. An output occupies shared memory until its answer, and
// every retained copy of its tensor, is released; answers that are never released use the memory
// up. Room for outputs is reserved from the second request of a route on, when their sizes are
// known.
//
// Tensors without room are sent over the connection, and so are all tensors to a server that
// refuses the memory, or loses it later: [Client.Shared] returns why. Requests in the lost memory
// were not executed; they are sent again with their tensors, except frames of a stream. The memory
// has a name only while a connection is made, and ends with the processes that map it.
func WithSharedMemory(bytes int64) Option { return func(o *options) { o.sharedBytes = bytes } }

const (
	sharedDir      = "/dev/shm"
	minSharedBytes = 64 << 10 // size in bytes from which tensors use shared memory
	sharedAligned  = 64
)

// A span is a part of shared memory.
type span struct{ offset, size int64 }

// sharedMemory is the memory that a connection shares with its server. Each connection has its own:
// a server may still write to the memory of the previous connection.
type sharedMemory struct {
	name string
	file *os.File // nil: creating it failed
	mem  []byte   // of the whole file

	mu        sync.Mutex
	free      []span // by offset, never adjacent
	backed    int64  // bytes that are backed by pages
	users     int    // spans taken, plus the connection; unmapped at 0
	refusal   error  // why the server does not use it
	sizeError error  // error of the last tensor larger than all of the memory
}

func newSharedMemory(size int64) (*sharedMemory, error) {
	name := fmt.Sprintf("shiva-%d-%s", os.Getpid(), strings.ToLower(rand.Text()[:16]))
	file, mem, err := createShared(filepath.Join(sharedDir, name), size)
	if err != nil {
		return nil, fmt.Errorf("shiva: shared memory: %w", err)
	}
	return &sharedMemory{name: name, file: file, mem: mem, free: []span{{0, size}}, users: 1}, nil
}

// unlink removes the name. The memory then lasts while a process has it open.
func (s *sharedMemory) unlink() { _ = os.Remove(s.file.Name()) }

// releaseLocked ends one use of the memory. The caller holds mu.
func (s *sharedMemory) releaseLocked() {
	if s.users--; s.users == 0 && s.file != nil {
		unmapShared(s.mem)
		s.file.Close()
		s.mem = nil
	}
}

// disconnect ends the connection's use.
func (s *sharedMemory) disconnect() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusal = errNoConnection
	s.releaseLocked()
}

var (
	errNoConnection = errors.New("shiva: shared memory: there is no connection at present")
	errNotShared    = errors.New("shiva: shared memory: the client was made without WithSharedMemory")
)

// share makes memory for a new connection and registers it with the server. It fails only if the
// connection does: without memory, or if the server refuses it, tensors are sent.
func (c *link) share(ctx context.Context, conn net.Conn) (*sharedMemory, error) {
	if c.opts.sharedBytes <= 0 {
		return nil, nil
	}
	s, err := newSharedMemory(c.opts.sharedBytes)
	if err != nil {
		return &sharedMemory{refusal: err, users: 1}, nil
	}
	defer s.unlink()
	if err := s.register(ctx, conn); err != nil {
		s.disconnect()
		return nil, err
	}
	return s, nil
}

func (s *sharedMemory) register(ctx context.Context, conn net.Conn) error {
	answer, err := exchange(ctx, conn, &Message{
		Namespace: "v2/systemsharedmemory/region/" + s.name + "/register",
		Metadata:  fmt.Appendf(nil, `{"key":"/%s","offset":0,"byte_size":%d,"connection":true}`, s.name, len(s.mem)),
	})
	if err != nil {
		return err
	}
	if e := ParseError(answer); e != nil {
		s.refusal = e
	}
	answer.Release()
	return nil
}

// Shared is [Client.Shared] of this link.
func (c *link) Shared() error {
	if c.opts.sharedBytes <= 0 {
		return errNotShared
	}
	s := c.memory()
	if s == nil {
		return errNoConnection
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refusal != nil {
		return s.refusal
	}
	return s.sizeError
}

// memory returns the memory of the current connection; nil: it has none.
func (c *link) memory() *sharedMemory {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shared
}

// usable reports whether the server has accepted the memory.
func (s *sharedMemory) usable() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusal == nil
}

// take returns the first free part that is large enough; what and name are for errors. It ensures
// that the part's pages exist: writing to a mapping on a full file system would kill the process.
func (s *sharedMemory) take(size int64, what, name string) (span, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refusal != nil {
		return span{}, false
	}
	if all := int64(len(s.mem)); size > all {
		s.sizeError = fmt.Errorf("shiva: shared memory: %s %q has %d bytes and is sent over the connection: the size set by WithSharedMemory is %d",
			what, name, size, all)
		return span{}, false
	}
	size = (size + sharedAligned - 1) / sharedAligned * sharedAligned
	i := slices.IndexFunc(s.free, func(f span) bool { return f.size >= size })
	if i < 0 {
		return span{}, false
	}
	if end := s.free[i].offset + size; end > s.backed {
		if backShared(s.file, s.backed, end-s.backed) != nil {
			return span{}, false // the file system is full
		}
		s.backed = end
	}
	s.users++
	taken := span{s.free[i].offset, size}
	if s.free[i].offset, s.free[i].size = s.free[i].offset+size, s.free[i].size-size; s.free[i].size == 0 {
		s.free = slices.Delete(s.free, i, i+1)
	}
	return taken, true
}

// split accounts for one taken part becoming two.
func (s *sharedMemory) split() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
}

// giveBack ends the use of parts.
func (s *sharedMemory) giveBack(parts ...span) {
	if len(parts) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := append(s.free, parts...)
	slices.SortFunc(all, func(a, b span) int { return int(min(max(a.offset-b.offset, -1), 1)) })
	s.free = all[:1]
	for _, next := range all[1:] {
		if last := &s.free[len(s.free)-1]; last.offset+last.size == next.offset {
			last.size += next.size
		} else {
			s.free = append(s.free, next)
		}
	}
	for range parts {
		s.releaseLocked()
	}
}

// noteError checks whether an answer is an error about the memory: the server has then lost it,
// because an operator or another client has removed it. Later requests send their tensors until
// there is another connection, which shares memory of its own.
func (s *sharedMemory) noteError(answer *Message) {
	if e := ParseError(answer); e != nil && e.Unshared {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refusal = e
	}
}

// A part owns the memory of an output.
type part struct {
	memory *sharedMemory
	span   span
}

// Put implements [tensor.Lender].
func (p *part) Put([]byte) { p.memory.giveBack(p.span) }

// outputSizes holds the size in bytes of the large outputs of each route, from its recent answers.
type outputSizes struct {
	mu     sync.Mutex
	routes map[string]int64
}

const maxOutputSizes = 1024 // routes

func (o *outputSizes) of(route string) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.routes[route]
}

// learn records the outputs of an answer. A smaller answer lowers the size by only an eighth: the
// next one may be as large as before.
func (o *outputSizes) learn(route string, tensors []tensor.Tensor) {
	size := int64(0)
	for _, t := range tensors {
		if n := int64(len(t.Data)); n >= minSharedBytes {
			size += (n + sharedAligned - 1) / sharedAligned * sharedAligned
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	old, known := o.routes[route]
	switch size = max(size, old-old/8); {
	case size < minSharedBytes:
		delete(o.routes, route)
		return
	case o.routes == nil || !known && len(o.routes) >= maxOutputSizes:
		o.routes = make(map[string]int64)
	}
	o.routes[route] = size
}

func mustJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // text and numbers cannot fail
	}
	return text
}
