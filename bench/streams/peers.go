package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os/exec"
	"sync"
	"time"

	"github.com/shivad/shivad/bench/load"
)

const (
	peerTime  = 12 * time.Second // for which the cameras send to each peer
	peerGrace = 2 * time.Second  // for answers after that
)

// A serving is one way to serve the four cameras.
type serving struct {
	name string
	film *film
}

// servings returns the servings of this run and of the installed peers, over the same time. All
// ages are measured by the client: a peer does not know when a frame was due.
func (m *measurement) servings(ctx context.Context) ([]serving, error) {
	all := []serving{{"shivad, keep = latest", m.latest}, {fmt.Sprintf("shivad, keep = all (%v)", m.patience), m.all}}
	if _, err := exec.LookPath("gst-launch-1.0"); err != nil {
		log.Print("GStreamer is not here: install gstreamer1.0-tools and gstreamer1.0-plugins-base")
	} else {
		f, err := gstreamer(ctx, cameras, peerTime)
		if err != nil {
			return nil, err
		}
		all = append(all, serving{"GStreamer, leaky queues of 1", f})
	}
	if m.triton == "" {
		log.Print("Triton is not here: install nvidia-pytriton, and name the site-packages that it is in with -triton")
	} else {
		for _, queue := range []int{0, cameras} {
			f, err := triton(ctx, m.triton, m.tritonPython, queue, cameras, peerTime)
			if err != nil {
				return nil, err
			}
			name := "Triton"
			if queue > 0 {
				name = fmt.Sprintf("Triton, max_queue_size = %d", queue)
			}
			all = append(all, serving{name, f})
		}
	}
	for i, s := range all {
		all[i].film = s.film.toClient()
	}
	return all, nil
}

// toClient returns the film with ages as seen by the client.
func (f *film) toClient() *film {
	to := *f
	to.shown = make([]load.Shown, len(f.shown))
	for i, s := range f.shown {
		s.Age = s.At - s.Due
		to.shown[i] = s
	}
	return &to
}

var servingHead = []string{"four cameras on 100 ms a frame", "answers/s", "age p50", "age p99", "fewest of a camera", "most"}

func (s serving) cells() []string {
	some := s.film.executed(0, peerTime)
	least, most := shares(some, cameras)
	length := min(s.film.length, peerTime)
	return []string{s.name, fmt.Sprintf("%.1f", float64(len(some))/length.Seconds()), fmt.Sprintf("%.0f ms", ms(age(some, 0.5))),
		fmt.Sprintf("%.0f ms", ms(age(some, 0.99))), fmt.Sprintf("%.0f %%", 100*least), fmt.Sprintf("%.0f %%", 100*most)}
}

// dueOf returns the time at which a camera takes a frame, since the beginning: frames are evenly
// spaced, and the cameras take turns.
func dueOf(camera int, seq int64, cameras int) time.Duration {
	return time.Duration(seq)*time.Second/fps + time.Duration(camera)*time.Second/time.Duration(fps*cameras)
}

// roll calls send for each frame when it is due, on one goroutine for each camera, and returns when
// all calls have returned.
func roll(ctx context.Context, began time.Time, cameras int, length time.Duration, send func(camera int, seq int64, due time.Duration) error) error {
	errs := make([]error, cameras)
	var all sync.WaitGroup
	for c := range cameras {
		all.Go(func() {
			for seq := range int64(length.Seconds() * fps) {
				due := dueOf(c, seq, cameras)
				select {
				case <-ctx.Done():
					errs[c] = ctx.Err()
					return
				case <-time.After(time.Until(began.Add(due))):
				}
				if errs[c] = send(c, seq, due); errs[c] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
