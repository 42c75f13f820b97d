package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/shivad/shivad/bench/internal/hostile"
	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

func one(r ratio.Ratio, err error) (findings, error) {
	return findings{ratios: []ratio.Ratio{r}}, err
}

// besideHostile measures the effect of hostile peers at the containers' address, five of each kind
// a second, on the p99 of requests to a well-behaved container. It fails if a peer is missing in
// the server's log.
func besideHostile(ctx context.Context, b *bench) (findings, error) {
	// Unregistered connections end early, within a turn.
	s, err := b.start(ctx, setup{name: "hostile", config: "[containers]\nhandshake_timeout = \"400ms\"\n"}, deep)
	if err != nil {
		return findings{}, err
	}
	defer s.Stop()
	peers := func() (*process.Process, error) {
		return b.hostile("-containers", s.Containers, "-clients", s.TCP, "-rate", "5")
	}
	r, err := contrast(ratio.Ratio{What: "p99 beside hostile containers / without them", Bound: ratio.AtMost,
		Limit: 1.2}, besideRounds*b.rounds,
		beside(peers, b.tail(ctx, s, "Hostile/beside=true"), nil), b.tail(ctx, s, "Hostile/beside=false"))
	if err == nil {
		err = named(s.Group[0].Output())
	}
	return one(r, err)
}

var sessionOf = regexp.MustCompile(` session=\d+ `)

// named returns an error that lists the hostile peers that the log lacks, or has twice for one
// connection.
func named(log string) error {
	var faults []error
	for _, p := range hostile.Peers() {
		seen := map[string]bool{}
		for line := range strings.Lines(log) {
			if slices.ContainsFunc(p.Words, func(word string) bool { return !strings.Contains(line, word) }) {
				continue
			}
			session := sessionOf.FindString(line)
			if seen[session] {
				faults = append(faults, fmt.Errorf("hostile peer %s is named twice in the log, for%s", p.Name, session))
			}
			seen[session] = true
		}
		if len(seen) == 0 {
			faults = append(faults,
				fmt.Errorf("hostile peer %s is not named in the log: no line with %q", p.Name, p.Words))
		}
	}
	return errors.Join(faults...)
}

const (
	crawlers = 1000 // of each kind
	// crawlMemory is the allowed growth of the server's memory, in MiB: 64 KiB for each slow
	// client, for its session, its goroutine and its TLS state, and for each of the 256 unfinished
	// handshakes that the server admits (tls.handshakes); and as much again for garbage.
	crawlMemory = 2 * (crawlers + 256) * 64 >> 10

	unfinishedEnded = `shivad_connections_closed_total{door="tcp",reason="handshake"}`
	openOfTCP       = `shivad_connections{door="tcp"}`
)

// besideHandshakes measures the effect of a thousand clients that do not finish their handshakes,
// and of a thousand that send a byte a second, on other clients of the TCP door over TLS, and on
// the server's memory.
func besideHandshakes(ctx context.Context, b *bench) (f findings, err error) {
	s, err := b.start(ctx, setup{name: "handshakes", tls: true}, deep)
	if err != nil {
		return f, err
	}
	defer s.Stop()
	least, _, err := s.Group[0].Memory()
	if err != nil {
		return f, err
	}
	most, ended := least, 0.0
	attacked := func() error {
		m, err := s.Metrics(ctx)
		if err != nil {
			return err
		}
		if m[unfinishedEnded] <= ended || m[openOfTCP] < crawlers {
			return fmt.Errorf("%v handshakes were given up and %v clients are there, expected some and %d",
				m[unfinishedEnded]-ended, m[openOfTCP], crawlers)
		}
		ended = m[unfinishedEnded]
		now, _, err := s.Group[0].Memory()
		most = max(most, now)
		return err
	}
	crawl := func() (*process.Process, error) {
		return b.attackers(ctx, "-crawl", s.TCP, "-crawlers", strconv.Itoa(crawlers))
	}
	r, err := contrast(ratio.Ratio{What: "p99 beside unfinished handshakes and slow clients of TLS / without them",
		Bound: ratio.AtMost, Limit: 1.5}, besideRounds*b.rounds,
		beside(crawl, b.tail(ctx, s, "Handshakes/beside=true"), attacked), b.tail(ctx, s, "Handshakes/beside=false"))
	grown := ratio.Ratio{What: fmt.Sprintf("MiB that the server grows by beside %d of each", crawlers),
		Bound: ratio.AtMost, Limit: crawlMemory,
		Rounds: []float64{float64(most-least) / (1 << 20)}}
	f.ratios = []ratio.Ratio{r, grown}
	return f, err
}

const (
	unread      = 20          // clients of the Shiva door that read nothing
	unreadEach  = 200         // requests of each, with answers of a mebibyte: 4 GiB in total
	unreadFill  = time.Second // until their buffers are full; clients that read suffer meanwhile
	unreadTurns = 12          // measured seconds after that: clients stall, and are closed
	wide        = "wide"      // the unread clients' model, in a container of its own

	closedUnread = `shivad_connections_closed_total{door="tcp",reason="stalled"}`
)

// besideUnread measures the effect of clients that request much and read no answers on the p99 of
// other clients, until the server has closed them, by default after ten seconds. Turns are long, so
// there are few.
func besideUnread(ctx context.Context, b *bench) (f findings, err error) {
	s, err := b.start(ctx, setup{name: "unread"}, deep)
	if err != nil {
		return f, err
	}
	defer s.Stop()
	if err := s.Run(nil, "noop", "-servers", s.Containers, "-wide", wide); err != nil {
		return f, err
	}
	x, err := tensor.FromSlice(tensor.Shape{}, []float32{1})
	if err != nil {
		return f, err
	}
	question, err := shiva.AppendMessage(nil, &shiva.Message{Namespace: wide, Tensors: []tensor.Tensor{x}})
	if err != nil {
		return f, err
	}
	if err := s.answers(ctx, load.Config{Frames: [][]byte{question}}); err != nil {
		return f, err
	}
	return one(
		contrast(ratio.Ratio{What: "p99 beside clients that read nothing / without them", Bound: ratio.AtMost,
			Limit: 1.2}, max(1, b.rounds/3),
			func(round uint64) (float64, error) { return s.unread(ctx, question, unread, round) },
			func(round uint64) (float64, error) { return s.unread(ctx, question, 0, round) }))
}

// unread returns the p99 of an open loop beside so many clients that read nothing: the median over
// its seconds, since other work of the machine comes in bursts. It fails unless by its end the
// server has closed all of those clients for not reading.
func (s *system) unread(ctx context.Context, question []byte, many int, seed uint64) (float64, error) {
	before, err := s.metric(ctx, closedUnread)
	if err != nil {
		return 0, err
	}
	for range many {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", s.TCP)
		if err != nil {
			return 0, err
		}
		defer c.Close()
		_ = c.(*net.TCPConn).SetReadBuffer(64 << 10) // otherwise the kernel buffers more
		if _, err := c.Write(bytes.Repeat(question, unreadEach)); err != nil {
			return 0, err
		}
	}
	var p99 []float64
	for i := range uint64(unreadTurns) {
		c := deep.open(besideLoad, seed*unreadTurns+i)
		c.Warmup, c.Duration = 0, time.Second
		if i == 0 {
			c.Warmup = unreadFill
		}
		got, err := s.offer(ctx, fmt.Sprintf("Unread/beside=%d", many), c)
		if err != nil {
			return 0, err
		}
		p99 = append(p99, float64(got.Latency.Quantile(0.99)))
	}
	after, err := s.metric(ctx, closedUnread)
	if n := int(after - before); err == nil && n != many {
		err = fmt.Errorf("%d clients were closed for reading nothing by the end of a turn, expected %d", n, many)
	}
	return ratio.Median(p99), err
}

const (
	logLost   = "shivad_log_lines_lost_total"
	logFaults = 20 * time.Millisecond
	// logConfig has a process whose output fills the pipe and the queue of the log within seconds.
	logConfig = `[[container]]
name = "talkative"
command = ["sh", "-c", "text=$(head -c 4000 /dev/zero | tr '\\0' x); while sleep 0.02; do echo $text; done"]
`
)

// besideLog measures the effect of a log that nobody reads on the p99 of requests, while peers
// cause lines at the Shiva door. It fails unless the server whose log it is has lost lines of it in
// all of its turns.
func besideLog(ctx context.Context, b *bench) (f findings, err error) {
	pipe := filepath.Join(b.bin, "unread.log")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		return f, err
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0) // so that it has a reader
	if err != nil {
		return f, err
	}
	defer reader.Close()
	var systems []*system
	for _, how := range []setup{{name: "read"}, {name: "stopped", under: []string{"sh", "-c", `exec "$@" 2>"$0"`, pipe}}} {
		how.config = logConfig
		s, err := b.start(ctx, how, deep)
		if err != nil {
			return f, err
		}
		defer s.Stop()
		systems = append(systems, s)
	}
	read, stopped := systems[0], systems[1]
	if err := stopped.losesLines(ctx, 0); err != nil {
		return f, err
	}
	r, err := contrast(ratio.Ratio{What: "p99 with a log that nobody reads / with one in a file", Bound: ratio.AtMost,
		Limit: 1.2}, besideRounds*b.rounds,
		stopped.failing(ctx, b.tail(ctx, stopped, "Log/system=stopped")), read.failing(ctx, b.tail(ctx, read, "Log/system=read")))
	if err != nil {
		return f, err
	}
	lost, err := stopped.metric(ctx, logLost)
	if err == nil {
		err = stopped.losesLines(ctx, lost)
	}
	return one(r, err)
}

// losesLines returns when the server has lost more lines than that.
func (s *system) losesLines(ctx context.Context, more float64) error {
	return s.Await(ctx, time.Minute, func() error {
		if lost, err := s.metric(ctx, logLost); err != nil || lost > more {
			return err
		}
		return errors.New("nobody reads the log, and no line of it is lost")
	})
}

// failing takes a figure while a peer connects again and again, and sends what is no message.
func (s *system) failing(ctx context.Context, f figure) figure {
	return func(round uint64) (float64, error) {
		ctx, cancel := context.WithCancel(ctx)
		faults := make(chan error, 1)
		go func() { faults <- fail(ctx, s.TCP) }() // joined below
		v, err := f(round)
		cancel()
		return v, errors.Join(err, <-faults)
	}
}

func fail(ctx context.Context, addr string) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(logFaults):
		}
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		_, _ = c.Write([]byte("no!"))
		c.Close()
	}
}
