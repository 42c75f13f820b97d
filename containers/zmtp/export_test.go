package zmtp

// Writes returns how many system calls have written something.
func (c *Conn) Writes() int {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.writes
}

// CheckGreeting, CheckReady and ParseHeader are what a stranger's first bytes go through.
var (
	CheckGreeting = checkGreeting
	CheckReady    = checkReady
)
