package containers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// wider is another declaration of echo's version, by a container that knows how to wait.
func wider() containertest.Model {
	m := echo(nil)
	m.Waits = true
	m.Inputs = []tensor.Spec{{Name: "x", DType: tensor.Float64, Shape: tensor.Shape{-1, 4}}}
	return m
}

// A candidate is a container that has sent hello, and sends heartbeats while it waits.
type candidate struct {
	*containertest.Peer
	kinds []string // what it was told; heartbeats left out
	texts []string // the errors or reasons in it
	over  chan struct{}
}

// apply sends hello.
func (r *rig) apply(t *testing.T, m containertest.Model) *candidate {
	t.Helper()
	c := &candidate{Peer: r.peer(t), over: make(chan struct{})}
	if err := c.Send([]byte("hello"), containertest.Hello(m)); err != nil {
		t.Fatal(err)
	}
	go c.listen()
	go c.beat()
	synctest.Wait()
	return c
}

func (c *candidate) listen() {
	defer close(c.over)
	for {
		f, err := c.Receive()
		if err != nil {
			return
		}
		if kind := string(f[0]); kind != "heartbeat" {
			var m struct{ Error, Reason string }
			_ = json.Unmarshal(f[1], &m)
			c.kinds, c.texts = append(c.kinds, kind), append(c.texts, m.Error+m.Reason)
		}
	}
}

func (c *candidate) beat() {
	for {
		select {
		case <-c.over:
			return
		case <-time.After(time.Second):
			_ = c.Send([]byte("heartbeat"))
		}
	}
}

// told checks what a candidate was told, with words of the last text.
func (c *candidate) told(t *testing.T, words string, kinds ...string) {
	t.Helper()
	synctest.Wait()
	if !slices.Equal(c.kinds, kinds) || !strings.Contains(c.texts[len(c.texts)-1], words) {
		t.Errorf("told %q, %q; expected %q, and %q in the last", c.kinds, c.texts, kinds, words)
	}
}

func (r *rig) waiting() (n int) {
	for _, i := range r.Sessions() {
		if i.State == "waiting" {
			n++
		}
	}
	return n
}

// TestWaitsForPlace: a container whose version is served with other shapes waits, as long as
// it takes, until the one that serves leaves; a heartbeat later it may register. One that does not
// know how to wait is refused.
func TestWaitsForPlace(t *testing.T) {
	var refusals []string
	cfg := containers.Config{Refused: func(_ net.Conn, i containers.SessionInfo, err error) {
		refusals = append(refusals, i.Model.String())
	}}
	bubbleWith(t, cfg, func(t *testing.T, r *rig) {
		first := r.start(t, echo(nil))
		c := r.apply(t, wider())
		c.told(t, "register it as another version, or stop the 1 that serve this one", "wait")
		old := wider()
		old.Waits = false
		r.apply(t, old).told(t, "register it as another version", "refused")
		time.Sleep(10 * time.Minute)
		c.told(t, "", "wait")
		if i := r.Sessions()[1]; i.State != "waiting" || !strings.Contains(i.Waiting, "this replica declares") ||
			!i.Registered.IsZero() {
			t.Errorf("shown as %+v", i)
		}
		first.Close()
		time.Sleep(time.Second)
		c.told(t, "there is a place for echo/1 now", "wait", "goodbye")
		c.Close()
		r.apply(t, wider()).told(t, "", "welcome")
		r.logs(t, "container waits", "model=echo/1", "register it as another version")
		r.logs(t, "container no longer waits", "there is a place")
		if fmt.Sprint(refusals) != "[echo/1 echo/1]" {
			t.Errorf("refusals: %q", refusals)
		}
	})
}

// TestReportsRefusals: a hello that cannot be read, and a model that is not admitted.
func TestReportsRefusals(t *testing.T) {
	var refusals []string
	cfg := containers.Config{
		Admit: func(scheduler.ModelID) error { return errors.New("no such name") },
		Refused: func(_ net.Conn, i containers.SessionInfo, err error) {
			refusals = append(refusals, i.Model.String()+" "+err.Error())
		}}
	bubbleWith(t, cfg, func(t *testing.T, r *rig) {
		bad := echo(nil)
		bad.Outputs = nil
		r.apply(t, bad).told(t, "0 outputs", "refused")
		r.apply(t, echo(nil)).told(t, "no such name", "refused")
		want := []string{"/ 0 outputs declared, expected 1 to 255", "echo/1 no such name"}
		if !slices.Equal(refusals, want) {
			t.Errorf("reported %q, want %q", refusals, want)
		}
	})
}

// TestWaitEnds: a container that hangs up, falls silent, or wants to stop while it waits leaves
// nothing behind, and one that waits is told that the server stops, or that it may no longer serve
// its model.
func TestWaitEnds(t *testing.T) {
	allowed := true
	cfg := containers.Config{Allow: func(containers.Applicant) (p containers.Party, err error) {
		if !allowed {
			err = errors.New("its right was revoked")
		}
		return p, err
	}}
	bubbleWith(t, cfg, func(t *testing.T, r *rig) {
		r.start(t, echo(nil))
		for name, end := range map[string]func(*candidate){
			"hangs up": func(c *candidate) { c.Close() },
			"dies":     func(c *candidate) { c.Kill() },
			"drains": func(c *candidate) {
				_ = c.Send([]byte("draining"))
				c.told(t, "drained", "wait", "goodbye")
				c.Close()
			},
			"registers again": func(c *candidate) { _ = c.Send([]byte("hello"), containertest.Hello(wider())) },
		} {
			c := r.apply(t, wider())
			if r.waiting() != 1 {
				t.Errorf("%s: it does not wait", name)
			}
			end(c)
			<-c.over
			synctest.Wait()
			if n := r.Stats().Sessions; n != 1 {
				t.Errorf("%s: %d sessions", name, n)
			}
		}
		silent := r.peer(t)
		if err := silent.Send([]byte("hello"), containertest.Hello(wider())); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if r.waiting() != 0 {
			t.Error("one that is silent waits")
		}
		c := r.apply(t, wider())
		allowed = false
		r.Review()
		c.told(t, "its right was revoked", "wait", "goodbye")
		c.Close()
		allowed = true
		r.start(t, echo(nil)) // the review has ended the first
		c = r.apply(t, wider())
		go r.Shutdown(t.Context())
		c.told(t, "server shuts down", "wait", "goodbye")
		c.Close()
	})
}

// TestManyWait: a bounded number of containers waits, none of which counts as unregistered, and who
// stops waiting makes room.
func TestManyWait(t *testing.T) {
	cfg := containers.Config{Settings: containers.Settings{Limits: containers.Limits{Handshakes: 4}}}
	bubbleWith(t, cfg, func(t *testing.T, r *rig) {
		first := r.start(t, echo(nil))
		var all []*candidate
		for range containers.MostWaiting {
			all = append(all, r.apply(t, wider()))
		}
		r.apply(t, wider()).told(t, "64 containers wait for places already", "refused")
		if s := r.Stats(); r.waiting() != containers.MostWaiting || s.Displaced != 0 {
			t.Errorf("%d wait, %+v", r.waiting(), s)
		}
		all[0].Close()
		synctest.Wait()
		all[0] = r.apply(t, wider())
		all[0].told(t, "", "wait")
		first.Close()
		time.Sleep(time.Second)
		for _, c := range all {
			c.told(t, "there is a place", "wait", "goodbye")
		}
	})
}

// TestWaitsWithinReason: a container that waits does not take the place of one that hangs and may
// recover, or of a process that is being restarted; but it joins those of its own declaration.
func TestWaitsWithinReason(t *testing.T) {
	cfg := containers.Config{Returns: func(net.Conn) time.Duration { return 20 * time.Second }}
	bubbleWith(t, cfg, func(t *testing.T, r *rig) {
		first := r.start(t, echo(nil))
		c := r.apply(t, wider())
		first.Close()
		time.Sleep(19 * time.Second)
		c.told(t, "", "wait")
		again := r.start(t, echo(nil)) // the successor
		time.Sleep(time.Minute)
		c.told(t, "", "wait")
		again.Close()
		time.Sleep(time.Second)
		now := wider()
		now.Waits = false
		r.start(t, now) // at the right moment
		time.Sleep(time.Second)
		c.told(t, "there is a place", "wait", "goodbye")
	})
	bubble(t, func(t *testing.T, r *rig) {
		if err := r.sched.Configure(echoID.Name, scheduler.ModelConfig{ExecTimeout: 2 * time.Second}); err != nil {
			t.Fatal(err)
		}
		r.start(t, echo(func(b *containertest.Batch) containertest.Reply {
			return containertest.Reply{Outputs: b.Inputs, Delay: 4 * time.Second}
		}))
		c := r.apply(t, wider())
		_ = r.echoes(echoID)
		time.Sleep(10 * time.Second)
		c.told(t, "", "wait")
		if r.live(echoID) != 1 {
			t.Error("it has not recovered")
		}
	})
}
