package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
)

const (
	readLog    = "log"         // a system whose log goes into a file
	stoppedLog = "stopped log" // one whose log goes into a pipe that nobody reads
	logRounds  = 4             // for each round of other parts, like hostileRounds
	logFaults  = 20 * time.Millisecond
	logLost    = "shivad_log_lines_lost_total"

	// logConfig has a process whose output fills the pipe and the queue of the log within seconds.
	logConfig = `[[container]]
name = "talkative"
command = ["sh", "-c", "text=$(head -c 4000 /dev/zero | tr '\\0' x); while sleep 0.02; do echo $text; done"]
`
)

// besideLog measures the effect of a log that nobody reads on the p99 of requests, while peers
// cause lines at the Shiva door. It fails unless the server whose log it is has lost lines of it in
// all of its turns.
func besideLog(ctx context.Context, o options, bin string) (r ratio.Ratio, err error) {
	r = ratio.Ratio{What: "p99 with a log that nobody reads / with one in a file", Bound: ratio.AtMost, Limit: 1.2}
	if err := process.Build(ctx, bin, "cmd/shivad", "bench/noop"); err != nil {
		return r, err
	}
	pipe := filepath.Join(bin, stoppedLog)
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		return r, err
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0) // so that it has a reader
	if err != nil {
		return r, err
	}
	defer reader.Close()
	var systems [2]*system
	for i, name := range []string{readLog, stoppedLog} {
		if systems[i], err = startSystem(ctx, o, name, bin, workloads[deep:deep+1]); err != nil {
			return r, err
		}
		defer systems[i].Stop()
	}
	if err := systems[1].losesLines(ctx, 0); err != nil {
		return r, err
	}
	r.Rounds, err = contrast(logRounds*o.rounds,
		func(round uint64) (float64, error) { return logTurn(ctx, o, systems[1], round) },
		func(round uint64) (float64, error) { return logTurn(ctx, o, systems[0], round) })
	if err != nil {
		return r, err
	}
	lost, err := systems[1].metrics(ctx, logLost)
	if err != nil {
		return r, err
	}
	return r, systems[1].losesLines(ctx, lost[0])
}

// losesLines returns when the server has lost more lines than that.
func (s *system) losesLines(ctx context.Context, more float64) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		lost, err := s.metrics(ctx, logLost)
		if err := errors.Join(err, s.Alive()); err != nil || lost[0] > more {
			return err
		}
	}
	return errors.New("run: log: nobody reads the log, and no line of it is lost")
}

// logTurn returns the p99 of an open loop beside peers whose faults are lines of the log.
func logTurn(ctx context.Context, o options, s *system, seed uint64) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	faults := make(chan error, 1)
	go func() { faults <- fail(ctx, s.addr) }() // joined below
	got, err := s.offer(ctx, "Log/"+s.name, openLoop(o, hostileLoad, seed))
	cancel()
	if err := errors.Join(err, <-faults); err != nil {
		return 0, err
	}
	return float64(p99Of(got)), nil
}

// fail connects again and again, and sends what is no message, until ctx ends.
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
