package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/hosttest"
	"github.com/shivad/shivad/shiva/tensor"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// onSockets starts a server whose doors also listen on Unix sockets in a directory.
func onSockets(t *testing.T, log *slog.Logger, change func(*config.Config)) (s *Server, dir string) {
	t.Helper()
	dir = t.TempDir()
	return startLogging(t, log, func(c *config.Config) {
		for name, list := range map[string]*config.Addrs{"tcp": &c.TCP.Listen, "rest": &c.REST.Listen,
			"grpc": &c.GRPC.Listen} {
			*list = append(config.Addrs{"127.0.0.1:0"}, "unix:"+filepath.Join(dir, name))
		}
		c.Admin.Listen = "unix:" + filepath.Join(dir, "admin")
		c.Containers.Listen = append(c.Containers.Listen, "ipc://"+filepath.Join(dir, "containers"))
		if change != nil {
			change(c)
		}
	}), dir
}

// dialing returns an HTTP client that always dials one address, whatever the URL.
func dialing(t *testing.T, addr net.Addr) *http.Client {
	t.Helper()
	path, _ := unixsocket.Cut(addr.String())
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 10 * time.Second}
}

// overHTTP returns a client of the HTTP door on a Unix socket.
func overHTTP(t *testing.T, addr net.Addr) *httpClient {
	t.Helper()
	return &httpClient{base: "http://localhost", client: *dialing(t, addr)}
}

// Every door answers on TCP and on a Unix socket at the same time, and the sockets have the
// configured permissions, from their creation to the server's end.
func TestUnixSockets(t *testing.T) {
	s, dir := onSockets(t, nil, func(c *config.Config) {
		c.TCP.Socket.Mode, c.REST.Socket.Mode, c.REST.Group = "0600", "0666", strconv.Itoa(os.Getgid())
		c.Containers.Mode = "0620"
	})
	x, err := tensor.FromSlice(tensor.Shape{1, 2}, []int32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	a := s.Addrs()
	for name, ask := range map[string]func(context.Context, string, tensor.Tensor, time.Duration) (
		tensor.Tensor, error){
		"tcp": newTCP(t, a.TCP[0]).ask, "tcp, unix": newTCP(t, a.TCP[1]).ask,
		"rest": newHTTP(t, a.REST[0]).askJSON, "rest, unix": overHTTP(t, a.REST[1]).askJSON,
		"grpc": newGRPC(t, a.GRPC[0]).askRaw, "grpc, unix": newGRPC(t, a.GRPC[1]).askRaw,
	} {
		if _, err := ask(t.Context(), "echo", x, 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	resp, err := dialing(t, a.Admin).Get("http://localhost/v1/status")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var status struct{ Listen map[string]any }
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil ||
		status.Listen["admin"] != "unix:"+filepath.Join(dir, "admin") {
		t.Errorf("the status: %v, %v", status, err)
	}
	for name, want := range map[string]fs.FileMode{"tcp": 0o600, "rest": 0o666, "grpc": 0o660, "admin": 0o660, "containers": 0o620} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v; expected %v", name, info.Mode(), err, want)
		}
	}
	stop(t, s)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A common command.
func TestCurlOnASocket(t *testing.T) {
	hosttest.Need(t, "curl")
	s, dir := onSockets(t, nil, nil)
	out, err := exec.Command("curl", "-sf", "--max-time", "10", "--unix-socket", filepath.Join(dir, "rest"), "http://localhost/v2/models/echo/infer",
		"-d", `{"inputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[3,4]}]}`).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "[3,4]") {
		t.Errorf("%s, %v (on %v)", out, err, s.Addrs().REST)
	}
}

// A second server finds the socket in use, reports it, and does not disturb the first one; the
// socket of a dead server is replaced.
func TestSocketsOfOtherServers(t *testing.T) {
	s, dir := onSockets(t, nil, nil)
	second := unstarted(t, nil, func(c *config.Config) { c.TCP.Listen = config.Addrs{s.Addrs().TCP[1].String()} })
	if err := second.Start(); err == nil || !strings.Contains(err.Error(), "another server listens on this socket") ||
		!strings.Contains(err.Error(), filepath.Join(dir, "tcp")) {
		t.Errorf("the second server: %v", err)
	}
	if err := second.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	newTCP(t, s.Addrs().TCP[1])

	left := filepath.Join(t.TempDir(), "left")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	third := start(t, func(c *config.Config) { c.TCP.Listen = config.Addrs{"unix:" + left} })
	newTCP(t, third.Addrs().TCP[0])
}

// Clients on Unix sockets are told apart by user: for limits, and for the owners of streams. They
// are local, so they may load models.
func TestUsersOfSockets(t *testing.T) {
	log := new(logged)
	s, _ := onSockets(t, slog.New(slog.NewTextHandler(log, nil)), func(c *config.Config) {
		c.REST.Listen[0], c.GRPC.Listen[0] = ":0", ":0"
		c.Supervised = []config.Container{{Name: "p", Model: "m", Command: []string{"sh", "-c", "exec sleep 600"},
			Process: config.Process{Replicas: config.Fixed(1), StopTimeout: 10 * time.Second}}}
		c.TCP.ConnectionsPerAddress, c.Server.LimitLoopback = 1, true
	})
	a := s.Addrs()
	me := "uid=" + strconv.Itoa(os.Getuid())

	unload := func(c *http.Client, host string) int {
		resp, err := c.Post("http://"+host+"/v2/repository/models/m/unload", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	if got := unload(http.DefaultClient, here(a.REST[0])); got != 403 {
		t.Errorf("by a door that others reach: %d", got)
	}
	if got := unload(dialing(t, a.REST[1]), "localhost"); got != 200 {
		t.Errorf("by a Unix socket: %d", got)
	}
	if !strings.Contains(log.String(), `from="`+me+",pid="+strconv.Itoa(os.Getpid())+`" door=rest action=unload what=model name=m`) {
		t.Errorf("the log does not say who it was:\n%s", log)
	}
	_, err := newGRPC(t, a.GRPC[1]).client.RepositoryModelUnload(t.Context(),
		&pb.RepositoryModelUnloadRequest{ModelName: "m"})
	if status.Code(err) != codes.OK {
		t.Errorf("gRPC by a Unix socket: %v", err)
	}

	first := newTCP(t, a.TCP[1])
	x, err := tensor.FromSlice(tensor.Shape{1, 2}, []int32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.ask(t.Context(), "echo", x, 0); err != nil {
		t.Error(err)
	}
	path, _ := unixsocket.Cut(a.TCP[1].String())
	again, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	_ = again.SetDeadline(time.Now().Add(10 * time.Second))
	if text, err := io.ReadAll(again); err != nil || !strings.Contains(string(text), "too many connections from your user (tcp.connections_per_address = 1)") {
		t.Errorf("the user's second connection: %q, %v", text, err)
	}
	newTCP(t, a.TCP[0]) // has an address, and is another client

	// Stream names belong to a client: to one user through two doors, and to another client by an
	// address.
	frame := `{"parameters":{"stream":"cam"},"inputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[3,4]}]}`
	for i, want := range []int{1, 1, 2} {
		var err error
		switch i {
		case 0:
			_, err = first.client.Do(t.Context(),
				&shiva.Message{Namespace: "echo", Metadata: []byte(`{"stream":"cam"}`), Tensors: []tensor.Tensor{x}})
		case 1:
			_, _, err = overHTTP(t, a.REST[1]).post(t.Context(), "echo", []byte(frame), nil)
		case 2:
			c := newHTTP(t, a.REST[1])
			c.base = "http://" + here(a.REST[0])
			_, _, err = c.post(t.Context(), "echo", []byte(frame), nil)
		}
		if err != nil {
			t.Error(err)
		}
		if all := s.report.Streams("echo", 10); len(all) != 1 || all[0].Known != want {
			t.Errorf("after %d frames: %+v; expected %d streams", i+1, all, want)
		}
	}
}

// The server does not create the directory of a socket.
func TestSocketWithoutDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing", "rest")
	s := unstarted(t, nil, func(c *config.Config) { c.REST.Listen = config.Addrs{"127.0.0.1:0", "unix:" + path} })
	if err := s.Start(); !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), "rest: listen unix:"+path) {
		t.Errorf("%v", err)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}
