package containers

import "net"

// LogEverything lifts the bound on log lines. Call it before any connection.
func (l *Listener) LogEverything() {
	for _, q := range []*throttle{l.models, l.unknowns} {
		q.mu.Lock()
		q.each, q.total = 1<<30, 1<<30
		q.mu.Unlock()
	}
}

// AddAs serves a connection as one at an address of the dialect.
func (l *Listener) AddAs(raw net.Conn, d Dialect) bool { return l.add(raw, d, false) }

// Writes returns how many system calls have written to session i.
func (l *Listener) Writes(i int) int { return l.all()[i].conn.Writes() }

// The bounds on containers that wait, and on connections that are told why they end.
const (
	MostWaiting = mostWaiting
	MostParting = mostParting
)

// Next returns the command of the next processes, and how many processes there are in all.
func (s *Supervisor) Next() (Command, int) {
	n := len(s.all())
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cmd, n
}
