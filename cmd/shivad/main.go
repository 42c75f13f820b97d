// Command shivad is the inference server. See "shivad -h", and shivad.toml beside this file for every
// setting.
package main

import (
	"context"
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
	"syscall"

	"github.com/shivad/shivad/server"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/memory"
)

// Exit codes, as the help promises them.
const (
	exitOK       = 0
	exitFailed   = 1
	exitBadUsage = 2
)

func main() {
	// Two, so that a second signal is not lost while the first one is being looked at.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr, signals))
}

// run is main with its surroundings as arguments.
func run(args []string, stdout, stderr io.Writer, signals <-chan os.Signal) int {
	o, err := parseFlags(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintln(stderr, "shivad:", err)
		return exitBadUsage
	case o.version:
		fmt.Fprintf(stdout, "shivad %s (%s %s/%s)\n", server.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return exitOK
	}
	cfg, lowered, err := o.load(memory.OfProcess())
	if err != nil {
		fmt.Fprintln(stderr, "shivad:", err)
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
	log := logger(cfg.Log, stderr)
	if lowered != "" {
		log.Warn("less memory for payloads than configured", "why", lowered)
	}
	return serve(cfg, log, signals)
}

// serve runs a server until a signal or its failure.
func serve(cfg config.Config, log *slog.Logger, signals <-chan os.Signal) int {
	defer runtime.KeepAlive(tuneGC(cfg.Limits, log))
	s, err := server.New(cfg, log)
	if err == nil {
		log.Debug("configuration", "effective", asText{cfg.Redacted()})
		err = s.Start()
	}
	if err != nil {
		log.Error("cannot start", "error", err)
		return exitFailed
	}
	log.Info("serving", append([]any{"version", server.Version, "pid", os.Getpid()}, addresses(s.Addrs())...)...)

	code := exitOK
	select {
	case sig := <-signals:
		log.Info("draining", "signal", sig.String(), "limit", cfg.Server.Drain, "again", "a second signal ends the process at once")
	case err := <-s.Failed():
		log.Error("a door failed, shutting down", "error", err)
		code = exitFailed
	}

	ctx, cancel := context.WithTimeout(context.Background(), cfg.Server.Drain)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(ctx) }() // joined below, or the process ends
	select {
	case err = <-stopped:
	case sig := <-signals:
		log.Warn("ended without draining", "signal", sig.String())
		return exitFailed
	}
	if err != nil {
		log.Error("shut down with faults", "error", err)
		return exitFailed
	}
	log.Info("stopped")
	return code
}

// addresses are the doors' addresses as arguments of a log line; a door left out is not mentioned.
func addresses(a server.Addrs) []any {
	var args []any
	add := func(name string, addrs ...net.Addr) {
		var texts []string
		for _, addr := range addrs {
			if addr != nil {
				texts = append(texts, addr.String())
			}
		}
		if texts != nil {
			args = append(args, name, strings.Join(texts, ","))
		}
	}
	add("tcp", a.TCP)
	add("rest", a.REST)
	add("grpc", a.GRPC)
	add("containers", a.Containers...)
	add("containers_v1b", a.ContainersV1b...)
	add("containers_v2", a.ContainersV2...)
	add("containers_v2a", a.ContainersV2a...)
	add("admin", a.Admin)
	return args
}

// logger writes as the configuration says, which has been validated.
func logger(c config.Log, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		panic(err)
	}
	options := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// asText lets a text log show a configuration as it shows in a JSON log; only a log that wants it pays.
type asText struct{ config.Config }

func (a asText) MarshalText() ([]byte, error) { return a.MarshalJSON() }
