//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// sharer is a client in Python that sends a request with shared memory, and waits to be killed.
const sharer = `
import os, sys, threading
import numpy as np
from shiva_client import Client
client = Client(os.environ["SHIVA_TCP"], shared_memory=64 << 20)
array = np.ones((512, 512), np.float64)
assert (client.infer("echo_fp64", array)["x"] == 1).all() and (client.infer("echo_fp64", array)["x"] == 1).all()
print("shares", flush=True)
threading.Event().wait()
`

// TestE2ESharer is the same in Go, when TestE2ERegionsOfTheKilled runs it.
func TestE2ESharer(t *testing.T) {
	if os.Getenv("SHIVA_SHARER") == "" {
		t.Log("it is run as a process of TestE2ERegionsOfTheKilled")
		return
	}
	c, err := shiva.Dial(t.Context(), os.Getenv("SHIVA_TCP"), shiva.WithSharedMemory(64<<20))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		x := tensor.Tensor{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{1, 1 << 20}, Data: make([]byte, 1<<20)}
		m, err := c.Infer(t.Context(), "echo_uint8", x)
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
	}
	if err := c.Shared(); err != nil {
		t.Fatal(err)
	}
	fmt.Println("shares")
	time.Sleep(time.Hour) // without a timer, Go would report a deadlock once the server has ended
}

// connectionsTo counts the sockets of this machine that are connected to addr, or not yet closed
// although their peer is.
func connectionsTo(t *testing.T, addr string) (n int) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	to := netip.MustParseAddrPort(addr)
	for line := range strings.Lines(string(table)) {
		// 0: 0100007F:AFC8 0100007F:181E 01 ...: the remote port in hexadecimal digits, the state.
		f := strings.Fields(line)
		const established, closeWait = "01", "08"
		if strings.HasSuffix(f[2], fmt.Sprintf(":%04X", to.Port())) && (f[3] == established || f[3] == closeWait) {
			n++
		}
	}
	return n
}

// Killed clients and a killed server leave nothing in shared memory, and the server keeps no region
// of a client that has disconnected.
func TestE2ERegionsOfTheKilled(t *testing.T) {
	const shared = "[shared_memory]\ndirectory = \"/dev/shm\"\n"
	s := start(t, shared)
	s.script("sdk_models.py")
	s.waitReplicas("echo_fp64", 1)
	s.waitReplicas("echo_uint8", 1)
	begin := func(name string, args ...string) *exec.Cmd {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Env = append(s.env(), "SHIVA_SHARER=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "shares\n" {
			t.Fatalf("%s: %q %v", name, line, err)
		}
		return cmd
	}
	regions := func() int {
		a, err := http.Get("http://" + s.rest + "/v2/systemsharedmemory/status")
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		text, err := io.ReadAll(a.Body)
		if err != nil || a.StatusCode != http.StatusOK {
			t.Fatal(a.Status, err)
		}
		return strings.Count(string(text), `"key"`)
	}
	left := func(clients ...*exec.Cmd) {
		t.Helper()
		for _, cmd := range clients {
			if names, _ := filepath.Glob(fmt.Sprintf("/dev/shm/shiva-%d-*", cmd.Process.Pid)); len(names) > 0 {
				t.Errorf("left behind: %q", names)
			}
		}
	}
	inPython := []string{python(t), "-c", sharer}
	inGo := []string{os.Args[0], "-test.run=^TestE2ESharer$"}
	clients := []*exec.Cmd{begin(inPython[0], inPython[1:]...), begin(inGo[0], inGo[1:]...)}
	if n := regions(); n != len(clients) {
		t.Errorf("%d clients have %d regions", len(clients), n)
	}
	for _, cmd := range clients {
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
	budgettest.Until(t, "the regions to go", func() bool { return regions() == 0 })
	left(clients...)
	clients = []*exec.Cmd{begin(inPython[0], inPython[1:]...), begin(inGo[0], inGo[1:]...)}
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Now they may react, for example by closing their connections.
	budgettest.Until(t, "the clients to notice", func() bool { return connectionsTo(t, s.tcp) == 0 })
	for _, cmd := range clients {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	left(clients...)
}
