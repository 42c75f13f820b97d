package tcp

import (
	"bytes"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/shiva/certtest"
)

// A swap is a connection below TLS that can be replaced.
type swap struct{ net.Conn }

// encryptedPair returns two ends of TLS that do not block, with as little buffer between them as
// possible.
func encryptedPair(t *testing.T) (a, b *encrypted) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	var sockets [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(func() { c.Close() })
		sockets[i] = c.(*net.UnixConn)
	}
	authority := certtest.New(t, "authority")
	var ends [2]*encrypted
	var carriers [2]*swap
	for i, c := range sockets {
		carriers[i], ends[i] = &swap{c}, new(encrypted)
	}
	ends[0].tls = tls.Client(carriers[0], &tls.Config{RootCAs: authority.Pool(), ServerName: "localhost"})
	ends[1].tls = tls.Server(carriers[1],
		&tls.Config{Certificates: []tls.Certificate{authority.Server(nil).Pair(t)}, DynamicRecordSizingDisabled: true})
	met := make(chan error, 1)
	go func() { met <- ends[0].tls.Handshake() }()
	if err := errors.Join(ends[1].tls.Handshake(), <-met); err != nil {
		t.Fatal(err)
	}
	for i, c := range carriers {
		below, err := pollableOf(sockets[i])
		if err != nil {
			t.Fatal(err)
		}
		_ = sockets[i].SetWriteBuffer(1) // the system raises it to its minimum
		ends[i].cipher = &ciphertext{Conn: c.Conn, pollable: below}
		c.Conn = ends[i].cipher
	}
	return ends[1], ends[0]
}

// Written bytes count as taken once the socket has them, in whole batches: the other end can read
// these and less than a batch more, in order, each byte once, however they are cut.
func TestEncryptedMedium(t *testing.T) {
	server, client := encryptedPair(t)
	r := rand.New(rand.NewPCG(1, 2))
	all := make([]byte, 2<<20)
	for i := range all {
		all[i] = byte(r.Uint32())
	}
	var got []byte
	hear := func() {
		for block := make([]byte, 1+r.IntN(100_000)); ; {
			n, err := client.TryRead(block)
			got = append(got, block[:n]...)
			if err == unix.EAGAIN || n == 0 {
				if err != unix.EAGAIN {
					t.Fatalf("%d bytes, %v", n, err)
				}
				return
			}
		}
	}
	full := 0
	for sent := 0; sent < len(all); {
		left := all[sent:]
		if len(left) > 1+r.IntN(300_000) {
			left = left[:1+r.IntN(len(left)/4+1)]
		}
		if server.encryptedBytes > len(left) {
			left = all[sent : sent+server.encryptedBytes] // the batch that was begun is offered again
		}
		var vecs [][]byte
		for rest := left; len(rest) > 0; {
			n := min(r.IntN(40_000), len(rest))
			vecs, rest = append(vecs, rest[:n]), rest[n:]
		}
		n, err := server.TryWrite(vecs)
		if err != nil {
			t.Fatal(err)
		}
		if sent += n; n < len(left) {
			full++
		}
		if r.IntN(3) == 0 {
			continue // the socket is still full
		}
		if hear(); len(got) < sent || len(got) >= sent+batchBytes || !bytes.Equal(got, all[:len(got)]) {
			t.Fatalf("%d bytes were taken and %d have arrived, or others", sent, len(got))
		}
	}
	if hear(); !bytes.Equal(got, all) || full < 10 {
		t.Errorf("%d bytes of %d, the socket was full %d times", len(got), len(all), full)
	}
	_ = server.CloseWrite()
	if n, err := client.TryRead(make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("at the end: %d bytes, %v", n, err)
	}
}

// A client may make TLS write, as answers to its key updates, without ever reading: it is detected
// before it takes much memory.
func TestUnreadCiphertext(t *testing.T) {
	server, _ := encryptedPair(t)
	record, most := make([]byte, 1000), 0
	for range 1 << 20 / len(record) {
		n, err := server.cipher.Write(record)
		if err != nil {
			if most < batchBytes || !strings.Contains(err.Error(), "the client makes TLS send records without reading") {
				t.Errorf("%d bytes, %v", most, err)
			}
			return
		}
		if n != len(record) {
			t.Fatalf("TLS is told that %d bytes of %d were written", n, len(record))
		}
		if most = max(most, len(server.cipher.pending)); most > 3*batchBytes {
			break
		}
	}
	t.Errorf("%d bytes wait", most)
}

// Records that TLS writes by itself follow the pending ones, even if the socket has room again by
// then.
func TestCiphertextKeepsItsOrder(t *testing.T) {
	server, client := encryptedPair(t)
	var sent, got []byte
	write := func() {
		record := bytes.Repeat([]byte{byte(len(sent) / 1000)}, 1000)
		if n, err := server.cipher.Write(record); n != len(record) || err != nil {
			t.Fatal(n, err)
		}
		sent = append(sent, record...)
	}
	hear := func() {
		for block := make([]byte, 64<<10); ; {
			n, err := client.cipher.pollable.TryRead(block)
			if n <= 0 {
				if err != unix.EAGAIN {
					t.Fatal(n, err)
				}
				return
			}
			got = append(got, block[:n]...)
		}
	}
	for len(server.cipher.pending) == 0 {
		write()
	}
	hear()
	write()
	if full, err := server.cipher.flush(); full || err != nil {
		t.Fatal(full, err)
	}
	if hear(); !bytes.Equal(got, sent) {
		t.Errorf("%d bytes were written and %d have arrived, or in another order", len(sent), len(got))
	}
}
