// Package hostile has hostile peers for the containers' address. Their rate is limited, so that a
// measurement alongside shows the server and not the kernel's scheduler.
package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Peer is one kind of hostile peer.
type Peer struct {
	Name string
	// Words must all be in the server's one log line about such a peer.
	Words []string

	// bytes are sent over a bare connection, which stays open.
	bytes []byte
	// answer, instead, makes its answers to batches, once registered.
	answer func(b *containertest.Batch) containertest.Reply
	// strays makes it also answer batches that do not exist.
	strays bool
}

var (
	greeting  = append(append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0}, "NULL"...), make([]byte, 48)...)
	handshake = append(bytes.Clone(greeting), "\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"...)
)

// Peers returns all kinds. A peer that answers batches wrongly serves a model named after itself,
// and gets requests for it.
func Peers() []Peer {
	frame := func(size uint64) []byte { return binary.BigEndian.AppendUint64([]byte{2}, size) }
	shaken := func(b []byte) []byte { return append(bytes.Clone(handshake), b...) }
	return []Peer{
		{Name: "silent", Words: []string{"greeting", "i/o timeout"}},
		{Name: "half-greeting", Words: []string{"greeting", "i/o timeout"}, bytes: greeting[:20]},
		{Name: "rubbish", Words: []string{"not a ZeroMQ greeting"}, bytes: bytes.Repeat([]byte{0xa5}, 4096)},
		{Name: "frame-of-2^49", Words: []string{"frame 0 of 562949953421312 bytes", "limit"},
			bytes: shaken(frame(1 << 49))},
		{Name: "endless-multipart", Words: []string{"more than 16 frames"},
			bytes: shaken(bytes.Repeat([]byte{1, 0}, 10_000))},
		{Name: "ping-flood", Words: []string{"not registered within"}, bytes: shaken(bytes.Repeat([]byte("\x04\x0a\x04PING\x00\x00ctx"), 200))},
		{Name: "wrong-rows", Words: []string{"failed a batch", "model=wrong-rows/1", "for a batch of"},
			answer: func(*containertest.Batch) containertest.Reply {
				return containertest.Reply{
					Outputs: []tensor.Tensor{{DType: tensor.Float32, Shape: tensor.Shape{7}, Data: make([]byte, 28)}}}
			}},
		{Name: "wrong-id", Words: []string{"not in flight", "model=wrong-id/1"}, strays: true,
			answer: func(b *containertest.Batch) containertest.Reply {
				return containertest.Reply{Outputs: b.Inputs}
			}},
		{Name: "stale-id", Words: []string{"not in flight", "model=stale-id/1"},
			answer: func(b *containertest.Batch) containertest.Reply {
				return containertest.Reply{Outputs: b.Inputs, Twice: true}
			}},
	}
}

// Attack runs all peers against a server, each kind perSecond times a second on average, until
// ctx ends.
func Attack(ctx context.Context, containers, clients string, perSecond int) error {
	peers := Peers()
	faults := make([]error, len(peers))
	var all sync.WaitGroup
	for i, p := range peers {
		all.Go(func() { faults[i] = p.attack(ctx, containers, clients, time.Second/time.Duration(perSecond)) })
	}
	all.Wait()
	return errors.Join(faults...)
}

// after returns a timer for the next peer of a kind. Peers arrive at random (Poisson), like the
// requests of the measured load. In step, all kinds would arrive within the same millisecond and
// occupy both cores of a small machine.
func after(period time.Duration) <-chan time.Time {
	return time.After(time.Duration(rand.ExpFloat64() * float64(period)))
}

// attack starts a peer once in a period, on average. It returns after ctx has ended and its
// connections are closed.
func (p Peer) attack(ctx context.Context, containers, clients string, period time.Duration) error {
	var held sync.WaitGroup
	defer held.Wait()
	for {
		next := after(period)
		if p.answer != nil {
			if err := p.lie(ctx, containers, clients, period); err != nil && ctx.Err() == nil {
				return fmt.Errorf("hostile: %s: %w", p.Name, err)
			}
		} else {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", containers)
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return fmt.Errorf("hostile: %s: %w", p.Name, err)
			}
			held.Go(func() { // ends when the server hangs up, or ctx ends
				defer context.AfterFunc(ctx, func() { c.Close() })()
				_, _ = c.Write(p.bytes) // the server may hang up before it has read all
				_, _ = io.Copy(io.Discard, c)
				c.Close()
			})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		}
	}
}

// lie registers a container and answers the requests of its own client wrongly until ctx ends.
func (p Peer) lie(ctx context.Context, containers, clients string, period time.Duration) error {
	client, err := shiva.Dial(ctx, clients)
	if err != nil {
		return err
	}
	defer client.Close()
	spec := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1}}}
	c, err := containertest.Dial(ctx, containers,
		containertest.Model{Name: p.Name, Version: "1", Inputs: spec, Outputs: spec, Answer: p.answer})
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		next := after(period)
		if p.strays {
			if err := c.Send(containertest.Result(42, spec, containertest.Reply{Error: "not asked"})...); err != nil {
				return err
			}
		}
		x, err := tensor.FromSlice(tensor.Shape{}, []float32{1})
		if err != nil {
			return err
		}
		asked, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		m, err := client.Do(asked, &shiva.Message{Namespace: p.Name, Tensors: []tensor.Tensor{x}})
		cancel()
		if err == nil {
			m.Release()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.Gone():
			return errors.New("the server has ended its session")
		case <-next:
		}
	}
}
