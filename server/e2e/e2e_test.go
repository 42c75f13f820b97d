//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/hosttest"
	"github.com/shivad/shivad/shiva/tensor"
)

// The Python peers: containers on the SDK and on the text of the old protocol, clients on the text
// of Shiva's protocol and on the reference implementation, and stock clients of the Predict
// Protocol.
func TestE2EPython(t *testing.T) {
	s := start(t, config(t, digits)+`
[containers]
listen_v1b = "127.0.0.1:0"
listen_v2 = "127.0.0.1:0"
listen_v2a = "127.0.0.1:0"
expected_within = "0s"

[shared_memory]
directory = "/dev/shm"

# Requests to it cannot be answered in time: their deadlines pass.
[model.stock_slow]
strategy = "static"
shed = false

[model.rounded]
cast = "nearest"

[route.info]
to = "cells/latest"
[route.inference]
to = "info"
stream = "belt-3"
[route.change-format]
to = "inference"
`)
	cmd := exec.Command(python(t), "-m", "pytest", "-q", "-x", "server/e2e/python")
	cmd.Env, cmd.Dir = s.env(), root(t)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Log(lastLine(out))
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

const digits = `
[[container]]
name = "digits"
command = ["./bin/digits-container"]
dir = "` + "ROOT" + `"
`

// settled has a server treat unknown models as it does some seconds after its start.
const settled = "\n[containers]\nexpected_within = \"0s\"\n"

// A drain under load: every request that was sent has an answer, the process exits cleanly by
// itself, and the port can be used again at once.
func TestE2EDrainUnderLoad(t *testing.T) {
	s := start(t, config(t, digits))
	s.waitReplicas("digits", 1)
	address := s.tcp
	var asked, good, refused, broken, unanswered atomic.Int64
	var stopping atomic.Bool // SIGTERM may have been sent
	var clients sync.WaitGroup
	for range 8 {
		c := s.client()
		for range 8 {
			clients.Go(func() {
				for {
					asked.Add(1)
					before := !stopping.Load()
					m, err := c.Do(context.Background(), image(t))
					var remote *shiva.RemoteError
					call, lost := errors.AsType[*shiva.CallError](err)
					switch {
					case err == nil:
						good.Add(1)
						m.Release()
					case errors.As(err, &remote) && remote.Type == shiva.Draining:
						refused.Add(1)
						return
					case lost && call.MayHaveRun && before:
						unanswered.Add(1)
						return
					default:
						// The connection ended between two requests of this goroutine: the server
						// had answered every request. The client reports that by refusing requests
						// that it could not send.
						broken.Add(1)
						return
					}
				}
			})
		}
	}
	budgettest.Until(t, "the load is there", func() bool { return good.Load() >= 1000 })
	stopping.Store(true)
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-s.exited:
		s.exited <- err
		if err != nil {
			t.Errorf("shivad ended with %v", err)
		}
	case <-time.After(31 * time.Second):
		t.Fatal("shivad still runs 31 s after SIGTERM")
	}
	clients.Wait()
	if good.Load() == 0 {
		t.Error("no request was served")
	}
	if n := unanswered.Load(); n > 0 {
		t.Errorf("%d requests that were sent before SIGTERM are without an answer", n)
	}
	t.Logf("asked %d: %d good, %d refused as draining, %d after the end of their connection", asked.Load(), good.Load(),
		refused.Load(), broken.Load())
	again := startWith(t,
		[]string{binary(t, "shivad"), "--log-format", "json", "--tcp", address, "--rest", "", "--grpc", "",
			"--containers", "127.0.0.1:0", "--admin", "127.0.0.1:0"})
	if again.tcp != address {
		t.Errorf("expected to listen on %s again, got %s", address, again.tcp)
	}
}

// More connections than descriptors: the server survives, accepted clients are served, others are
// refused with the reason, and when clients leave, others are accepted.
func TestE2EDescriptorsRunOut(t *testing.T) {
	s := start(t, config(t, digits), "bash", "-c", `ulimit -n 256; exec "$0" "$@"`)
	s.waitReplicas("digits", 1)
	c := s.client()
	serve(t, c)
	var conns []net.Conn
	for range 1000 {
		conn, err := net.DialTimeout("tcp", s.tcp, 5*time.Second)
		if err != nil {
			t.Fatalf("after %d connections: %v", len(conns), err)
		}
		conns = append(conns, conn)
		if len(conns)%100 == 0 {
			serve(t, c)
		}
	}
	var told atomic.Int64
	var reading sync.WaitGroup
	for _, conn := range conns {
		reading.Go(func() { // ends with the connection
			b := make([]byte, 512)
			if n, _ := conn.Read(b); bytes.Contains(b[:n], []byte("Overloaded")) {
				told.Add(1)
			}
		})
	}
	budgettest.Until(t, "500 of those without a place to be told", func() bool { return told.Load() >= 500 })
	serve(t, c)
	for _, conn := range conns {
		conn.Close()
	}
	reading.Wait()
	watch := newStopwatch(t)
	for {
		c, err := shiva.Dial(context.Background(), s.tcp)
		if err == nil {
			var m *shiva.Message
			if m, err = c.Do(context.Background(), image(t)); err == nil {
				m.Release()
			}
			c.Close()
		}
		if err == nil {
			return
		}
		if watch.read() > time.Second {
			t.Fatalf("no place 1 s after the others left: %v", err)
		}
	}
}

// A container of RPC v0 does not connect: the server dials it, and dials again when it has
// disconnected.
func TestE2ECallsV0(t *testing.T) {
	var config string
	var addrs []string
	for _, kind := range []string{"ints", "doubles", "bytes", "strings"} {
		addr := hosttest.Addr(t)
		addrs = append(addrs, addr)
		config += fmt.Sprintf("[[container]]\nname = \"v0_%s\"\naddress = \"tcp://%s\"\nrpc = \"v0\"\nmodel = \"v0_%[1]s\"\nversion = \"1\"\ninput = \"%[1]s\"\n",
			kind, addr)
	}
	s := start(t, config)
	script := filepath.Join(root(t), "server/e2e/python/v0_container.py")
	first := s.run(python(t), append([]string{script}, addrs...)...)
	client := s.client()
	ask := func(model, metadata, want string, tensors ...tensor.Tensor) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		m, err := client.Do(ctx, &shiva.Message{Namespace: model, Metadata: []byte(metadata), Tensors: tensors})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Release()
		if !strings.HasPrefix(string(m.Metadata), want) || len(m.Tensors) != 1 || m.Tensors[0].DType != tensor.Float64 {
			t.Errorf("%s: %s, %v; expected %s", model, m.Metadata, m.Tensors, want)
		}
	}
	all := func() {
		t.Helper()
		ints, _ := tensor.FromSlice(tensor.Shape{2, 3}, []int32{1, -2, 3, 4, 5, 6})
		doubles, _ := tensor.FromSlice(tensor.Shape{2}, []float64{0.5, 0.25})
		bytes, _ := tensor.FromSlice(tensor.Shape{2}, []byte{200, 100})
		none, _ := tensor.FromSlice(tensor.Shape{0}, []float64{})
		for _, kind := range []string{"ints", "doubles", "bytes", "strings"} {
			s.waitReplicas("v0_"+kind, 1)
		}
		ask("v0_ints", `{"batch":true}`, `{"outputs":[2,15]`, ints)
		ask("v0_doubles", ``, `{"output":0.75`, doubles)
		ask("v0_doubles", ``, `{"output":0,`, none)
		ask("v0_bytes", ``, `{"output":300`, bytes)
		ask("v0_strings", `{"inputs":["hello","","grün"]}`, `{"outputs":[5,0,5]`)
		ask("v0_strings", `{"inputs":["`+strings.Repeat("abcd", 50000)+`"]}`, `{"outputs":[200000]`)
	}
	all()
	_ = first.Process.Kill()
	_ = first.Wait()
	s.waitReplicas("v0_ints", 0)
	s.run(python(t), append([]string{script}, addrs...)...)
	all()
}

// A container of RPC v0 cannot declare that it is not batched: the configuration does. It then gets
// one item at a time, however many wait.
func TestE2ECallsV0Unbatched(t *testing.T) {
	addr := hosttest.Addr(t)
	s := start(t, fmt.Sprintf("[model.whole]\nbatched = false\n[[container]]\nname = \"whole\"\naddress = \"tcp://%s\"\nrpc = \"v0\"\nmodel = \"whole\"\nversion = \"1\"\ninput = \"ints\"\n", addr))
	s.run(python(t), filepath.Join(root(t), "server/e2e/python/v0_container.py"), "--alone", addr)
	s.waitReplicas("whole", 1)
	client := s.client()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var asking sync.WaitGroup
	for i := range 40 { // of different lengths, and concurrently
		asking.Go(func() {
			clip, _ := tensor.FromSlice(tensor.Shape{2, i}, slices.Repeat([]int32{3}, 2*i))
			m, err := client.Do(ctx, &shiva.Message{Namespace: "whole", Tensors: []tensor.Tensor{clip}})
			if err != nil {
				t.Error(err)
				return
			}
			defer m.Release()
			if want := fmt.Sprintf(`{"output":%d`, 6*i); !strings.HasPrefix(string(m.Metadata), want) {
				t.Errorf("a clip of %s: %s, expected %s", clip.Shape, m.Metadata, want)
			}
		})
	}
	asking.Wait()
	rows, _ := tensor.FromSlice(tensor.Shape{2, 2}, []int32{1, 2, 3, 4})
	if _, err := client.Do(ctx,
		&shiva.Message{Namespace: "whole", Metadata: []byte(`{"batch":true}`), Tensors: []tensor.Tensor{rows}}); err ==
		nil || !strings.Contains(err.Error(), "one row per request") {
		t.Errorf("several rows: %v", err)
	}
	m, err := client.Do(ctx, &shiva.Message{Namespace: "v2/models/whole"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	if !strings.Contains(string(m.Metadata), `"batched":false`) {
		t.Errorf("metadata: %s", m.Metadata)
	}
}

// kill -9 of the container: its requests are answered, and the supervised process is restarted.
func TestE2EContainerKilled(t *testing.T) {
	s := start(t, config(t, digits))
	s.waitReplicas("digits", 1)
	c := s.client()
	serve(t, c)
	var status struct {
		Processes []struct{ PID int }
	}
	s.get("/v1/status", &status)
	if len(status.Processes) != 1 {
		t.Fatalf("expected one supervised process, got %v", status)
	}
	if err := syscall.Kill(status.Processes[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "an answer after the container is back", func() bool {
		m, err := c.Do(context.Background(), image(t))
		if err == nil {
			m.Release()
			return true
		}
		var remote *shiva.RemoteError
		if !errors.As(err, &remote) || remote.Type != shiva.Unavailable && remote.Type != shiva.ContainerLost {
			t.Fatalf("expected Unavailable or ContainerLost, got %v", err)
		}
		return false
	})
}

// No orphan outlives a server that was killed.
func TestE2ENoOrphans(t *testing.T) {
	s := start(t, config(t, digits))
	s.waitReplicas("digits", 1)
	var status struct {
		Processes []struct{ PID int }
	}
	s.get("/v1/status", &status)
	pid := status.Processes[0].PID
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the container to end", func() bool { return syscall.Kill(pid, 0) != nil || zombie(pid) })
}

func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// An invalid file is refused with the line and the text.
func TestE2EConfigFaults(t *testing.T) {
	for text, says := range map[string]string{
		"[tcp]\nlisten = 5":      "2",
		"[tcp]\nlisen = \"x\"":   "lisen",
		"[limits]\nrank = \"a\"": "rank",
		"[tcp]\nconnections = 0": "connections",
	} {
		file := filepath.Join(t.TempDir(), "bad.toml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(binary(t, "shivad"), "--config", file).CombinedOutput()
		if err == nil {
			t.Errorf("%q was accepted", text)
		}
		if !strings.Contains(string(out), says) || !strings.Contains(string(out), "bad.toml") {
			t.Errorf("%q: expected the file and %q in: %s", text, says, out)
		}
	}
}

func TestE2ECommandLine(t *testing.T) {
	s := start(t, config(t, digits+settled))
	s.waitReplicas("digits", 1)
	ctl := func(args ...string) string {
		t.Helper()
		args = append(args, "--addr", s.tcp, "--admin", s.admin)
		out, err := exec.Command(binary(t, "shivactl"), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("shivactl %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	images, err := filepath.Glob(filepath.Join(root(t), "examples/digits/images/*.png"))
	if err != nil || len(images) != 20 {
		t.Fatalf("expected 20 images, got %d (%v)", len(images), err)
	}
	if out := ctl(append([]string{"infer", "digits"}, images...)...); !strings.Contains(out, "scores") {
		t.Errorf("infer: %s", out)
	}
	var v any
	for _, args := range [][]string{{"infer", "digits", images[0], "--json"}, {"models", "--json"}, {"status", "--json"}} {
		if err := json.Unmarshal([]byte(ctl(args...)), &v); err != nil {
			t.Errorf("shivactl %v: not JSON: %v", args, err)
		}
	}
	out, err := exec.Command(binary(t, "shivactl"), "infer", "digit", images[0], "--addr", s.tcp).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "digits") {
		t.Errorf("an unknown model: %v, %s", err, out)
	}
}

func config(t *testing.T, text string) string {
	return strings.ReplaceAll(text, "ROOT", root(t))
}

// image returns one row for the digits model.
func image(t *testing.T) *shiva.Message {
	pixels, err := tensor.New(tensor.Uint8, tensor.Shape{8, 8}, make([]byte, 64))
	if err != nil {
		t.Fatal(err)
	}
	return &shiva.Message{Namespace: "digits", Tensors: []tensor.Tensor{pixels}}
}

func serve(t *testing.T, c *shiva.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	m, err := c.Do(ctx, image(t))
	if err != nil {
		t.Fatal(err)
	}
	m.Release()
}
