// Command door is shivad with its models inside the process. It measures the cost of a request in
// a door, the gate and the scheduler, without a container. Each model echoes its input at once.
//
//	door [-listen ADDR] [-rest ADDR] [-grpc ADDR] [-admin ADDR] [-tls-cert FILE -tls-key FILE]
//	     [-max-batch N] NAME:DTYPE:SHAPE...
package main

import (
	"context"
	"flag"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/shivad/shivad/bench/internal/declare"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/tensor"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("door: ")
	listen := flag.String("listen", "127.0.0.1:6174", "`addresses` of the TCP door")
	rest := flag.String("rest", "", "`address` of the HTTP door; empty: closed")
	grpc := flag.String("grpc", "", "`address` of the gRPC door; empty: closed")
	admin := flag.String("admin", "127.0.0.1:8002", "`address` of the admin door")
	cert := flag.String("tls-cert", "", "`file` with the certificate for addresses that begin with tls://, in PEM")
	key := flag.String("tls-key", "", "`file` with the key of the certificate, in PEM")
	maxBatch := flag.Int("max-batch", 0, "maximum number of `rows` in a batch; 0: the server's default")
	flag.Parse()
	cfg := config.Default()
	cfg.TCP.Listen, cfg.REST.Listen, cfg.GRPC.Listen, cfg.Admin.Listen, cfg.Containers.Listen = addrs(*listen),
		addrs(*rest), addrs(*grpc), *admin, nil
	cfg.TLS.Cert, cfg.TLS.Key, cfg.Admin.Profiling = *cert, *key, true
	if err := run(cfg, *maxBatch, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// addrs parses a comma-separated list of addresses.
func addrs(list string) config.Addrs {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

func run(cfg config.Config, maxBatch int, models []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	runtime.GOMAXPROCS(2 * runtime.NumCPU()) // more than cores, as in shivad, for its loops
	s, err := server.New(cfg, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	worker := &echo{pool: tensor.NewPool(1 << 30)}
	for _, m := range models {
		name, x, err := declare.Model(m)
		if err != nil {
			return err
		}
		spec := scheduler.Spec{Inputs: []tensor.Spec{x}, Outputs: []tensor.Spec{x}, MaxBatch: maxBatch, Platform: "echo"}
		if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: name, Version: "1"}, spec, worker,
			scheduler.ReplicaOptions{Label: "in process"}); err != nil {
			return err
		}
	}
	if err := s.Start(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case err = <-s.Failed():
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if stopped := s.Shutdown(ctx); err == nil {
		err = stopped
	}
	return err
}

// echo answers a batch with its input before Send returns.
type echo struct {
	pool    *tensor.Pool
	scratch sync.Pool // of *scratch
}

type scratch struct{ parts []tensor.Tensor }

func (e *echo) Send(b *scheduler.Batch) error {
	if len(b.Parts) == 1 {
		x := b.Parts[0].Inputs[0]
		x.Retain()
		b.Complete([]tensor.Tensor{x}, nil)
		return nil
	}
	s, _ := e.scratch.Get().(*scratch)
	if s == nil {
		s = new(scratch)
	}
	for _, p := range b.Parts {
		s.parts = append(s.parts, p.Inputs[0])
	}
	x, err := tensor.Concat(s.parts, e.pool)
	clear(s.parts)
	s.parts = s.parts[:0]
	e.scratch.Put(s)
	if err != nil {
		b.Fail(err)
		return nil
	}
	b.Complete([]tensor.Tensor{x}, nil)
	return nil
}
