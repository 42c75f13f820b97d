package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// inUse returns the size of goroutines' stacks and of the live heap.
func inUse() int64 {
	var m runtime.MemStats
	for range 4 { // stacks shrink by half at a time
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// A thousand clients that begin a handshake and then stop cost no more than the few that the door
// waits for, and another client is served.
func TestManyUnfinishedHandshakes(t *testing.T) {
	r := newTLSRig(t, func(c *Config) { c.Connections = 2000 })
	r.model("m", floats("x"), r.Echo)
	hostport, _ := listen.CutTLS(r.door.Addrs()[0].String())
	before := inUse()
	var all []net.Conn
	for range 1000 {
		c, err := net.Dial("tcp", hostport)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write([]byte{22, 3, 1, 2, 0}) // the head of a record of 512 bytes
		all = append(all, c)
	}
	c := r.dial()
	c.send(message("m", "", 1, 2, 3, 4))
	values(t, c.next())
	budgettest.Until(t, "all but 100 to end", func() bool { return r.open() <= 101 })
	if n := inUse() - before; n > 8<<20 {
		t.Errorf("%d KiB are in use", n>>10)
	}
	runtime.KeepAlive(all)
}

// Hundreds of clients that send a byte at a time cost at most a record's memory each, including the
// clients' own, and another client is served.
func TestManySlowTLSClients(t *testing.T) {
	const pieces = 3
	clients := max(100, budgettest.Rounds(1000)) // so many that other memory of the process hardly counts
	// The pieces of a message may be far apart if the machine is busy.
	r := newTLSRig(t, func(c *Config) { c.Connections, c.MessageTimeout = 2000, time.Minute })
	r.model("m", floats("x"), r.Echo)
	ask, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	quick := func() {
		c := r.dial()
		c.bytes(ask)
		values(t, c.next())
	}
	quick() // and the first one allocates shared memory
	before := inUse()
	slow := make([]*wire, clients)
	for i := range slow {
		slow[i] = r.dial()
	}
	for k := range pieces {
		for _, c := range slow {
			c.bytes(ask[k : k+1])
		}
		quick()
	}
	most := int64(64 << 10)
	if budgettest.Race || tensor.Invariants {
		most *= 2
	}
	// Memory that parallel tests hold for a moment is counted, too.
	budgettest.Until(t, fmt.Sprintf("%d KiB for each at most", most>>10), func() bool {
		return (inUse()-before)/int64(clients) <= most
	})
	for _, c := range slow {
		c.bytes(ask[pieces:])
	}
	for _, c := range slow {
		values(t, c.next())
	}
}

// Bytes that a session could not write count as not written, even a record that waits as
// ciphertext: everything arrives once the client reads, in order, and nothing arrives twice.
func TestEncryptedInPieces(t *testing.T) {
	r := newTLSRig(t, nil)
	sized(r, "large", 1<<20, 0)
	c := r.dial()
	_ = c.client.(encryptedClient).SetReadBuffer(64 << 10)
	const answers = 20
	for range answers {
		c.send(message("large", "", 1<<20, 0, 0, 0))
	}
	budgettest.Until(t, "the socket to fill up", func() (full bool) {
		onlySession(r, func(s *session) { full = s.outbound.bytes > 0 })
		return full
	})
	for i := range answers {
		m := c.next()
		if m == nil || len(m.Tensors) != 1 || len(m.Tensors[0].Data) != 1<<20 {
			t.Fatalf("answer %d: %v", i, describeMessage(m))
		}
		m.Release()
	}
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes more, %v", n, err)
	}
}

// A connection ends with its socket, with and without close_notify, and after bytes that are not a
// record.
func TestEndOfTLS(t *testing.T) {
	r := newTLSRig(t, nil)
	r.model("m", floats("x"), r.Echo)
	c := r.dial()
	c.send(message("m", "", 1, 2, 3, 4))
	values(t, c.next())
	// Without close_notify the end of the socket is the end of its client.
	_ = c.client.(encryptedClient).socket.CloseWrite()
	if _, err := io.ReadAll(c.client.(encryptedClient).Conn); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut: %v", err)
	}
	// With garbage in place of a record.
	broken := r.dial()
	if _, err := broken.client.(encryptedClient).socket.Write([]byte("rubbish, and more of it")); err != nil {
		t.Fatal(err)
	}
	if _, err := broken.Read(make([]byte, 1)); err == nil {
		t.Error("rubbish is answered")
	}
	budgettest.Until(t, "both to end", func() bool { return r.open() == 0 })
}
