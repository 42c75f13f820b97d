package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva/tensor"
)

const fps = 30 // of a camera

// A film records the answers to the cameras' frames, in order.
type film struct {
	cameras int
	length  time.Duration
	shown   []load.FrameAnswer
	result  *load.Result
}

// A shoot describes the frames that cameras send.
type shoot struct {
	model   string
	name    string // of the streams
	keep    string
	timeout time.Duration // of a frame; 0: as the model is configured
	cameras int
	length  time.Duration
}

// film sends the cameras' frames, evenly and in turn, and takes the answers.
func (r *rig) film(ctx context.Context, s shoot) (*film, error) {
	frame, stamp, err := frameFor(s)
	if err != nil {
		return nil, err
	}
	f := &film{cameras: s.cameras, length: s.length}
	f.result, err = load.Run(ctx, load.Config{
		Addr: r.TCP, Frames: [][]byte{frame}, Conns: s.cameras, Rate: float64(s.cameras * fps), Even: true,
		Duration: s.length, Grace: 20 * time.Second,
		Streams: &load.Streams{Stamps: []load.Stamp{stamp},
			Each: func(s load.FrameAnswer) { f.shown = append(f.shown, s) }},
	})
	if err = errors.Join(err, r.Alive()); err != nil {
		return nil, fmt.Errorf("streams: cameras %s: %w", s.name, err)
	}
	return f, nil
}

// frameFor is a frame of a shoot.
func frameFor(s shoot) ([]byte, load.Stamp, error) {
	x, err := tensor.New(tensor.Uint8, tensor.Shape{1, height, width, colours}, make([]byte, frameBytes))
	if err != nil {
		return nil, load.Stamp{}, err
	}
	q := load.Request{Model: s.model, Inputs: []tensor.Tensor{x}, Timeout: s.timeout, Stream: s.name + "-",
		Keep: s.keep}
	return q.Encode(load.Shiva)
}

// unanswered counts the frames that were due and have no answer. Package load treats a second
// answer, and an answer to another frame, as an error.
func (f *film) unanswered() int64 {
	due := int64(f.cameras) * int64(f.length.Seconds()*fps)
	return f.result.Lost + max(0, due-int64(f.cameras)-int64(len(f.shown)))
}

// faults counts the answers with a fault other than but.
func (f *film) faults(but string) (n int) {
	for _, s := range f.shown {
		if s.Fault != "" && s.Fault != but {
			n++
		}
	}
	return n
}

// first is the time from when the first frame was due until the first answer with outputs.
func (f *film) first() time.Duration {
	if some := f.executed(0, forever); len(some) > 0 {
		return some[0].At - f.shown[0].Due
	}
	return forever
}

const forever = time.Duration(math.MaxInt64)

// executed returns the answers with outputs that arrived in a part of the film.
func (f *film) executed(from, to time.Duration) (some []load.FrameAnswer) {
	for _, s := range f.shown {
		if s.Fault == "" && from <= s.At && s.At < to {
			some = append(some, s)
		}
	}
	return some
}

// age is a quantile of the ages of frames at the departure of their answers.
func age(some []load.FrameAnswer, q float64) time.Duration {
	if len(some) == 0 {
		return 0
	}
	ages := make([]time.Duration, len(some))
	for i, s := range some {
		ages[i] = s.Age
	}
	slices.Sort(ages)
	return ages[min(int(q*float64(len(ages))), len(ages)-1)]
}

// shares returns the smallest and the largest of the cameras' shares of the answers.
func shares(some []load.FrameAnswer, cameras int) (least, most float64) {
	counts := make([]int, cameras)
	for _, s := range some {
		counts[s.Stream]++
	}
	all := float64(max(1, len(some)))
	return float64(slices.Min(counts)) / all, float64(slices.Max(counts)) / all
}

// disorder counts the answers whose frame is not newer than the previously executed frame of its
// stream, and those whose number of skipped frames does not match the gap between the two.
func (f *film) disorder() (backward, miscounted int) {
	last := make([]int64, f.cameras)
	for i := range last {
		last[i] = -1
	}
	for _, s := range f.executed(0, forever) {
		if s.Seq <= last[s.Stream] {
			backward++
		}
		if s.Seq-last[s.Stream]-1 != int64(s.Skipped) {
			miscounted++
		}
		last[s.Stream] = s.Seq
	}
	return backward, miscounted
}

// A look is a sample of the server's memory for frames, in frames.
type look struct {
	at      time.Duration
	waiting float64
	all     float64 // including frames that arrive, execute or are being answered
}

// watched samples the memory for frames of a model while f runs.
func (r *rig) watched(ctx context.Context, model string, f func() error) (looks []look, err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	var watching sync.WaitGroup
	var blind error
	began := time.Now()
	watching.Go(func() {
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			now, err := r.Metrics(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				blind = err
				return
			}
			looks = append(looks,
				look{time.Since(began), now.By("shivad_queue_bytes", "model")[model] / frameBytes,
					now["shivad_payload_bytes"] / frameBytes})
		}
	})
	err = f()
	end()
	watching.Wait()
	return looks, errors.Join(err, blind)
}

// most returns the largest of the looks in a part of the film.
func most(looks []look, from, to time.Duration) (l look) {
	for _, k := range looks {
		if from <= k.at && k.at < to {
			l = look{k.at, max(l.waiting, k.waiting), max(l.all, k.all)}
		}
	}
	return l
}
