package operate

import (
	"slices"
	"testing"

	"github.com/shivad/shivad/server/admin"
)

// TestWarnsOfReplacedMemory: a container that keeps replaced memory is named, unless a batch
// explains why.
func TestWarnsOfReplacedMemory(t *testing.T) {
	const keeps = "container of m/1 at 127.0.0.1:5 keeps 4096 bytes of shared memory that was replaced 12s ago: it should have unmapped its segment"
	for name, c := range map[string]struct {
		session admin.Session
		want    []string
	}{
		"just now":       {admin.Session{Replaced: 4096, ReplacedFor: 2}, []string{}},
		"for long":       {admin.Session{Replaced: 4096, ReplacedFor: 12}, []string{keeps}},
		"with its batch": {admin.Session{Replaced: 4096, ReplacedFor: 12, Oldest: 15}, []string{"container of m/1 at 127.0.0.1:5 has not answered a batch for 15s"}},
	} {
		c.session.Model, c.session.Version, c.session.Remote, c.session.State = "m", "1", "127.0.0.1:5", "serving"
		if got := warnings(admin.Status{Sessions: []admin.Session{c.session}}); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, expected %q", name, got, c.want)
		}
	}
}

// TestWarnsOfState: a state that cannot be written is among what an operator should look at.
func TestWarnsOfState(t *testing.T) {
	s := admin.Status{State: admin.State{At: "redis://10.0.0.9:6379/0", Error: "connection refused"}}
	want := []string{"changes of applications, pipelines and settings, and feedback, are refused, as " +
		"redis://10.0.0.9:6379/0 cannot be written: connection refused"}
	if got := warnings(s); !slices.Equal(got, want) {
		t.Errorf("got %q, expected %q", got, want)
	}
}
