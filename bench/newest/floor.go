package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
)

// A floor is what no server in Go on this machine can be below: the same bytes through a bare gnet
// server (bench/echo), which reads no meaning into them and has its answer ready when the model
// would have. What is left is a write to each poller, a read of its next question, a wake-up of the
// event loop for each frame and one for its answers, and what kernel and runtime take for them.
type floor struct {
	process.Group
	camera          net.Conn
	pollers         []net.Conn
	frame, question []byte
	size            int // of an answer
}

// startFloor starts the bare server, with answers of that many bytes, and connects to it.
func startFloor(ctx context.Context, dir string, frame, question []byte, size int) (*floor, error) {
	f := &floor{frame: frame, question: question, size: size}
	s, err := process.NewServer(dir)
	if err == nil {
		err = s.Run(nil, "echo", "-listen", s.TCP, "-crowd", fmt.Sprint(size), "-after", execution.String())
		f.Group = s.Group
	}
	if err != nil {
		return f, err
	}
	return f, f.Await(ctx, 20*time.Second, func() (err error) {
		for f.camera == nil || len(f.pollers) < crowd {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", s.TCP)
			if err != nil {
				return err
			}
			if f.camera == nil {
				f.camera = c
			} else {
				f.pollers = append(f.pollers, c)
			}
		}
		return nil
	})
}

// turn sends frames until each of those who ask has an answer to as many, and returns the server's
// processor time.
func (f *floor) turn(asking []net.Conn) (time.Duration, error) {
	done := make(chan error, crowd)
	for _, c := range asking {
		if _, err := c.Write(f.question); err != nil {
			return 0, err
		}
		go func() { done <- f.follow(c) }()
	}
	time.Sleep(50 * time.Millisecond) // until all of them wait
	before, err := f.Group[0].CPU()
	if err != nil {
		return 0, err
	}
	answer, begun, ended := make([]byte, f.size), time.Now(), 0
	for sent := 0; sent < frames || ended < len(asking); sent++ {
		time.Sleep(time.Until(begun.Add(time.Duration(sent) * time.Second / fps)))
		if err := exchange(f.camera, f.frame, answer); err != nil {
			return 0, err
		}
		for len(done) > 0 {
			if err := <-done; err != nil {
				return 0, err
			}
			ended++
		}
	}
	time.Sleep(20 * time.Millisecond) // as the other turns
	after, err := f.Group[0].CPU()
	return after - before, err
}

// follow takes as many answers as there are frames, and asks for the next after each but the last.
func (f *floor) follow(c net.Conn) error {
	answer := make([]byte, f.size)
	for range frames - 1 {
		if _, err := io.ReadFull(c, answer); err != nil {
			return err
		}
		if _, err := c.Write(f.question); err != nil {
			return err
		}
	}
	_, err := io.ReadFull(c, answer)
	return err
}

// exchange sends a message and waits for its answer.
func exchange(c net.Conn, m, answer []byte) error {
	_, err := c.Write(m)
	if err == nil {
		_, err = io.ReadFull(c, answer)
	}
	return err
}
