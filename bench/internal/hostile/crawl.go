package hostile

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// Crawl keeps connections to a server's address of TLS until ctx ends: n that begin a handshake and
// say no more, and n that finish it and then send a byte of a message each second. One that the
// server ends comes again a second later. ready is called once, when the latter are all there and
// the former have begun.
func Crawl(ctx context.Context, addr string, n int, ready func()) error {
	x, err := tensor.FromSlice(tensor.Shape{}, []float32{1})
	if err != nil {
		return err
	}
	message, err := shiva.AppendMessage(nil, &shiva.Message{Namespace: "small", Tensors: []tensor.Tensor{x}})
	if err != nil {
		return err
	}
	var all, met sync.WaitGroup
	turns := make(chan struct{}, 16) // more handshakes at once would end each other
	met.Add(n)
	for range n {
		all.Go(func() {
			first := sync.OnceFunc(met.Done)
			again(ctx, func() { dribble(ctx, addr, message, turns, first) })
			first()
		})
	}
	met.Wait()
	begun := []byte{22, 3, 1, 2, 0} // the head of a record of 512 bytes
	for range n {
		all.Go(func() {
			again(ctx, func() { hold(ctx, addr, begun) })
		})
	}
	ready()
	all.Wait()
	return nil
}

// again does it until ctx ends, with about a second in between.
func again(ctx context.Context, do func()) {
	for ctx.Err() == nil {
		do()
		pause(ctx, time.Second)
	}
}

// pause waits for d, half of it at least, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d/2 + rand.N(d)):
	}
}

// hold sends bytes and then nothing until the server hangs up, or ctx ends.
func hold(ctx context.Context, addr string, bytes []byte) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := c.Write(bytes); err == nil {
		_, _ = c.Read(make([]byte, 1))
	}
}

// dribble sends a byte each second after its handshake, for which it waits its turn, until the
// server hangs up, or ctx ends.
func dribble(ctx context.Context, addr string, message []byte, turns chan struct{}, met func()) {
	turns <- struct{}{}
	// Whoever answers is attacked.
	c, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", addr)
	<-turns
	if err != nil {
		return
	}
	met()
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	for i := 0; ctx.Err() == nil; i++ {
		pause(ctx, time.Second)
		if _, err := c.Write(message[i%len(message):][:1]); err != nil {
			return
		}
	}
}
