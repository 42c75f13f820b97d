package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva"
)

// costs are processor times of the server, per frame, in µs.
type costs struct {
	reading    []float64 // by turn: of a frame that is read and refused
	superseded []float64 // by turn: beyond that, of a frame that is read and superseded
}

// cost measures the server's cost of a superseded frame in addition to reading it. While the first
// frame of a stream executes without end, each further frame supersedes the one before. The control
// is the same bytes for a missing model: a Shiva server learns the name from the end of the
// message, so it has read everything before it refuses. Turns of both alternate.
func (r *rig) cost(ctx context.Context, turns int, length time.Duration) (c costs, err error) {
	busy, err := r.occupy(ctx)
	if err != nil {
		return c, err
	}
	defer busy.Close()
	for range turns {
		reading, err := r.turn(ctx, nobody, shiva.NotFound, length)
		if err != nil {
			return c, err
		}
		superseded, err := r.turn(ctx, endless, shiva.Superseded, length)
		if err != nil {
			return c, err
		}
		c.reading = append(c.reading, reading)
		c.superseded = append(c.superseded, superseded-reading)
	}
	return c, nil
}

// occupy sends the frame that does not end, on a connection of its own: later answers on it would
// wait.
func (r *rig) occupy(ctx context.Context) (net.Conn, error) {
	frame, _, err := frameFor(shoot{model: endless, name: "cost", keep: "latest"})
	if err != nil {
		return nil, err
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp", r.TCP)
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(frame); err != nil {
		c.Close()
		return nil, err
	}
	err = r.Await(ctx, 10*time.Second, func() error {
		m, err := r.Metrics(ctx)
		if err != nil {
			return err
		}
		if m.By("shivad_oldest_batch_seconds", "model")[endless] == 0 ||
			m.By("shivad_queue_rows", "model")[endless] > 0 {
			return fmt.Errorf("streams: %s does not execute", endless)
		}
		return nil
	})
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// turn returns the server's processor time per frame, in µs, if every frame is answered with a
// fault.
func (r *rig) turn(ctx context.Context, model, fault string, length time.Duration) (float64, error) {
	frame, stamp, err := frameFor(shoot{model: model, name: "cost", keep: "latest"})
	if err != nil {
		return 0, err
	}
	before, err := r.Group[0].CPU()
	if err != nil {
		return 0, err
	}
	var others int
	each := func(s load.FrameAnswer) {
		if s.Fault != fault {
			others++
		}
	}
	got, err := load.Run(ctx,
		load.Config{Addr: r.TCP, Frames: [][]byte{frame}, InFlight: 4, Duration: length, Grace: time.Millisecond,
			Streams: &load.Streams{Stamps: []load.Stamp{stamp}, Each: each}})
	if err = errors.Join(err, r.Alive()); err != nil {
		return 0, err
	}
	after, err := r.Group[0].CPU()
	if err == nil && (others > 0 || got.Taken == 0) {
		err = fmt.Errorf("streams: of %d frames %d were not answered %s: %s", got.Taken, others, fault, got.Failure)
	}
	return float64(after-before) / float64(time.Microsecond) / float64(max(1, got.Taken)), err
}
