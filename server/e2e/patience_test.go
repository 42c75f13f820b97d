//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// script starts one of the Python containers of this directory.
func (s *shivad) script(name string, args ...string) *exec.Cmd {
	s.t.Helper()
	return s.run(python(s.t), append([]string{filepath.Join(root(s.t), "server/e2e/python", name)}, args...)...)
}

// plain starts the container of containers/DESIGN.md, which has no SDK. It sums the values of each
// row.
func (s *shivad) plain(addr string) {
	s.t.Helper()
	page, err := os.ReadFile(filepath.Join(root(s.t), "containers/DESIGN.md"))
	if err != nil {
		s.t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(page), "<!-- file plain.py -->\n```python\n")
	code, _, found := strings.Cut(code, "```\n")
	script := filepath.Join(s.t.TempDir(), "plain.py")
	if err := os.WriteFile(script, []byte(code), 0o600); err != nil || !found {
		s.t.Fatal("no plain.py in DESIGN.md", err)
	}
	if lines := strings.Count(code, "\n"); lines > 60 {
		s.t.Errorf("a container of %d lines, the page promises fifty and a few blank ones", lines)
	}
	s.run(python(s.t), script, "tcp://"+addr)
}

// ask asks a model for one tensor.
func ask(t *testing.T, c *shiva.Client, model string, x tensor.Tensor) (*shiva.Message, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return c.Do(ctx, &shiva.Message{Namespace: model, Tensors: []tensor.Tensor{x}})
}

// waitHeartbeats waits until every container has sent a heartbeat: between hello and the first one,
// a container in Python may be silent for longer. Of three messages at least one is a heartbeat: at
// most two answer offers, of shared memory and of grants.
func (s *shivad) waitHeartbeats() {
	s.t.Helper()
	silent, messages := map[string]float64{}, map[string]int{}
	budgettest.Until(s.t, "heartbeats", func() bool {
		var all struct {
			Sessions []struct {
				Remote string
				Silent float64 `json:"silent_seconds"`
			}
		}
		s.get("/v1/containers", &all)
		heard := len(all.Sessions) > 0
		for _, i := range all.Sessions {
			if i.Silent < silent[i.Remote] {
				messages[i.Remote]++
			}
			silent[i.Remote] = i.Silent
			heard = heard && messages[i.Remote] >= 3
		}
		return heard
	})
}

// steady fails if a container's session has ended.
func (s *shivad) steady() {
	s.t.Helper()
	if s.logs("container gone") {
		s.t.Error("a session has ended")
	}
}

// A message takes twice as long to arrive as a side may be silent, to a container and back. The
// SDKs count bytes. The plain container's library reports only whole messages, and receives no
// heartbeat meanwhile, so its messages are announced.
func TestE2ESlowCable(t *testing.T) {
	const size, rate = 8 << 20, 4 << 20
	// Shared memory would bypass the cable.
	s := start(t, "[containers]\nheartbeat = \"300ms\"\narena = false\n")
	s.script("busy_models.py", connect(t, s.containers, rate).ear.Addr().String(), "big")
	s.plain(connect(t, s.containers, rate).ear.Addr().String())
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() {
		x := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1}}}
		err := container.Serve(ctx, container.Model{
			Name: "big_go", Version: "1", Batched: new(true), Inputs: x, Outputs: x,
			Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) { return b.Inputs, nil },
		}, connect(t, s.containers, rate).ear.Addr().String())
		if err != nil {
			t.Error(err)
		}
	})
	s.waitReplicas("big", 1)
	s.waitReplicas("big_go", 1)
	s.waitReplicas("plain", 1)
	data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	x, err := tensor.New(tensor.Uint8, tensor.Shape{1, size}, data)
	if err != nil {
		t.Fatal(err)
	}
	var asks sync.WaitGroup
	for _, model := range []string{"big", "big_go"} {
		c := s.client()
		asks.Go(func() {
			m, err := ask(t, c, model, x)
			if err != nil {
				t.Errorf("%s: %v", model, err)
				return
			}
			if !bytes.Equal(m.Tensors[0].Data, data) {
				t.Errorf("%s: other bytes came back", model)
			}
			m.Release()
		})
	}
	c := s.client()
	asks.Go(func() {
		x, err := tensor.FromSlice(tensor.Shape{1, size / 4}, make([]float32, size/4))
		if err != nil {
			t.Error(err)
			return
		}
		m, err := ask(t, c, "plain", x)
		if err != nil {
			t.Errorf("plain: %v", err)
			return
		}
		if sums, err := tensor.Values[float32](m.Tensors[0]); err != nil || len(sums) != 1 || sums[0] != 0 {
			t.Errorf("plain: %v, %v", sums, err)
		}
		m.Release()
	})
	asks.Wait()
	s.steady()
}

// While a model loads, it holds the interpreter lock of an idle one: the idle one is silent for
// three times as long as a side may be.
func TestE2EInterpreterHeld(t *testing.T) {
	s := start(t, "[containers]\nheartbeat = \"300ms\"\n")
	s.script("busy_models.py", s.containers, "quiet", "greedy")
	s.waitReplicas("quiet", 1)
	s.waitReplicas("greedy", 1)
	s.steady()
}

// A model holds the interpreter lock of an idle one while it computes.
func TestE2EInterpreterHeldByACall(t *testing.T) {
	s := start(t, "[containers]\nheartbeat = \"300ms\"\n")
	s.script("busy_models.py", s.containers, "quiet", "holder")
	s.waitReplicas("quiet", 1)
	s.waitReplicas("holder", 1)
	s.waitHeartbeats()
	x, err := tensor.FromSlice(tensor.Shape{1, 1}, []int64{1})
	if err != nil {
		t.Fatal(err)
	}
	m, err := ask(t, s.client(), "holder", x)
	if err != nil {
		t.Fatal(err)
	}
	m.Release()
	s.steady()
}

// The server notices an idle container in Python that is stopped after twice the time allowed to
// one in another language, not after ten times as long: an idle SDK has no reason not to answer
// PINGs.
func TestE2EStoppedIdle(t *testing.T) {
	s := start(t, "[containers]\nheartbeat = \"300ms\"\n")
	cmd := s.script("busy_models.py", s.containers, "quiet")
	s.waitReplicas("quiet", 1)
	s.waitHeartbeats()
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	const gone = "container gone"
	budgettest.Until(t, gone, func() bool { return s.logs(gone) })
	if !s.logs(gone, "silent for 1.8") && !s.logs(gone, "silent for 1.9") && !s.logs(gone, "silent for 2") {
		t.Error("it was not given up after 1.8 s of silence")
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s.waitReplicas("quiet", 1)
}

// A container that executes four batches at once gets four: each waits for the others.
func TestE2EConcurrency(t *testing.T) {
	s := start(t, "")
	s.script("busy_models.py", s.containers, "together")
	s.waitReplicas("together", 1)
	c := s.client()
	var asks sync.WaitGroup
	for n := range 12 {
		asks.Go(func() {
			x, err := tensor.FromSlice(tensor.Shape{1, 1}, []int64{int64(n)})
			if err != nil {
				t.Error(err)
				return
			}
			m, err := ask(t, c, "together", x)
			if err != nil {
				t.Error(err)
				return
			}
			m.Release()
		})
	}
	asks.Wait()
}

// One of a hundred rows makes its batch fail. Only its request gets that error; all others get
// correct answers.
func TestE2EPoison(t *testing.T) {
	s := start(t, "")
	s.script("busy_models.py", s.containers, "picky")
	s.waitReplicas("picky", 1)
	const requests, every = 2000, 100
	c := s.client()
	var next atomic.Int64
	var asks sync.WaitGroup
	for range 32 {
		asks.Go(func() {
			for n := next.Add(1); n <= requests; n = next.Add(1) {
				value := float64(n)
				if n%every == 0 {
					value = -value
				}
				x, err := tensor.FromSlice(tensor.Shape{1, 1}, []float64{value})
				if err != nil {
					t.Error(err)
					return
				}
				m, err := ask(t, c, "picky", x)
				if value < 0 {
					if err == nil || !strings.Contains(err.Error(), "a negative row") {
						t.Errorf("row %g: %v", value, err)
					}
					continue
				}
				if err != nil {
					t.Errorf("row %g: %v", value, err)
					continue
				}
				if got := number(m); got != fmt.Sprint(value) {
					t.Errorf("row %g was answered %s", value, got)
				}
				m.Release()
			}
		})
	}
	asks.Wait()
	s.steady()
}

// Containers of RPC v1 to v3 that send from one buffer answer correctly, as they get the next batch
// only after their answer. With slots = 2 they do not, and the log warns.
func TestE2EOneBuffer(t *testing.T) {
	s := start(t, `
[containers]
listen_v2 = "127.0.0.1:0"

[defaults]
max_batch = 2

[model.hasty]
slots = 2
`)
	script := func(rpc, addr, name string) {
		s.script("legacy_container.py", "--one-buffer", rpc, addr, name, "1", "doubles")
	}
	script("v3", s.containers, "three")
	script("v2", s.old[1], "two")
	script("v1", s.containers, "one")
	script("v3", s.containers, "hasty")
	wrong := func(model string, requests int) int64 {
		s.waitReplicas(model, 1)
		var next, wrong atomic.Int64
		var asks sync.WaitGroup
		c := s.client()
		for range 32 {
			asks.Go(func() {
				for n := next.Add(1); n <= int64(requests); n = next.Add(1) {
					x, err := tensor.FromSlice(tensor.Shape{2}, []float64{float64(n), 0.5})
					if err != nil {
						t.Error(err)
						return
					}
					m, err := ask(t, c, model, x)
					if err != nil {
						if _, typed := errors.AsType[*shiva.RemoteError](err); typed && model == "hasty" {
							wrong.Add(1) // its sizes were another answer's
							continue
						}
						t.Error(err)
						return
					}
					if got := number(m); got != fmt.Sprint(float64(n)+0.5) {
						wrong.Add(1)
					}
					m.Release()
				}
			})
		}
		asks.Wait()
		return wrong.Load()
	}
	for _, model := range []string{"three", "two", "one"} {
		if n := wrong(model, 2000); n > 0 {
			t.Errorf("%s: %d of 2000 answers are another's", model, n)
		}
	}
	s.steady()
	if n := wrong("hasty", 2000); n == 0 {
		t.Error("the container does not do what it is for: with two batches in flight all of 2000 answers are right")
	} else {
		t.Logf("with two batches in flight %d of 2000 are wrong", n)
	}
	if !s.logs("slots", "answers may be wrong", "hasty") {
		t.Error("the log does not warn of the setting")
	}
}

// number returns the only value of an answer, as text.
func number(m *shiva.Message) string {
	if len(m.Tensors) != 1 {
		return ""
	}
	for _, values := range []func(tensor.Tensor) (any, error){
		func(x tensor.Tensor) (any, error) { return tensor.Values[float64](x) },
		func(x tensor.Tensor) (any, error) { return tensor.Values[float32](x) },
	} {
		if v, err := values(m.Tensors[0]); err == nil {
			return strings.Trim(fmt.Sprint(v), "[]")
		}
	}
	return ""
}
