package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
)

const (
	socketClients = 16
	socketBudget  = 64 << 20 // of the server, which may take as much again for itself
	socketConfig  = "[limits]\npayload_bytes = \"64MiB\"\nmessage_bytes = \"4MiB\"\nmetadata_bytes = \"64KiB\"\n"
	// A burst has fewer messages than a connection may have in flight.
	maxBurst = 100
	// patience bounds the wait for an answer: longer than the bar, as the client shares the
	// machine.
	patience = 20 * time.Second
)

// socketLimits are the limits of socketConfig, and otherwise the defaults.
var socketLimits = shiva.Limits{MessageBytes: 4 << 20, MetadataBytes: 64 << 10, Tensors: 255, Rank: 64, JSONDepth: 128}

// overSockets sends frames to a shivad. Each client also decodes the frames that it sends, so that
// it knows the number and the ids of the answers, and where the connection ends.
func overSockets(ctx context.Context, frames int, seed uint64) error {
	if frames == 0 {
		return nil
	}
	dir, err := os.MkdirTemp("", "fuzz-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := process.Build(ctx, dir, "cmd/shivad", "bench/noop"); err != nil {
		return err
	}
	var group process.Group
	defer func() { group.Stop() }()
	tcp, err := startServer(ctx, dir, &group)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, group.Output())
	}
	began := time.Now()
	var left atomic.Int64
	left.Store(int64(frames))
	clients := make([]socketClient, socketClients)
	errs := make([]error, socketClients)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			if errs[i] = clients[i].run(ctx, tcp, seed+uint64(i), &left); errs[i] != nil {
				cancel()
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	for _, err := range append(errs, group.Alive()) {
		if err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("socket: %w", err)
		}
	}
	var sum socketClient
	for _, c := range clients {
		sum.frames += c.frames
		sum.answers += c.answers
		sum.connections += c.connections
		sum.matched += c.matched
	}
	now, most, err := group[0].Memory()
	if err != nil {
		return err
	}
	fmt.Printf("socket: %d frames in %v, %s, on %d connections: %d answers as expected, of them %d with an id; the server has %d MiB in memory, %d at the most\n",
		sum.frames, took.Round(time.Millisecond), rate(sum.frames, took), sum.connections, sum.answers, sum.matched, now>>20, most>>20)
	if limit := int64(2 * socketBudget); most > limit {
		return fmt.Errorf("socket: the server had %d MiB in memory, expected %d at most", most>>20, limit>>20)
	}
	if strings.Contains(group[0].Output(), "panic") {
		return fmt.Errorf("socket: the server has seen a panic\n%s", group[0].Output())
	}
	return ctx.Err()
}

// startServer starts a shivad and its container, and returns its address once it serves.
func startServer(ctx context.Context, dir string, group *process.Group) (tcp string, err error) {
	config := filepath.Join(dir, "fuzz.toml")
	if err := os.WriteFile(config, []byte(socketConfig), 0o600); err != nil {
		return "", err
	}
	var containers string
	if err := process.FreeAddrs(&tcp, &containers); err != nil {
		return "", err
	}
	if err := group.Start(dir, filepath.Join(dir, "shivad"), "--config", config, "--log-level", "error", "--tcp", tcp, "--rest", "", "--grpc", "", "--admin", "", "--containers", containers); err != nil {
		return "", err
	}
	if err := group.Start(dir, filepath.Join(dir, "noop"), "-servers", containers, model+":FP32:16"); err != nil {
		return "", err
	}
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		c, err := shiva.Dial(ctx, tcp)
		if err == nil {
			var m *shiva.Message
			if m, err = c.Do(ctx, &shiva.Message{Namespace: "v2/models/" + model + "/ready"}); err == nil {
				m.Release()
			}
			c.Close()
		}
		if gone := errors.Join(group.Alive(), ctx.Err()); err == nil || gone != nil || time.Now().After(end) {
			return tcp, errors.Join(err, gone)
		}
	}
}

// A socketClient has one connection at a time.
type socketClient struct {
	*mutator
	mirror, answersIn            *shiva.Decoder
	buf, in                      []byte
	unread                       []byte // of in
	frames, answers, connections int
	matched                      int // answers with the id of their message
}

func (s *socketClient) run(ctx context.Context, addr string, seed uint64, left *atomic.Int64) (err error) {
	if s.mutator, err = newMutator(seed, 1.0/200); err != nil {
		return err
	}
	s.mirror = shiva.NewDecoder(shiva.DecoderConfig{Limits: socketLimits})
	s.answersIn = shiva.NewDecoder(shiva.DecoderConfig{})
	s.in = make([]byte, 64<<10)
	for ctx.Err() == nil && left.Load() > 0 {
		if err := s.connection(ctx, addr, left); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// connection sends bursts of messages until a message ends the connection, or is left incomplete.
func (s *socketClient) connection(ctx context.Context, addr string, left *atomic.Int64) error {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	s.connections++
	s.mirror.Reset()
	s.answersIn.Reset()
	s.unread = nil
	for left.Load() > 0 {
		_ = c.SetDeadline(time.Now().Add(patience))
		n := 1 + s.rng.IntN(maxBurst)
		s.buf = s.buf[:0]
		for range n {
			s.buf = s.next(s.buf)
		}
		ids, fatal := s.expect()
		s.frames += n
		left.Add(-int64(n))
		if _, err := c.Write(s.buf); err != nil && !fatal {
			return fmt.Errorf("a connection without a fault: %w: %x", err, s.buf)
		}
		for i, id := range ids {
			if err := s.answer(c, id); err != nil {
				return fmt.Errorf("answer %d of %d, to id %q: %w: %x", i+1, len(ids), id, err, s.buf)
			}
		}
		if fatal {
			if _, m, err := s.read(c); err != io.EOF && !errors.Is(err, net.ErrClosed) && !reset(err) {
				return fmt.Errorf("a fault does not end the connection: %v, %w: %x", m, err, s.buf)
			}
			return nil
		}
		if s.mirror.Buffered() {
			return nil
		}
	}
	return nil
}

// expect decodes the burst, and returns the ids of the answers that are due, nil for an answer
// without one, and whether the connection ends after them.
func (s *socketClient) expect() (ids [][]byte, fatal bool) {
	for rest := s.buf; len(rest) > 0; {
		n, m, err := s.mirror.Push(rest)
		rest = rest[n:]
		fault, _ := errors.AsType[*shiva.DecodeError](err)
		switch {
		case m != nil:
			ids = append(ids, bytes.Clone(jsonscan.Field(m.Metadata, "id")))
			m.Release()
		case fault != nil && fault.Keep():
			ids = append(ids, []byte(fault.ID))
		case fault != nil:
			return append(ids, nil), true
		}
	}
	return ids, false
}

// answer reads one answer, which must have the id.
func (s *socketClient) answer(c net.Conn, id []byte) error {
	metadata, _, err := s.read(c)
	if err != nil {
		return err
	}
	s.answers++
	if len(id) > 0 {
		if !bytes.Contains(metadata, id) {
			return fmt.Errorf("it has another id: %s", metadata)
		}
		s.matched++
	}
	return nil
}

// read reads one message, and returns its metadata and its name.
func (s *socketClient) read(c net.Conn) (metadata []byte, namespace string, err error) {
	for {
		n, m, err := s.answersIn.Push(s.unread)
		s.unread = s.unread[n:]
		if m != nil {
			metadata, namespace = bytes.Clone(m.Metadata), m.Namespace
			m.Release()
			return metadata, namespace, nil
		}
		if err != nil {
			return nil, "", err
		}
		if n, err = c.Read(s.in); n == 0 && err != nil {
			return nil, "", err
		}
		s.unread = s.in[:n]
	}
}

// reset reports whether a server has closed a connection on which it had not read everything.
func reset(err error) bool {
	_, ok := errors.AsType[*net.OpError](err)
	return ok && !errors.Is(err, os.ErrDeadlineExceeded)
}
