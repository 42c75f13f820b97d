package scheduler

import (
	"cmp"
	"fmt"
)

// Await announces that a replica will be started for waiting rows. The model's requests then wait
// for it until their deadlines, and are answered ErrUnavailable with why: what is being started, or
// what delays the start. After Await(""), requests are answered at once again if there is no live
// replica. While a replica is awaited, the model stays known without one. Any goroutine may call
// Await.
func (m *Model) Await(why string) {
	m.mu.Lock()
	same := m.core.awaited == why
	m.mu.Unlock()
	if same {
		return // nothing changes, so this is no event
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
	why := cmp.Or(c.awaited, "its container is being restarted")
	return fmt.Errorf("%w; none was live by the request's deadline: %s", c.noReplica, why)
}
