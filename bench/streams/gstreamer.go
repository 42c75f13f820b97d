package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/load"
)

// gstreamer measures the usual solution on a client: for each camera a queue of one frame before
// the model (leaky=downstream drops the older frame), and one model that all cameras share. The
// frames arrive over TCP, with their camera and number in their first bytes, and leave on the
// standard output.
func gstreamer(ctx context.Context, cameras int, length time.Duration) (_ *film, err error) {
	args := []string{"-q", "funnel", "name=model", "!", "identity", fmt.Sprintf("sleep-time=%d", slowTime.Microseconds()), "!", "fdsink", "fd=1", "sync=false"}
	addrs := make([]string, cameras)
	for i := range addrs {
		if addrs[i], err = process.FreeAddr(); err != nil {
			return nil, err
		}
		host, port, _ := net.SplitHostPort(addrs[i])
		args = append(args, strings.Fields(fmt.Sprintf(
			"tcpserversrc host=%s port=%s ! rawvideoparse width=%d height=%d format=rgb framerate=%d/1 ! queue leaky=downstream max-size-buffers=1 max-size-bytes=0 max-size-time=0 ! model.",
			host, port, width, height, fps))...)
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	cmd := exec.CommandContext(ctx, "gst-launch-1.0", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() { end(); _ = cmd.Wait() }() // killed
	conns := make([]net.Conn, cameras)
	for i, addr := range addrs {
		if conns[i], err = dial(ctx, addr); err != nil {
			return nil, err
		}
		defer conns[i].Close()
	}
	f := &film{cameras: cameras, length: length}
	began := time.Now()
	var sent error
	var sending sync.WaitGroup
	sending.Go(func() {
		sent = roll(ctx, began, cameras, length, func(camera int, seq int64, _ time.Duration) error {
			frame := make([]byte, frameBytes)
			binary.BigEndian.PutUint64(frame, uint64(camera))
			binary.BigEndian.PutUint64(frame[8:], uint64(seq))
			_, err := conns[camera].Write(frame)
			return err
		})
		time.AfterFunc(peerGrace, end)
	})
	frame := make([]byte, frameBytes)
	for {
		if _, err = io.ReadFull(out, frame); err != nil {
			break
		}
		s := load.Shown{Stream: int(binary.BigEndian.Uint64(frame)), Seq: int64(binary.BigEndian.Uint64(frame[8:])), At: time.Since(began)}
		s.Due = dueOf(s.Stream, s.Seq, cameras)
		s.Age = s.At - s.Due
		f.shown = append(f.shown, s)
	}
	sending.Wait()
	if sent != nil || len(f.shown) == 0 {
		return nil, fmt.Errorf("streams: gst-launch-1.0: %d frames, %w", len(f.shown), errors.Join(sent, err))
	}
	return f, nil
}

// dial waits until a server listens.
func dial(ctx context.Context, addr string) (net.Conn, error) {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return c, err
		}
	}
}
