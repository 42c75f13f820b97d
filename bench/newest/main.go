// Command newest measures what those who ask for the newest answer of a stream cost the server and
// the camera. A camera sends 30 frames a second to a model that sleeps 15 ms; its newest answer, a
// table of 20 rows, is asked for by clients over the Shiva door, each again after each answer.
//
//	newest [-turns 20] [-short] [-markdown]
//
// Turns with the camera alone, with one poller, with a hundred, with a hundred clients that ask for
// the same answer once it is there, without waiting, and with the same bytes through a bare gnet
// server alternate. It exits with 1 if a promise is broken; promises has them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/internal/table"
)

const (
	fps    = 30
	frames = 30 // of a turn
	crowd  = 100

	execution = 15 * time.Millisecond // of a frame
)

func main() {
	turns := flag.Int("turns", 20, "`number` of turns of each kind, of a second each")
	short := flag.Bool("short", false, "three turns of each kind: for a quick check, not for figures")
	markdown := flag.Bool("markdown", false, "write the table in Markdown")
	flag.Parse()
	if *short {
		*turns = 3
	}
	process.Main("newest", func(ctx context.Context) ([]string, error) { return run(ctx, *turns, *markdown) })
}

// run measures and reports, and returns the promises that do not hold.
func run(ctx context.Context, turns int, markdown bool) (broken []string, err error) {
	dir, err := os.MkdirTemp("", "newest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := process.Build(ctx, dir, "cmd/shivad", "bench/sleeper", "bench/echo"); err != nil {
		return nil, err
	}
	s, err := process.Shivad(dir, process.Options{Config: "[model.cells]\nlatest = true\n"})
	defer s.Stop()
	if err == nil {
		speed := []string{"-noise", "0", "-a", execution.String(), "-b", "0s", "-max-batch", "1"}
		err = s.Run(nil, "sleeper", append(speed, "-servers", s.Containers, "cells:FP32:20,26")...)
	}
	if err != nil {
		return nil, err
	}
	m := measurement{server: s}
	err = m.connect(ctx)
	if err == nil {
		m.floor, err = startFloor(ctx, dir, m.camera.sent, m.pollers[0].sent, m.pollers[0].got)
		defer m.floor.Stop()
	}
	if err == nil {
		err = m.measure(ctx, turns)
	}
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, s.Output())
	}
	var rows [][]string
	for _, r := range m.promises() {
		rows = append(rows, r.Cells())
		if !r.Holds() {
			broken = append(broken, r.What)
		}
	}
	table.Write(os.Stdout, markdown, ratio.Head, rows)
	return broken, nil
}

// A measurement has the figures of all turns.
type measurement struct {
	server  *process.Server
	camera  *camera
	pollers []*poller
	floor   *floor

	alone, one, all, plain []turn
	bare                   []float64 // µs of the bare server for each answer and poller
}

// A turn is a second of the camera.
type turn struct {
	latencies []time.Duration // of the camera's frames
	wakes     []time.Duration // from the camera's answer to a poller's
	processor time.Duration   // of the server
	backward  int             // answers to pollers that were not newer than the one before
}

// connect connects the camera and those who ask. It and one of them have had an answer then.
func (m *measurement) connect(ctx context.Context) error {
	err := m.server.Await(ctx, 20*time.Second, func() (err error) {
		if m.camera, err = dialCamera(ctx, m.server.TCP); err == nil {
			err = m.camera.frame()
		}
		return err
	})
	if err != nil {
		return err
	}
	for range crowd {
		p, err := dialPoller(ctx, m.server.TCP)
		if err != nil {
			return err
		}
		m.pollers = append(m.pollers, p)
	}
	if err := m.pollers[0].ask(m.camera.seq - 1); err != nil {
		return err
	}
	_, _, err = m.pollers[0].receive()
	return err
}

func (m *measurement) measure(ctx context.Context, turns int) error {
	for range turns {
		for _, kind := range []struct {
			turns   *[]turn
			pollers int
			plain   bool
		}{{&m.alone, 0, false}, {&m.all, crowd, false}, {&m.plain, crowd, true}, {&m.one, 1, false}} {
			t, err := m.turn(m.pollers[:kind.pollers], kind.plain)
			if err != nil {
				return err
			}
			*kind.turns = append(*kind.turns, t)
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		alone, err := m.floor.turn(nil)
		if err != nil {
			return err
		}
		all, err := m.floor.turn(m.floor.pollers)
		if err != nil {
			return err
		}
		m.bare = append(m.bare, us(all-alone)/(frames*crowd))
	}
	return nil
}

// turn takes frames of the camera while some ask for its newest answer: in advance, or plainly,
// each time that it is there.
func (m *measurement) turn(asking []*poller, plain bool) (t turn, err error) {
	last := m.camera.seq + frames
	done := make(chan error, crowd)
	for _, p := range asking {
		p.arrived = p.arrived[:0]
		if plain {
			p.shown = make(chan struct{}, frames)
			go func() { done <- p.look() }()
			continue
		}
		if err := p.ask(m.camera.seq); err != nil {
			return t, err
		}
		go func() { done <- p.follow(last) }()
	}
	time.Sleep(50 * time.Millisecond) // until all of them wait
	before, err := m.server.Group[0].CPU()
	if err != nil {
		return t, err
	}
	first, begun := m.camera.seq+1, time.Now()
	shown := make([]time.Time, frames)
	for i := range shown {
		time.Sleep(time.Until(begun.Add(time.Duration(i) * time.Second / fps)))
		sent := time.Now()
		if err := m.camera.frame(); err != nil {
			return t, err
		}
		shown[i] = time.Now()
		t.latencies = append(t.latencies, shown[i].Sub(sent))
		for _, p := range asking {
			if plain {
				p.shown <- struct{}{}
			}
		}
	}
	for _, p := range asking {
		if plain {
			close(p.shown)
		}
	}
	for range asking {
		if err := <-done; err != nil {
			return t, err
		}
	}
	for _, p := range asking {
		t.backward += p.backward
		for _, a := range p.arrived {
			t.wakes = append(t.wakes, a.at.Sub(shown[a.seq-first]))
		}
	}
	time.Sleep(20 * time.Millisecond) // what the server does after the last answer counts, too
	after, err := m.server.Group[0].CPU()
	t.processor = after - before
	return t, err
}

// promises are the figures and their limits.
func (m *measurement) promises() []ratio.Ratio {
	var cost, above, dear, single, further, usual, wake, wakeOne, missed []float64
	var disturbed, quiet []time.Duration // latencies of the camera, of all turns
	backward := 0
	for i := range m.all {
		alone, all := m.alone[i], m.all[i]
		disturbed, quiet = append(disturbed, all.latencies...), append(quiet, alone.latencies...)
		usual = append(usual, float64(quantile(all.latencies, 0.5))/float64(quantile(alone.latencies, 0.5)))
		each := func(t turn) float64 { return us(t.processor-alone.processor) / float64(len(t.wakes)) }
		cost = append(cost, each(all))
		above = append(above, each(all)/m.bare[i])
		dear = append(dear, each(all)/each(m.plain[i]))
		single = append(single, each(m.one[i]))
		further = append(further, us(all.processor-m.one[i].processor)/(frames*(crowd-1)))
		wake = append(wake, us(quantile(all.wakes, 0.5)))
		wakeOne = append(wakeOne, us(quantile(m.one[i].wakes, 0.5)))
		missed = append(missed, float64(frames*crowd-len(all.wakes)+frames-len(m.one[i].wakes)))
		backward += all.backward + m.one[i].backward
	}
	late := float64(quantile(disturbed, 0.99)) / float64(quantile(quiet, 0.99))
	atMost := func(limit float64, what string, rounds ...float64) ratio.Ratio {
		return ratio.Ratio{What: what, Rounds: rounds, Bound: ratio.AtMost, Limit: limit}
	}
	return []ratio.Ratio{
		{What: "100 pollers: server's processor time for each answer and poller, µs", Rounds: cost},
		{What: "100 pollers: the same of a bare gnet server that moves the same bytes, µs", Rounds: m.bare},
		{What: "100 pollers: the first to the second", Rounds: above},
		atMost(1.25, "100 pollers: the same, to that of asking without waiting", dear...),
		{What: "1 poller: server's processor time for each answer, µs", Rounds: single},
		{What: "100 pollers: the same for each more than one, µs", Rounds: further},
		atMost(1.05, "100 pollers: p99 of the camera's answers, to that without pollers", late),
		{What: "100 pollers: the same for the median", Rounds: usual},
		atMost(300, "1 poller: median time from the camera's answer to the poller's, µs", wakeOne...),
		{What: "100 pollers: the same, of the one in the middle", Rounds: wake},
		atMost(0, "answers that a poller got after a newer one", float64(backward)),
		{What: "answers that a newer one replaced, in a second of both", Rounds: missed},
	}
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func quantile(list []time.Duration, q float64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	list = slices.Sorted(slices.Values(list))
	return list[min(int(q*float64(len(list))), len(list)-1)]
}
