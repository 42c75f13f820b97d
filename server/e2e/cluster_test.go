//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/server/state/statetest"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/hosttest"
	"github.com/shivad/shivad/shiva/tensor"
)

// Two servers with one Redis act as one: containers connect to both, an application created on one
// serves on both, and its policy learns from feedback given to either. Redis may stop, and come
// back empty; one server may be killed, and come back.
func TestE2ETwoServersOneRedis(t *testing.T) {
	redisAddr := hosttest.Addr(t)
	redis := statetest.NewRedis(t, "--bind", "127.0.0.1", "--port", strings.TrimPrefix(redisAddr, "127.0.0.1:"))
	target := "redis://" + redisAddr + "/3"
	addresses := [2]string{hosttest.Addr(t), hosttest.Addr(t)}
	a, b := startMember(t, target, addresses[0]), startMember(t, target, addresses[1])
	both := []*shivad{a, b}

	pair := &shivad{t: t, containers: strings.Join(addresses[:], ",")} // by which containers find the server
	pair.run(binary(t, "selection-container"), "sharp", "1")
	pair.run(python(t), filepath.Join(root(t), "server", "e2e", "python", "nought.py"))
	waitPair(both...)

	// Created on one, it serves on both.
	a.ctl("apps", "create", "pair", "--model", "sharp", "--model", "nought", "--policy", "exp4", "--param", "share=0",
		"--slo", "20s")
	watch := newStopwatch(t)
	client := b.client()
	known := func() bool { return askPair(client, "first", 0) == nil }
	budgettest.Until(t, "the application on the other server", known)
	if d := watch.read(); d > time.Second {
		t.Errorf("the other server served the application after %v", d)
	}

	// Eight writers, four on each server: every feedback counts exactly once.
	const writers, each = 8, 25
	teachAtOnce(t, both, writers, each)
	learned := agreed(t, both, writers*each)
	if learned.share("sharp/1") < 0.99 {
		t.Errorf("the models were right as often as they are, and have these weights: %+v", learned)
	}
	// Feedback that one server has learned is not learned again by the other, which is asked to
	// judge the input again.
	if l, err := teachPair(client, "0-0", 0, true); err != nil || l.Learned || l.Rounds != writers*each {
		t.Errorf("the same feedback at the other server: %+v %v", l, err)
	}

	// Redis stops. Both servers continue to serve, report it, and refuse changes that they could
	// not store.
	stop := serving(t, both...)
	redis.Kill()
	for _, s := range both {
		budgettest.Until(t, "health to say that Redis is unreachable", func() bool { return !s.keeps() })
		if code := s.get("/readyz", nil); code != http.StatusOK {
			t.Errorf("/readyz without Redis: %d", code)
		}
		if out := s.ctl("status"); !strings.Contains(out, ": ready\n") || !strings.Contains(out, target+": CANNOT BE CHANGED") {
			t.Errorf("shivactl status without Redis:\n%s", out)
		}
	}
	if err := askPair(client, "away", 1); err != nil {
		t.Fatal(err)
	}
	l, err := teachPair(client, "away", 1, false)
	if remote, ok := errors.AsType[*shiva.RemoteError](err); !ok || remote.Type != shiva.Unavailable ||
		!remote.Retryable || strings.Contains(err.Error(), "replica") {
		t.Errorf("feedback without Redis: %+v %v", l, err)
	}
	a.keepsPair()

	// It comes back empty, as it saves nothing, and is filled again with the servers' state.
	redis.Start(t)
	for _, s := range both {
		budgettest.Until(t, "health to say that Redis is there", s.keeps)
	}
	if answers := stop(); answers == 0 {
		t.Error("nobody asked while Redis was away")
	}
	if again := agreed(t, both, writers*each); again.text != learned.text {
		t.Errorf("learned before Redis went\n%s\nand after\n%s", learned.text, again.text)
	}
	wantLearned(t, client, "away", 1, writers*each+1)
	agreed(t, both, writers*each+1)

	// One server is killed, and the other continues with what both have learned.
	if err := a.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	a.exited <- <-a.exited
	if err := askPair(client, "alone", 2); err != nil {
		t.Errorf("the server that is left: %v", err)
	}
	wantLearned(t, client, "alone", 2, writers*each+2)

	// It comes back, the containers find it, and it knows what was learned meanwhile.
	a = startMember(t, target, addresses[0])
	both[0] = a
	waitPair(a)
	agreed(t, both, writers*each+2)
	back := a.client()
	if err := askPair(back, "back", 3); err != nil {
		t.Error(err)
	}
	wantLearned(t, back, "back", 3, writers*each+3)
	agreed(t, both, writers*each+3)
	b.ctl("apps", "delete", "pair", "--yes")
	budgettest.Until(t, "the end of the application on both", func() bool {
		return a.get("/v1/apps/pair", nil) == http.StatusNotFound && b.get("/v1/apps/pair", nil) == http.StatusNotFound
	})
}

// keepsPair tries to delete the application while the store is away.
func (s *shivad) keepsPair() {
	s.t.Helper()
	deletes := exec.Command(binary(s.t, "shivactl"), "apps", "delete", "pair", "--yes", "--admin", s.admin)
	out, err := deletes.CombinedOutput()
	if err == nil || strings.Contains(string(out), "--yes") {
		s.t.Errorf("an application was deleted without Redis: %v %s", err, out)
	}
}

// startMember starts a server with its state at target, and with a fixed address for containers,
// which it has again after a restart.
func startMember(t *testing.T, target, containers string) *shivad {
	t.Helper()
	return startWith(t,
		[]string{binary(t, "shivad"), "--log-format", "json", "--state", target, "--containers", containers,
			"--tcp", "127.0.0.1:0", "--rest", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"})
}

// waitPair waits until each server has the two models of the application.
func waitPair(servers ...*shivad) {
	for _, s := range servers {
		s.waitReplicas("sharp", 1)
		s.waitReplicas("nought", 1)
	}
}

// keeps reports whether a server's state can be changed, according to two answers, which must
// agree.
func (s *shivad) keeps() bool {
	var status struct {
		State struct {
			Healthy bool
			Error   string
		}
		Readiness struct{ Degraded string }
	}
	s.get("/v1/status", &status)
	return status.State.Healthy && status.State.Error == "" && status.Readiness.Degraded == ""
}

// digit returns the n-th held-out image and its label.
func digit(n int) (pixels []byte, label int, err error) {
	data, err := os.ReadFile("../../examples/digits/heldout.u8")
	if err != nil {
		return nil, 0, err
	}
	row := data[n%(len(data)/65)*65:]
	return row[:64], int(row[64]), nil
}

// askPair asks the application about the n-th digit. Any answer of a model is accepted.
func askPair(c *shiva.Client, id string, n int) error {
	_, err := toPair(c, "pair", fmt.Appendf(nil, `{"id": %q}`, id), n, true)
	return err
}

// pairLearned is the answer to feedback.
type pairLearned struct {
	Learned bool
	Rounds  int
}

// teachPair gives feedback on the request with the given id; with input, it sends the image again.
func teachPair(c *shiva.Client, id string, n int, input bool) (l pairLearned, err error) {
	_, label, err := digit(n)
	if err != nil {
		return l, err
	}
	reply, err := toPair(c, "pair/update", fmt.Appendf(nil, `{"id": %q, "label": %d}`, id, label), n, input)
	if err != nil {
		return l, err
	}
	return l, json.Unmarshal(reply, &l)
}

// wantLearned gives feedback on the request with the given id, and expects it to be the last of the
// given number of rounds.
func wantLearned(t *testing.T, c *shiva.Client, id string, n, rounds int) {
	t.Helper()
	if l, err := teachPair(c, id, n, false); err != nil || !l.Learned || l.Rounds != rounds {
		t.Errorf("feedback on %q: %+v %v, expected round %d", id, l, err, rounds)
	}
}

// teachAtOnce runs several writers, spread over the servers, that ask and give feedback on each
// answer.
func teachAtOnce(t *testing.T, servers []*shivad, writers, each int) {
	t.Helper()
	var writing sync.WaitGroup
	for w := range writers {
		c := servers[w%len(servers)].client()
		writing.Go(func() {
			for i := range each {
				id := fmt.Sprintf("%d-%d", w, i)
				if err := askPair(c, id, w*each+i); err != nil {
					t.Errorf("asking %s: %v", id, err)
				} else if l, err := teachPair(c, id, w*each+i, false); err != nil || !l.Learned {
					t.Errorf("feedback %s: %+v %v", id, l, err)
				}
			}
		})
	}
	writing.Wait()
}

// toPair sends a message and returns the metadata of the answer.
func toPair(c *shiva.Client, namespace string, metadata []byte, n int, input bool) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	m := &shiva.Message{Namespace: namespace, Metadata: metadata}
	if input {
		pixels, _, err := digit(n)
		if err != nil {
			return nil, err
		}
		image, err := tensor.New(tensor.Uint8, tensor.Shape{8, 8}, pixels)
		if err != nil {
			return nil, err
		}
		m.Tensors = []tensor.Tensor{image}
	}
	answer, err := c.Do(ctx, m)
	if err != nil {
		return nil, err
	}
	defer answer.Release()
	return append([]byte{}, answer.Metadata...), nil
}

// pairState is the policy's learned state without a user.
type pairState struct {
	text  string // all of it, as the server prints it
	Users []struct {
		Rounds int
		Models []struct {
			Model string
			Share float64
		}
	}
}

func (p pairState) share(model string) float64 {
	for _, u := range p.Users {
		for _, m := range u.Models {
			if m.Model == model {
				return m.Share
			}
		}
	}
	return 0
}

// agreed waits until all servers have learned from the given number of feedbacks, and checks that
// their states are equal.
func agreed(t *testing.T, servers []*shivad, rounds int) pairState {
	t.Helper()
	var all []pairState
	for _, s := range servers {
		p := s.learned(rounds)
		p.text = s.ctl("policies", "learned", "pair", "--json")
		all = append(all, p)
	}
	for _, p := range all[1:] {
		if p.text != all[0].text {
			t.Errorf("one server has learned\n%s\nanother\n%s", all[0].text, p.text)
		}
	}
	return all[0]
}

// learned waits until the server has learned from the given number of feedbacks.
func (s *shivad) learned(rounds int) (p pairState) {
	s.t.Helper()
	budgettest.Until(s.t, fmt.Sprintf("%d rounds at %s", rounds, s.admin), func() bool {
		var raw json.RawMessage
		p = pairState{}
		return s.get("/v1/apps/pair/policy", &raw) == http.StatusOK && json.Unmarshal(raw, &p) == nil &&
			len(p.Users) == 1 && p.Users[0].Rounds == rounds
	})
	return p
}

// serving asks the servers about digits until stop is called, which returns the number of answers.
// No request may fail.
func serving(t *testing.T, servers ...*shivad) (stop func() (answers int)) {
	t.Helper()
	end := make(chan struct{})
	var asking sync.WaitGroup
	var answers atomic.Int64
	for _, s := range servers {
		c := s.client()
		asking.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-end:
					return
				case <-time.After(5 * time.Millisecond):
				}
				if _, err := toPair(c, "pair", nil, n, true); err != nil {
					t.Errorf("serving without Redis: %v", err)
					return
				}
				answers.Add(1)
			}
		})
	}
	stop = sync.OnceValue(func() int {
		close(end)
		asking.Wait()
		return int(answers.Load())
	})
	t.Cleanup(func() { stop() })
	return stop
}
