//go:build e2e

package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

const (
	budget = 200 << 20
	row    = 8 << 20 // bytes of a request
)

const memoryConfig = `
[limits]
payload_bytes = "200MiB"
message_bytes = "32MiB"
metadata_bytes = "64KiB"
[rest]
message_timeout = "30s"
`

// A cgroup is a memory cgroup of the kernel with a limit.
type cgroup struct{ dir, procs string }

// newCgroup makes one below this process's own, or returns why it cannot.
func newCgroup(t *testing.T, limit int64) (*cgroup, error) {
	of, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	for _, try := range []struct{ controllers, mount, file string }{
		{"memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
		{"", "/sys/fs/cgroup", "memory.max"},
	} {
		for line := range strings.Lines(string(of)) {
			f := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(f) != 3 || f[1] != try.controllers {
				continue
			}
			dir := filepath.Join(try.mount, f[2], fmt.Sprintf("shivad-e2e-%d", os.Getpid()))
			if err = os.Mkdir(dir, 0o755); err != nil {
				continue
			}
			t.Cleanup(func() {
				budgettest.Until(t, "the cgroup to be empty", func() bool { return os.Remove(dir) == nil })
			})
			if err = os.WriteFile(filepath.Join(dir, try.file), strconv.AppendInt(nil, limit, 10), 0o644); err == nil {
				return &cgroup{dir, filepath.Join(dir, "cgroup.procs")}, nil
			}
		}
	}
	return nil, fmt.Errorf("no cgroup with a limit of memory can be made here: %w", err)
}

// inside returns a command prefix that runs a command in the cgroup.
func (g *cgroup) inside() []string {
	return []string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, g.procs}
}

// peak returns the server's peak resident memory.
func (s *shivad) peak() int64 {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if kib, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(kib), " kB"), 10, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			return n << 10
		}
	}
	s.t.Fatal("no VmHWM")
	return 0
}

// big serves a model "big" with rows of 8 MiB, whose answers have an eighth of the size.
func (s *shivad) big(t *testing.T) {
	s.serve(t, container.Model{
		Name:    "big",
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, row}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Uint8, Shape: tensor.Shape{-1, row / 8}}},
	}, 50*time.Millisecond)
}

// serve serves a model of at most four rows that takes that long and answers with zeros, as bytes.
func (s *shivad) serve(t *testing.T, m container.Model, takes time.Duration) {
	m.Version, m.MaxBatch = "1", 4
	if m.Predict == nil {
		m.Predict = func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			time.Sleep(takes)
			y, err := tensor.New(tensor.Uint8, tensor.Shape{b.Rows, m.Outputs[0].Shape[1]},
				make([]byte, b.Rows*m.Outputs[0].Shape[1]))
			return []tensor.Tensor{y}, err
		}
	}
	serving := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { serving <- container.Serve(ctx, m, s.containers) }()
	t.Cleanup(func() {
		cancel()
		<-serving
	})
	s.waitReplicas(m.Name, 1)
}

// tally counts answers by type.
type tally struct {
	mu sync.Mutex
	of map[string]int
}

func (c *tally) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of[what]++
}

// Clients always offer three times the budget, over two doors, alongside bodies that unpack to
// thirty times the budget: every answer is a result or Overloaded, and the process stays within its
// budget and a quarter, in a cgroup of the budget and 30 %. Memory shared with the container
// counts.
func TestE2EMemoryBudget(t *testing.T) {
	var prefix []string
	if g, err := newCgroup(t, budget*13/10); err != nil {
		t.Log(err)
	} else {
		prefix = g.inside()
	}
	s := start(t, memoryConfig, prefix...)
	s.big(t)

	data := bytes.Repeat([]byte("0123456789abcdef"), row/16)
	x, err := tensor.New(tensor.Uint8, tensor.Shape{1, row}, data)
	if err != nil {
		t.Fatal(err)
	}
	bomb := unfinished(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	answers := tally{of: map[string]int{}}
	var clients sync.WaitGroup
	bombs := s.throw(ctx, bomb, &clients)
	for range 48 {
		c := s.client()
		clients.Go(func() {
			for ctx.Err() == nil {
				m, err := c.Do(context.Background(), &shiva.Message{Namespace: "big", Tensors: []tensor.Tensor{x}})
				if remote, ok := errors.AsType[*shiva.RemoteError](err); ok {
					answers.add(remote.Type)
					continue
				}
				if err != nil {
					answers.add(err.Error())
					return
				}
				m.Release()
				answers.add("ok")
			}
		})
	}
	head := fmt.Appendf(nil, `{"inputs":[{"name":"x","datatype":"UINT8","shape":[1,%d],"parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`, row, row)
	for range 32 {
		clients.Go(func() {
			for ctx.Err() == nil {
				answers.add(s.post("big", head, io.MultiReader(bytes.NewReader(head), bytes.NewReader(data)),
					len(head)+row))
			}
		})
	}
	clients.Wait()
	t.Logf("answers: %v, %d bombs, peak %d MiB", answers.of, bombs.Load(), s.peak()>>20)
	for what, n := range answers.of {
		if what != "ok" && what != shiva.Overloaded {
			t.Errorf("%d answers %q", n, what)
		}
	}
	if answers.of["ok"] == 0 || answers.of[shiva.Overloaded] == 0 {
		t.Errorf("of three times the budget some fits and some does not: %v", answers.of)
	}
	if most := s.peak(); most > budget*5/4 {
		t.Errorf("%d MiB resident at the most, with a budget of %d MiB", most>>20, budget>>20)
	}
	var status struct {
		Shared struct{ Inputs, Outputs, Limit int64 } `json:"shared_bytes"`
	}
	if s.get("/v1/status", &status); status.Shared.Outputs == 0 || status.Shared.Inputs > status.Shared.Limit {
		t.Errorf("shared memory has no part in it: %+v", status.Shared)
	}
	if what := s.post("big", head, io.MultiReader(bytes.NewReader(head), bytes.NewReader(data)),
		len(head)+row); what != "ok" {
		t.Errorf("afterwards: %s", what)
	}
}

// Clients that send 30 KB each, which together unpack to nearly twice the budget, do not affect
// another client: none of its requests is refused.
func TestE2EUnpacking(t *testing.T) {
	s := start(t, strings.Replace(memoryConfig, "200MiB", "400MiB", 1))
	s.big(t)
	bomb := unfinished(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var throwing sync.WaitGroup
	bombs := s.throw(ctx, bomb, &throwing)
	data := bytes.Repeat([]byte("0123456789abcdef"), row/16)
	head := fmt.Appendf(nil, `{"inputs":[{"name":"x","datatype":"UINT8","shape":[1,%d],"parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`, row, row)
	answers := tally{of: map[string]int{}}
	var others sync.WaitGroup
	for range 16 { // a third of the budget
		others.Go(func() {
			for ctx.Err() == nil {
				answers.add(s.post("big", head, io.MultiReader(bytes.NewReader(head), bytes.NewReader(data)),
					len(head)+row))
			}
		})
	}
	others.Wait()
	throwing.Wait()
	t.Logf("answers: %v beside %d bombs, peak %d MiB", answers.of, bombs.Load(), s.peak()>>20)
	if answers.of["ok"] == 0 || len(answers.of) > 1 || bombs.Load() < 24 {
		t.Errorf("others' answers: %v beside %d bombs", answers.of, bombs.Load())
	}
	if most := s.peak(); most > 400<<20*5/4 {
		t.Errorf("%d MiB resident at the most, with a budget of 400 MiB", most>>20)
	}
}

// A default budget that does not fit into the cgroup is lowered, and the log has both figures; a
// configured one that does not fit is an error.
func TestE2EMemoryOfCgroup(t *testing.T) {
	g, err := newCgroup(t, 260<<20)
	if err != nil {
		t.Log(err)
		return
	}
	s := start(t, "", g.inside()...)
	if !s.logs("WARN", "limits.payload_bytes is 200MiB instead of 4GiB", "260MiB", g.dir) {
		t.Error("the log does not say that less memory is used, and why")
	}
	var status struct {
		Payload struct{ Limit int64 } `json:"payload_bytes"`
		Shared  struct{ Limit int64 } `json:"shared_bytes"`
	}
	if s.get("/v1/status", &status); status.Payload.Limit != 200<<20 || status.Shared.Limit != 100<<20 {
		t.Errorf("the budget is %d, that of the arena %d", status.Payload.Limit, status.Shared.Limit)
	}
	file := filepath.Join(t.TempDir(), "x.toml")
	if err := os.WriteFile(file, []byte("[limits]\nmessage_bytes = \"256MiB\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("sh", append(g.inside()[1:], binary(t, "shivad"), "--config", file, "--admin", "")...).
		CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 ||
		!strings.Contains(string(out), "200MiB is below limits.message_bytes, 256MiB") ||
		!strings.Contains(string(out), "260MiB") {
		t.Errorf("messages that do not fit: %v\n%s", err, out)
	}
}

// post sends a request over HTTP, and returns the error's type, or "ok".
func (s *shivad) post(model string, head []byte, body io.Reader, length int) string {
	q, err := http.NewRequest("POST", "http://"+s.rest+"/v2/models/"+model+"/infer", body)
	if err != nil {
		return err.Error()
	}
	q.ContentLength = int64(length)
	q.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(head)))
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		_, err := io.Copy(io.Discard, resp.Body)
		if err != nil {
			return err.Error()
		}
		return "ok"
	}
	var reply struct{ Error string }
	_ = json.NewDecoder(resp.Body).Decode(&reply)
	if resp.StatusCode == http.StatusTooManyRequests {
		return shiva.Overloaded
	}
	return reply.Error
}

// unfinished returns a request of 30 KB whose gzip body unpacks to 30 MB and has not ended.
func unfinished(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(bytes.Repeat([]byte(" "), 30<<20)); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return fmt.Appendf(nil, "POST /v2/models/big/infer HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n",
		b.Len(), b.Bytes())
}

// throw keeps 24 connections with such a request each, until ctx ends. A refused one is sent again.
func (s *shivad) throw(ctx context.Context, bomb []byte, clients *sync.WaitGroup) *atomic.Int64 {
	sent := new(atomic.Int64)
	for range 24 {
		clients.Go(func() {
			for ctx.Err() == nil {
				c, err := new(net.Dialer).DialContext(ctx, "tcp", s.rest)
				if err != nil {
					return
				}
				end, _ := ctx.Deadline()
				_ = c.SetDeadline(end)
				_, _ = c.Write(bomb)
				sent.Add(1)
				_, _ = io.ReadFull(c, make([]byte, 12)) // a refusal, or the time is over
				c.Close()
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	return sent
}
