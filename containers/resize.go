package containers

import (
	"net"
	"slices"
)

// Resize starts processes, or ends the last ones, until there are n, which may be 0. For a process
// that is to end, it calls drain with a function that recognises the connections of the process,
// and sends SIGTERM once the channel that drain returns is closed. Resize does not wait for that
// end, and Status omits the process at once. During a Roll and after Close it changes nothing and
// returns false.
func (s *Supervisor) Resize(n int, drain func(owned func(net.Conn) bool) <-chan struct{}) bool {
	if !s.rolling.TryLock() {
		return false
	}
	defer s.rolling.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	for len(s.replicas) < n {
		s.replicas = append(s.replicas, s.launch(len(s.replicas)))
	}
	for len(s.replicas) > n {
		last := len(s.replicas) - 1
		p := s.replicas[last]
		s.replicas = s.replicas[:last:last]
		s.leaving = append(s.leaving, p)
		s.wg.Go(func() { s.retireProcess(p, drain) }) // ends with the process; joined by Close
	}
	return true
}

// retireProcess ends a process after its last answer, or at once on Close.
func (s *Supervisor) retireProcess(p *process, drain func(func(net.Conn) bool) <-chan struct{}) {
	select {
	case <-drain(func(c net.Conn) bool { return s.owner(c) == p }):
	case <-p.done: // it has ended by itself, for good
	case <-s.ctx.Done():
	}
	p.end()
	<-p.done
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = slices.DeleteFunc(s.leaving, func(one *process) bool { return one == p })
}
