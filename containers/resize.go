package containers

import (
	"net"
	"slices"
)

// Resize starts processes, or ends the last ones, until there are n, which may be 0. One that is to
// end gets SIGTERM once the channel is closed that drain returns; drain gets a function that tells
// the connections of the process. It is no longer in Status. Resize does not wait for that. It
// returns false, and changes nothing, during a Roll and after Close.
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
		s.wg.Go(func() { s.part(p, drain) }) // ends with the process; joined by Close
	}
	return true
}

// part ends a process after its last answer, or at once on Close.
func (s *Supervisor) part(p *process, drain func(func(net.Conn) bool) <-chan struct{}) {
	select {
	case <-drain(func(c net.Conn) bool { return s.owner(c) == p }):
	case <-p.over: // it has ended by itself, for good
	case <-s.ctx.Done():
	}
	p.end()
	<-p.over
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = slices.DeleteFunc(s.leaving, func(one *process) bool { return one == p })
}
