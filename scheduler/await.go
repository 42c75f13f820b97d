package scheduler

import "fmt"

// Await says that a replica will be started for the rows that wait for one. So the model's requests
// wait for it until their deadlines, and then are answered ErrUnavailable with why: what is being
// started, or what keeps it. "" ends that: without a live replica they are answered at once. The
// model stays known without a replica. Any goroutine may call it.
func (m *Model) Await(why string) {
	m.mu.Lock()
	same := m.core.awaited == why
	m.mu.Unlock()
	if same {
		return // what is no event leaves no trace
	}
	fx, now := m.begin()
	fx.changed = (m.core.awaited == "") != (why == "")
	m.core.awaited = why
	m.core.unavailable(now, fx)
	m.end(fx, now)
}

// Awaited reports whether requests wait for a replica; see Await.
func (m *Model) Awaited() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.awaited != ""
}

// noStart is the error of a request whose deadline passed while it waited for a replica.
func (c *core) noStart() error {
	return fmt.Errorf("%w: by its deadline: %s", c.noReplica, c.awaited)
}
