package tcp

import (
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/server/internal/doortest"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// keepServing sends another client's requests until the returned function is called, which fails
// the test if one of them was not answered well.
func (r *rig) keepServing() (stop func()) {
	c := r.dial()
	done := make(chan struct{})
	var asking sync.WaitGroup
	served := 0
	asking.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			c.send(message("m", "", float32(served), 0, 0, 0))
			if m := c.next(); m == nil || m.Namespace != "m" {
				r.T.Errorf("another client's request %d: %s", served, describeMessage(m))
				return
			} else {
				m.Release()
			}
			served++
			time.Sleep(time.Millisecond) // virtual time passes only while all goroutines wait
		}
	})
	return func() {
		close(done)
		asking.Wait()
		if served == 0 {
			r.T.Error("another client was not served at all")
		}
	}
}

const golden = "../../../shiva/testdata/golden"

// Every malformed vector, each on its own connection, is answered with an error, or, if it is only
// truncated, not answered; and other clients do not notice.
func TestMalformedVectors(t *testing.T) { onAll(t, testMalformedVectors) }

func testMalformedVectors(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	var index struct {
		Vectors []struct {
			File              string
			Valid             bool
			Error             string
			ErrorAlternatives []string `json:"error_alternatives"`
		}
	}
	text, err := os.ReadFile(filepath.Join(golden, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &index); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, nil)
	r.model("m", floats("x"), r.Echo)
	stop := r.keepServing()
	defer stop()
	tried := 0
	var all sync.WaitGroup // concurrently, since truncated vectors get no answer to wait for
	for _, v := range index.Vectors {
		if v.Valid {
			continue
		}
		tried++
		file, err := os.ReadFile(filepath.Join(golden, v.File))
		if err != nil {
			t.Fatal(err)
		}
		c, err := r.connect()
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer c.Close()
			if _, err := c.Write(file); err != nil {
				t.Errorf("%s: %v", v.File, err)
			}
			tolerated := slices.Contains(v.ErrorAlternatives, "none")
			cut := v.Error == "truncated" || v.Error == "eof" || slices.Contains(v.ErrorAlternatives, "truncated")
			patience := doortest.Patience
			if cut || tolerated { // there may be no answer
				patience = 100 * time.Millisecond
			}
			_ = c.SetReadDeadline(time.Now().Add(patience))
			answer := make([]byte, 4096)
			n, err := c.Read(answer)
			switch {
			case n > 0:
				if !slices.Equal(answer[:4], []byte{6, 66, 11, 1}) {
					t.Errorf("%s: the answer is no message: %x", v.File, answer[:n])
				}
			case !cut && !tolerated:
				t.Errorf("%s (%s): no answer: %v", v.File, v.Error, err)
			}
		})
	}
	all.Wait()
	if tried < 50 {
		t.Errorf("only %d malformed vectors", tried)
	}
}

func TestRandomBytes(t *testing.T) { onAll(t, testRandomBytes) }

func testRandomBytes(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	r := newRig(t, nil)
	r.model("m", floats("x"), r.Echo)
	stop := r.keepServing()
	defer stop()
	rng := rand.New(rand.NewPCG(1, 2))
	good, err := shiva.AppendMessage(nil, message("m", `{"id":1}`, 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	for i := range budgettest.Rounds(300) {
		c, err := r.connect()
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, rng.IntN(200))
		for j := range b {
			b[j] = byte(rng.Uint32())
		}
		if i%2 == 0 { // near misses go deeper than noise
			b = append(slices.Clone(good), good...)
			for range 1 + rng.IntN(3) {
				b[rng.IntN(len(b))] ^= byte(1 << rng.IntN(8))
			}
		}
		_, _ = c.Write(b)
		if i%3 == 0 {
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
			_, err := io.Copy(io.Discard, c)
			var timeout net.Error
			if err != nil && !(errors.As(err, &timeout) && timeout.Timeout()) && !errors.Is(err, net.ErrClosed) {
				t.Logf("connection %d: %v", i, err) // a reset is fine, since the client sent garbage
			}
		}
		c.Close()
	}
}

// Headers that announce the largest legal message and then stop hold memory for the bytes that
// arrived, not for those announced.
func TestLengthLies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.model("m", floats("x"), r.Echo)
		// The header announces uint8 [268,435,200], and one byte follows.
		lie := append(header(0, 1, 1), 1, 3, 0x0f, 0xff, 0xff, 0x00, 42)
		for range 500 {
			r.dial().bytes(lie)
		}
		synctest.Wait()
		if held := r.Pool.InUse(); held < 500<<10 || held > 500*16<<10 {
			t.Errorf("500 announcements hold %d KiB", held>>10)
		}
		c := r.dial()
		c.send(message("m", "", 1, 2, 3, 4))
		values(t, c.next())
	})
}

// A client that has had an answer and sends nothing holds little memory: its socket, here at both
// ends, and its session.
func TestIdleClients(t *testing.T) {
	const clients = 500
	r := newSocketRig(t, nil)
	r.model("m", floats("x"), r.Echo)
	ask, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
	if err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 4096)
	come := func() {
		c, err := r.connect()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := c.Write(ask); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAtLeast(c, answer, 1); err != nil {
			t.Fatal(err)
		}
	}
	come() // and the first one allocates shared memory
	before := inUse()
	for range clients {
		come()
	}
	n := (inUse() - before) / clients
	if t.Logf("%d bytes each", n); n > 4<<10 {
		t.Errorf("%d bytes for each of %d clients that ask nothing", n, clients)
	}
}

// When the memory for payloads is exhausted, a message is refused in its place and the connection
// stays in sync.
func TestMemoryBudget(t *testing.T) { onAll(t, testMemoryBudget) }

func testMemoryBudget(t *testing.T, newRig func(testing.TB, func(*Config)) *rig) {
	// The pool is as small as the test allows: the invariants build fills all memory that is taken.
	pool := tensor.NewPool(3 << 20)
	r := newRig(t, func(c *Config) { c.Pool = pool })
	r.model("m", floats("x"), r.Echo)
	hog, err := pool.Get(2 << 20)
	if err != nil {
		t.Fatal(err)
	}
	c := r.dial()
	big := make([]byte, 2<<20)
	b := append(header(8, 1, 1), 1, 3, 0, 0x20, 0, 0)
	b = append(append(append(b, big...), `{"id":7}`...), 'm')
	var writing sync.WaitGroup
	writing.Go(func() { c.bytes(b) })
	if e := c.fault("Overloaded"); !e.Retryable || e.ID != 7.0 {
		t.Errorf("%+v", e)
	}
	writing.Wait()
	c.send(message("m", "", 1, 2, 3, 4))
	values(t, c.next())
	hog.Release()
}
