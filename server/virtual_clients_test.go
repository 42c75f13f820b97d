package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/shivad/shivad/shiva/shivatest"
)

// A client sends requests through one door, on its own connections.
type client struct {
	scene           *scene
	name            string
	door            string
	encrypted       bool
	from            string     // its address
	identity, token string     // its credentials
	rand, deals     *rand.Rand // for its actions, and for its requests

	keeps map[string]int   // a camera's streams: how many frames of each may wait
	seqs  map[string]int64 // and the number of the last frame
	asked []*question      // requests to the application

	shares *sharing // nil: no shared memory
	slots  int      // slots that requests have taken

	shaky bool // its connections are cut, stall, or are closed by itself
	last  bool // it starts after all faults have ended

	mu    sync.Mutex
	conns []halfCloser
	cut   bool // a connection has been cut
	// faults is the random source for its connections, which several goroutines make.
	faults *rand.Rand
}

// doors are the doors of clients; "stream" is ModelStreamInfer.
var doors = []string{"tcp", "rest", "grpc", "stream"}

// Addresses in the network in memory: of doors, of the same with TLS, and of containers by
// protocol.
var (
	doorAddrs = map[string]string{"tcp": "10.0.0.1:6174", "rest": "10.0.0.1:8000", "grpc": "10.0.0.1:8001",
		"stream": "10.0.0.1:8001", "admin": "10.0.0.1:9000", "frigate": "10.0.0.1:5555"}
	encryptedAddrs = map[string]string{"tcp": "10.0.0.1:6175", "rest": "10.0.0.1:8443", "grpc": "10.0.0.1:8444",
		"stream": "10.0.0.1:8444", "admin": "10.0.0.1:9443"}
	containersAddrs = map[string]string{"": "10.0.0.1:7000", "tls": "10.0.0.1:7001", "v1b": "10.0.0.1:7002",
		"v2": "10.0.0.1:7003", "v2a": "10.0.0.1:7004", "v0": "10.1.0.100:9000"}
)

// patience is how long clients wait for answers that never come.
const patience = time.Minute

// A halfCloser is a client's connection: a *shivatest.Link, or TLS on one.
type halfCloser interface {
	io.ReadWriteCloser
	SetDeadline(time.Time) error
	CloseWrite() error
}

// dial makes a connection, which fails as the seed decides.
func (c *client) dial(ctx context.Context) (halfCloser, error) {
	addr := doorAddrs[c.door]
	if c.encrypted {
		addr = encryptedAddrs[c.door]
	}
	newest := c.scene.certificate.Load()
	k, err := c.scene.net.DialFrom(ctx, c.from, addr)
	if err != nil {
		return nil, err
	}
	c.spoil(k)
	if !c.encrypted {
		return k, nil
	}
	_ = k.SetDeadline(time.Now().Add(patience))
	config := c.scene.pki.config()
	config.NextProtos = map[string][]string{"grpc": {"h2"}, "stream": {"h2"}}[c.door]
	if c.identity != "camera" {
		config.Certificates = nil
	}
	t := tls.Client(k, config)
	if err := t.HandshakeContext(ctx); err != nil {
		k.Close()
		return nil, err
	}
	if serial := t.ConnectionState().PeerCertificates[0].SerialNumber.Int64(); serial < newest {
		c.scene.history.fault("%s was shown certificate %d, and that of the last reload was %d", c.name, serial, newest)
	}
	_ = k.SetDeadline(time.Time{})
	return t, nil
}

// spoil makes a connection fail as the seed decides.
func (c *client) spoil(k *shivatest.Link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns = append(c.conns, k)
	if !c.shaky || c.scene.calm.Err() != nil {
		return
	}
	bytes := 2000
	if c.encrypted {
		bytes = 6000 // enough for a handshake
	}
	switch c.faults.IntN(4) {
	case 0:
		c.cut = true
		k.CutAfter(c.faults.IntN(bytes), -1)
	case 1:
		c.cut = true
		k.CutAfter(-1, c.faults.IntN(bytes))
	case 2:
		c.cut = true
		time.AfterFunc(time.Duration(c.faults.IntN(1500))*time.Millisecond, k.Cut)
	case 3:
		sent, received := c.faults.IntN(2) == 0, c.faults.IntN(2) == 0
		time.AfterFunc(time.Duration(c.faults.IntN(1000))*time.Millisecond, func() { k.Stall(sent, received) })
		time.AfterFunc(1500*time.Millisecond, func() { k.Stall(false, false) })
	}
}

// wasCut reports whether one of its connections has been broken.
func (c *client) wasCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

// leave records that it has broken a connection itself.
func (c *client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = true
}

// close closes all its connections.
func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.conns {
		k.Close()
	}
}

// deal draws a request, or feedback about an earlier one.
func (c *client) deal() *question {
	r, s, q := c.deals, c.scene, &question{client: c, model: "a", rows: 1 + c.deals.IntN(4), timeout: defaultDeadline}
	switch n := r.IntN(20); {
	case n < 6:
		q.model = "b"
	case n < 7:
		q.model = "none"
	case n < 10, s.troubles.learning && n < 14:
		q.model = "app"
	case s.plan.old != "" && n < 15:
		q.model = "old"
	case s.troubles.loads && n < 16:
		q.model = "s"
	case s.troubles.versions && n < 17:
		q.version = fmt.Sprint(1 + n%2)
	}
	if r.IntN(3) == 0 {
		q.timeout = time.Duration(1+r.IntN(300)) * time.Millisecond
	}
	q.bad = r.IntN(30) == 0 && q.model != "old" // "old" takes rows of any length
	c.place(q)
	c.borrow(q)
	about := r.IntN(1 << 20)
	if q.model != "app" || !s.troubles.learning || c.last || c.door == "grpc" || c.door == "stream" {
		return q
	}
	if len(c.asked) > 0 && about%2 == 0 {
		return &question{client: c, model: "app", rows: 1, timeout: q.timeout, about: c.asked[about/2%len(c.asked)]}
	}
	c.asked = append(c.asked, q)
	return q
}

// place makes a request a frame if its client is a camera.
func (c *client) place(q *question) {
	n := c.deals.IntN(4)
	if c.keeps == nil || n == 0 {
		return
	}
	f := &place{stream: []string{"front", "front", "back"}[n-1]}
	f.keep = c.keeps[f.stream]
	if c.seqs == nil {
		c.seqs = make(map[string]int64)
	}
	c.seqs[f.stream]++
	f.seq = c.seqs[f.stream]
	q.frame = f
}

// wait returns the time until the next request: mostly 0, so that they come in bursts.
func (c *client) wait() time.Duration {
	if c.rand.IntN(3) > 0 {
		return 0
	}
	return time.Duration(c.rand.Int64N(int64(60 * time.Millisecond)))
}

// inputs returns the values of a request.
func (q *question) inputs() []int32 {
	values := make([]int32, 0, 2*q.rows)
	for row := range q.rows {
		values = append(values, q.number, int32(row))
	}
	return values
}

// by returns the models that may answer a request.
func (q *question) by() []string {
	switch {
	case q.model == "app" && q.client.scene.troubles.learning:
		return []string{"a", "b"}
	case q.model == "app":
		return []string{"a"}
	}
	return []string{q.model}
}

// path returns the name in the request's path.
func (q *question) path() string {
	switch {
	case q.about != nil:
		return q.model + "/update"
	case q.version != "":
		return q.model + "/" + q.version
	}
	return q.model
}

// width returns the width of a row, which differs from the model's in a bad request.
func (q *question) width() int {
	if q.bad {
		return 1
	}
	return 2
}

// parameters returns the parameters of a frame, by name, for any door.
func (q *question) parameters() map[string]any {
	f := q.frame
	if f == nil {
		return nil
	}
	p := map[string]any{"stream": f.stream, "seq": f.seq, "keep": int64(f.keep)}
	switch f.keep {
	case 0:
		p["keep"] = "all"
	case 1:
		p["keep"] = "latest"
	}
	return p
}

// run sends the given number of requests, and returns when all are answered or never will be.
func (c *client) run(questions int) {
	switch c.door {
	case "tcp":
		c.runShiva(questions)
	case "rest":
		ask, end := c.askREST()
		c.runWaiting(questions, ask, end)
	case "grpc":
		ask, end := c.askGRPC()
		c.runWaiting(questions, ask, end)
	case "stream":
		c.runStream(questions)
	case "frigate":
		c.runDetector(questions)
	}
	c.close()
}

// runWaiting sends some requests at a time, each with a call that waits.
func (c *client) runWaiting(questions int, ask func(context.Context, *question) answer, close func()) {
	h := c.scene.history
	var all sync.WaitGroup
	turns := make(chan struct{}, 1+c.rand.IntN(4))
	for range questions {
		time.Sleep(c.wait())
		q := c.deal()
		most := patience
		if c.shaky && c.rand.IntN(8) == 0 {
			most = time.Duration(1+c.rand.IntN(50)) * time.Millisecond
		}
		turns <- struct{}{}
		h.ask(q)
		all.Go(func() {
			defer func() { <-turns }()
			ctx, cancel := context.WithTimeout(context.Background(), most)
			defer cancel()
			a := ask(ctx, q)
			if most < patience && a.kind != okay {
				h.give(q)
			}
			h.answer(q, a)
		})
	}
	all.Wait()
	close()
}
