package containers_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
)

// atOnce grants every offer.
func atOnce(int) containertest.Grant { return containertest.Grant{} }

// never is for a container that says it has other servers, and grants nothing to this one.
func never(int) containertest.Grant { return containertest.Grant{Silent: true} }

// granting is echo as a container that several servers share.
func granting(grant func(rows int) containertest.Grant,
	answer func(*containertest.Batch) containertest.Reply) containertest.Model {
	m := echo(answer)
	m.Grant = grant
	return m
}

// TestGrantsAndNeverTakes: a container that grants and answers nothing, or that is shared and
// grants nothing, loses its session after three execution timeouts. By then the waiting requests
// have an error, and the next container serves.
func TestGrantsAndNeverTakes(t *testing.T) {
	silent := func(*containertest.Batch) containertest.Reply { return containertest.Reply{Silent: true} }
	for name, c := range map[string]struct {
		model containertest.Model
		want  error
	}{
		"grants and answers nothing":   {granting(atOnce, silent), scheduler.ErrContainerLost},
		"is shared and grants nothing": {granting(never, nil), scheduler.ErrUnavailable},
		"has no other server, and hangs": {granting(func(int) containertest.Grant {
			return containertest.Grant{Alone: true, Delay: time.Hour}
		}, silent), scheduler.ErrContainerLost},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				if err := r.sched.Configure(echoID.Name,
					scheduler.ModelConfig{ExecTimeout: 2 * time.Second}); err != nil {
					t.Fatal(err)
				}
				bad := r.start(t, c.model)
				began := time.Now()
				if err := r.echoes(echoID); !errors.Is(err, c.want) {
					t.Errorf("answered %v, expected %v", err, c.want)
				}
				<-bad.Gone()
				if took := time.Since(began); took < 6*time.Second || took > 8*time.Second {
					t.Errorf("it was parted from after %v, expected three execution timeouts of 2 s", took)
				}
				r.logs(t, "container gone", "no answer for 3 times execution_timeout")
				r.start(t, granting(atOnce, nil))
				if err := r.echoes(echoID); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestGrantingBesideOthers: alongside a container that other servers share, whatever it grants, a
// container of an SDK without grants gets batches as before, and so does one of generation v3. No
// request waits for the shared one while another is free, and one that grants has its share of the
// rows.
func TestGrantingBesideOthers(t *testing.T) {
	slowly := func(b *containertest.Batch) containertest.Reply {
		return containertest.Reply{Outputs: b.Inputs, Delay: 10 * time.Millisecond}
	}
	for name, c := range map[string]struct {
		grant  func(rows int) containertest.Grant
		serves bool
	}{
		"grants": {atOnce, true},
		"grants late, for much more elsewhere": {func(int) containertest.Grant {
			return containertest.Grant{Delay: 7 * time.Millisecond, Elsewhere: 1 << 30, Target: 1 << 30}
		}, true},
		"grants nothing": {never, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				shared, old := r.start(t, granting(c.grant, slowly)), r.start(t, echo(slowly))
				_, legacy := r.v3(t, "2\x00stray")
				var wg sync.WaitGroup
				var mu sync.Mutex
				var longest time.Duration
				for range 8 {
					wg.Go(func() {
						for range 30 {
							began := time.Now()
							if err := r.echoes(echoID); err != nil {
								t.Error(err)
							}
							mu.Lock()
							longest = max(longest, time.Since(began))
							mu.Unlock()
						}
					})
				}
				wg.Wait()
				synctest.Wait()
				if longest > 200*time.Millisecond {
					t.Errorf("a row waited %v beside a container that takes 10 ms", longest)
				}
				if n, m := len(shared.Batches()), len(old.Batches()); (n > 0) != c.serves || m == 0 {
					t.Errorf("%d batches went to the shared container, %d to the other", n, m)
				}
				for _, b := range old.Batches() {
					if strings.Contains(b.Header, "grant") {
						t.Errorf("a container that knows no grants was sent %s", b.Header)
					}
				}
				if r.live(legacy) != 1 {
					t.Error("the container of v3 has gone")
				}
			})
		})
	}
}
