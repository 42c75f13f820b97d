package containers_test

import (
	"strings"
	"testing"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/containertest"
)

// TestCountsAreTold: a container that chooses among servers is told how many sessions its model
// has, in welcome and when that changes.
func TestCountsAreTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, containers.Config{})
	p := r.peer(t)
	m := echo(nil)
	m.Subset, m.Servers = 2, 5
	if err := p.Send([]byte("hello"), containertest.Hello(m)); err != nil {
		t.Fatal(err)
	}
	if f, err := p.Receive(); err != nil || string(f[0]) != "welcome" || !strings.Contains(string(f[1]), `"replicas":1`) {
		t.Fatalf("hello was answered with %q, %v, want welcome with 1 replica", f, err)
	}
	r.wait(t, echoID, 1)
	told := func(want string) {
		t.Helper()
		for beats := 0; beats < 20; beats++ {
			f, err := p.Receive()
			if err != nil {
				t.Fatal(err)
			}
			if len(f) == 2 && string(f[0]) == "heartbeat" && string(f[1]) == want {
				return
			}
			if err := p.Send([]byte("heartbeat")); err != nil {
				t.Fatal(err)
			}
		}
		t.Errorf("20 messages, and none says %s", want)
	}
	told(`{"replicas":1}`)
	other := r.join(t, echo(nil))
	told(`{"replicas":2}`)
	other.Kill()
	told(`{"replicas":1}`)
}
