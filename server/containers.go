package server

import (
	"errors"
	"sync"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/server/admin"
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
	out := []admin.Session{}
	if s.containers == nil {
		return out
	}
	now := time.Now()
	for _, i := range s.containers.Sessions() {
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
			Silent:    now.Sub(i.LastSeen).Seconds(),
			Rows:      int64(i.Rows),
			Failures:  int64(i.Failures),

			LastFailure: i.LastFailure,
			Reason:      i.Reason,
		})
	}
	return out
}

// supervise starts the processes of every [[container]].
func (s *Server) supervise() error {
	for _, c := range s.cfg.Supervised {
		one, err := containers.Supervise(containers.Command{
			Name:        c.Name,
			Args:        c.Command,
			Replicas:    c.Replicas,
			Env:         c.Env,
			Dir:         c.Dir,
			Servers:     s.containers.Dialable(),
			StopTimeout: c.StopTimeout,
			Log:         s.log,
		})
		if err != nil {
			return err
		}
		s.supervisors = append(s.supervisors, one)
	}
	return nil
}

// stopProcesses ends all supervised processes side by side.
func (s *Server) stopProcesses() error {
	faults := make([]error, len(s.supervisors))
	var all sync.WaitGroup
	for i, one := range s.supervisors {
		all.Go(func() { faults[i] = one.Close() })
	}
	all.Wait()
	return errors.Join(faults...)
}

// processes are the supervised ones as the admin door shows them.
func (s *Server) processes() []admin.Process {
	out := []admin.Process{}
	now := time.Now()
	for _, one := range s.supervisors {
		for _, p := range one.Status() {
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
