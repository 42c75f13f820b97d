package containers

// LogEverything lifts the bound on log lines about strangers.
func (l *Listener) LogEverything() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quiet.rate = 1 << 30
}

// Writes returns how many system calls have written to session i.
func (l *Listener) Writes(i int) int { return l.all()[i].conn.Writes() }
