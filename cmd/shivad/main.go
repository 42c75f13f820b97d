// Command shivad is the inference server. See "shivad -h", and shivad.toml in this directory for
// every setting.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shivad/shivad/cmd/shivad/internal/logqueue"
	"github.com/shivad/shivad/server"
	"github.com/shivad/shivad/server/build"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/doctor"
)

// Exit codes, as documented in the help.
const (
	exitOK       = 0
	exitFailed   = 1
	exitBadUsage = 2
)

func main() {
	// Two, so that a second signal is not lost while the first is handled.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt, syscall.SIGHUP)
	// Otherwise the end of the log's reader would end the process, by its next line. Ignoring the
	// signal would be inherited by containers.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr, signals))
}

// run is main with its environment as arguments.
func run(args []string, stdout, stderr io.Writer, signals <-chan os.Signal) int {
	o, err := parseFlags(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintln(stderr, "shivad:", err)
		return exitBadUsage
	case o.version:
		fmt.Fprintln(stdout, build.Line("shivad"))
		return exitOK
	case o.doctor:
		return examine(o.file, stdout, signals)
	}
	cfg, lowered, err := o.load()
	if err != nil {
		fmt.Fprintln(stderr, "shivad:", err)
		fmt.Fprintln(stderr, "  -> shivactl manual settings")
		return exitBadUsage
	}
	if o.check {
		if lowered != "" {
			fmt.Fprintln(stderr, "shivad:", lowered)
		}
		if err := cfg.WriteTOML(stdout); err != nil {
			fmt.Fprintln(stderr, "shivad:", err)
			return exitFailed
		}
		return exitOK
	}
	queue := logqueue.New(stderr)
	defer queue.Close(lastLinesLimit)
	c := console{queue: queue, stdout: stdout, signals: signals}
	c.log, c.level = logger(cfg.Log, queue)
	if lowered != "" {
		c.log.Warn("less memory for payloads than configured", "why", lowered)
	}
	return c.serve(o, cfg)
}

// examine prints what keeps a server from serving with a file on this machine, until a signal.
func examine(file string, stdout io.Writer, signals <-chan os.Signal) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
		}
	}()
	found := doctor.Examine(ctx, file)
	if err := json.NewEncoder(stdout).Encode(found); err != nil || found.Wrong > 0 {
		return exitFailed
	}
	return exitOK
}

// lastLinesLimit bounds how long the end of the process waits for the reader of its log.
const lastLinesLimit = time.Second

// A console is what a process says, and what it is told.
type console struct {
	log     *slog.Logger // writes to queue
	level   *slog.LevelVar
	queue   *logqueue.Queue
	stdout  io.Writer
	signals <-chan os.Signal
}

// serve runs a server until a signal arrives or the server fails. SIGHUP makes it load the
// configuration again.
func (c console) serve(o options, cfg config.Config) int {
	log := c.log
	defer runtime.KeepAlive(tuneGC())
	defer server.FollowProcessors(cfg.TCP)()
	manager := fromEnvironment(log)
	s, err := server.New(cfg, log)
	var drain, after atomic.Int64
	adopt := func(cfg config.Config) {
		drain.Store(int64(cfg.Server.Drain))
		after.Store(int64(afterDrain(cfg)))
	}
	adopt(cfg)
	if err == nil {
		log = s.Log()
		s.CountLogLosses(c.queue.Lost)
		c.queue.Recovered(func(lines uint64) {
			log.Warn("log lines were lost, because the reader of the log, or its disk, did not take them", "lines", lines)
		})
		limitHeap(cfg.Limits, s, log)
		if o.file != "" || cfg.TLS.Cert != "" { // a reload also reads certificates that flags name
			load := func() (config.Config, error) {
				cfg, _, err := o.load()
				if err == nil && cfg.Blank() {
					err = fmt.Errorf("%s is empty, as while it is being written: if you want the defaults, and no [[container]], leave a comment in it", o.file)
				}
				return cfg, err
			}
			s.ReloadFrom(load, func(cfg config.Config) {
				adopt(cfg)
				_ = c.level.UnmarshalText([]byte(cfg.Log.Level)) // it has been validated
			})
		}
		log.Debug("configuration", "effective", asText{cfg.Redacted()})
		err = s.Start()
	}
	if err != nil {
		args := []any{"error", err}
		if remedy := doctor.Release(err); remedy != "" {
			args = append(args, "remedy", remedy)
		}
		log.Error("cannot start", args...)
		return exitFailed
	}
	log.Info("serving", append([]any{"version", server.Version, "pid", os.Getpid()}, addresses(s.Addrs())...)...)
	manager.say("READY=1", "serving")
	over := make(chan struct{})
	defer close(over)
	go manager.watch(s.Ready, over) // not joined: a server that is stuck must still end
	if o.models.files != nil || o.models.folders != nil {
		go o.models.tell(s, c.stdout, over) // not joined: a reader of the output may be stuck
	}

	code := exitOK
wait:
	for {
		select {
		case sig := <-c.signals:
			if sig == syscall.SIGHUP {
				go func() { // Shutdown waits for the reload
					manager.say("RELOADING=1", "reloading")
					reload(s, log)
					manager.say("READY=1", "serving")
				}()
				continue
			}
			log.Info("draining", "signal", sig.String(), "limit", time.Duration(drain.Load()), "again", "a second signal ends the process at once")
			break wait
		case err := <-s.Failed():
			log.Error("an endpoint failed, shutting down", "error", err)
			code = exitFailed
			break wait
		}
	}

	manager.stopping(time.Duration(drain.Load() + after.Load()))
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(drain.Load()))
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(ctx) }() // joined below, or the process ends
	for ended := false; !ended; {
		select {
		case err = <-stopped:
			ended = true
		case sig := <-c.signals:
			if sig == syscall.SIGHUP {
				continue // a shutdown needs no new settings
			}
			log.Warn("ended without draining", "signal", sig.String())
			return exitFailed
		}
	}
	if err != nil {
		log.Error("shut down with faults", "error", err)
		return exitFailed
	}
	log.Info("stopped")
	return code
}

// afterDrain is the time that a shutdown may take after the drain has used all of its time: for
// answers to leave, processes to stop and containers to be told, with a few seconds to spare.
func afterDrain(c config.Config) time.Duration {
	var processes time.Duration
	for _, p := range c.Supervised {
		processes = max(processes, p.StopTimeout)
	}
	for _, m := range c.ModelFiles {
		processes = max(processes, m.StopTimeout)
	}
	for _, m := range c.ModelFolders {
		processes = max(processes, m.StopTimeout)
	}
	return processes + 15*time.Second
}

// reload makes the server load its configuration again. An invalid configuration changes nothing;
// its faults are in the log.
func reload(s *server.Server, log *slog.Logger) {
	done, err := s.Reload()
	switch {
	case err != nil && done.Changed != nil:
		log.Error("not all of the configuration is in effect", "error", err)
	case err != nil:
		log.Error("the configuration was not reloaded", "error", err)
	}
}

// addresses returns the addresses of the open doors as arguments of a log line.
func addresses(a server.Addrs) []any {
	var args []any
	add := func(name string, addrs ...net.Addr) {
		var texts []string
		for _, addr := range addrs {
			texts = append(texts, addr.String())
		}
		if texts != nil {
			args = append(args, name, strings.Join(texts, ","))
		}
	}
	for name, addrs := range a.Doors() {
		add(name, *addrs...)
	}
	add("containers", a.Containers...)
	add("containers_v1b", a.ContainersV1b...)
	add("containers_v2", a.ContainersV2...)
	add("containers_v2a", a.ContainersV2a...)
	if a.Admin != nil {
		add("admin", a.Admin)
	}
	if a.Health != nil {
		add("health", a.Health)
	}
	return args
}

// logger returns a log as in the configuration, which has been validated. Its level may be changed.
func logger(c config.Log, w io.Writer) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		panic(err)
	}
	options := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options)), level
	}
	return slog.New(slog.NewTextHandler(w, options)), level
}

// asText makes a text log show a configuration as a JSON log does; the conversion happens only for
// such a log.
type asText struct{ config.Config }

func (a asText) MarshalText() ([]byte, error) { return a.MarshalJSON() }
