package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/tensor"
)

// dialect gives addresses one.
func dialect(d containers.Dialect, addrs []string) (list []containers.Address) {
	for _, a := range addrs {
		list = append(list, containers.Address{Addr: a, Dialect: d})
	}
	return list
}

// sessions are the connected containers as the admin door shows them.
func (s *Server) sessions() []admin.Session {
	s.opening.RLock()
	defer s.opening.RUnlock()
	out := []admin.Session{}
	if s.containers == nil {
		return out
	}
	now := time.Now()
	sessions := append(s.containers.Sessions(), s.containers.Unserved()...)
	for _, d := range s.dialers {
		sessions = append(sessions, d.Session())
	}
	for _, i := range sessions {
		if s.retiring.keeps(i) {
			i.State = "retired"
			i.Reason = fmt.Sprintf("a newer version has replaced it; RPC %s has no word for goodbye, so it stays, idle, until you stop it", i.Generation)
		}
		out = append(out, admin.Session{
			Model:     i.Model.Name,
			Version:   i.Model.Version,
			Instance:  i.Label,
			Remote:    i.Remote,
			RPC:       i.Generation,
			State:     i.State,
			Connected: now.Sub(i.Since).Seconds(),
			Batches:   int64(i.Batches),
			Pending:   i.InFlight,
			Oldest:    i.Oldest.Seconds(),
			Slots:     i.Slots,
			AtOnce:    i.AtOnce,
			Silent:    now.Sub(i.LastSeen).Seconds(),
			Rows:      int64(i.Rows),
			Failures:  int64(i.Failures),

			LastFailure: i.LastFailure,
			Reason:      i.Reason,

			Feedback:        int64(i.Feedback),
			FeedbackDropped: int64(i.FeedbackDropped),
		})
	}
	return out
}

// inputs are the types of input as the configuration writes them.
var inputs = map[string]tensor.DType{"bytes": tensor.Uint8, "ints": tensor.Int32, "doubles": tensor.Float64, "strings": tensor.Bytes}

// supervise starts the processes of every [[container]], and calls those that have an address.
func (s *Server) supervise() error {
	for _, c := range s.cfg.Supervised {
		if c.Address != "" {
			one, err := containers.Dial(containers.DialConfig{
				Name:         c.Name,
				Addr:         c.Address,
				Model:        scheduler.ModelID{Name: c.Model, Version: c.Version},
				Input:        inputs[c.Input],
				Scheduler:    s.sched,
				Pool:         s.pool,
				WriteTimeout: s.cfg.Containers.WriteTimeout,
				Log:          s.log,
			})
			if err != nil {
				return err
			}
			s.dialers = append(s.dialers, one)
			continue
		}
		s.processes = append(s.processes, &process{server: s, settings: c})
	}
	for _, p := range s.processes {
		if err := p.start(); err != nil {
			return err
		}
	}
	return nil
}

// registered is told of every container that connected and serves.
func (s *Server) registered(conn net.Conn, i containers.SessionInfo) {
	s.history.arrived(conn, i)
	s.opening.RLock()
	defer s.opening.RUnlock()
	for _, p := range s.processes {
		p.registered(conn, i.Model)
	}
}

// connected counts the containers that are.
func (s *Server) connected() (n int) {
	for _, c := range s.sessions() {
		if c.State != containers.StateUnserved {
			n++
		}
	}
	return n
}

// dismissed is told of every container that is about to be told goodbye for good.
func (s *Server) dismissed(conn net.Conn) {
	s.opening.RLock()
	defer s.opening.RUnlock()
	for _, p := range s.processes {
		p.dismissed(conn)
	}
}

// silent ends the supervised process of a container that does not answer. Its session is ended anyway.
func (s *Server) silent(conn net.Conn, reason error) {
	s.opening.RLock()
	defer s.opening.RUnlock()
	for _, p := range s.processes {
		if p.kill(conn, reason) {
			return
		}
	}
}

// stopProcesses ends all supervised processes side by side.
func (s *Server) stopProcesses() error {
	s.reloading.Lock() // one that is under way starts some; the next sees that the server stops
	defer s.reloading.Unlock()
	faults := make([]error, len(s.processes))
	var all sync.WaitGroup
	for i, p := range s.processes {
		all.Go(func() { faults[i] = p.stop() })
	}
	all.Wait()
	return errors.Join(faults...)
}

// hangUp parts from the containers that were called.
func (s *Server) hangUp(ctx context.Context) error {
	faults := make([]error, len(s.dialers))
	var all sync.WaitGroup
	for i, one := range s.dialers {
		all.Go(func() { faults[i] = one.Shutdown(ctx) })
	}
	all.Wait()
	s.retiring.parting.Wait()
	return errors.Join(faults...)
}

// restarts counts those of the processes of each container.
func (s *Server) restarts() map[string]int {
	all := make(map[string]int)
	for _, p := range s.supervised() {
		all[p.Name] += p.Restarts
	}
	return all
}

// supervised are the processes as the admin door shows them.
func (s *Server) supervised() []admin.Process {
	s.opening.RLock()
	defer s.opening.RUnlock()
	out := []admin.Process{}
	now := time.Now()
	for _, one := range s.processes {
		for _, p := range one.status() {
			out = append(out, admin.Process{
				Name:     p.Name,
				Replica:  p.Replica,
				PID:      p.PID,
				State:    p.State,
				Since:    now.Sub(p.Since).Seconds(),
				Restarts: p.Restarts,
				LastExit: p.LastExit,
				Log:      p.LastLines,
			})
		}
	}
	return out
}
