package containers_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// TestChurn: a thousand connects and disconnects at full speed leave nothing behind, and a
// container serves meanwhile.
func TestChurn(t *testing.T) {
	r := newRig(t, containers.Config{Addrs: []string{"tcp://127.0.0.1:0", "ipc://" + filepath.Join(t.TempDir(), "s")}})
	good, err := containertest.Dial(t.Context(), r.Dialable()[1], echo(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer good.Close()
	r.wait(t, echoID, 1)
	each := 4 * budgettest.Rounds(64)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for k := range each {
				raw, err := net.Dial("tcp", r.Addrs()[0].String())
				if err != nil {
					t.Error(err)
					return
				}
				if k%4 == 0 {
					raw.Close()
					continue
				}
				c, err := containertest.Start(raw, churn(i))
				if err != nil {
					t.Error(err)
					return
				}
				if k%2 == 0 {
					c.Kill()
				} else {
					c.Close()
				}
			}
		})
	}
	for range 50 {
		if err := r.echoes(echoID); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	want := containers.Stats{Sessions: 1, Registered: 1, Accepted: uint64(4*each + 1), Ended: uint64(3 * each),
		Strangers: uint64(each)}
	budgettest.Until(t, fmt.Sprintf("sessions to end, so that there are %+v", want), func() bool {
		return r.Stats() == want
	})
}

func churn(i int) containertest.Model {
	m := echo(nil)
	m.Name = fmt.Sprint("churn", i)
	return m
}

// TestCrowd: unregistered peers of one host displace each other, and no peer of another host.
func TestCrowd(t *testing.T) {
	r := newRig(t,
		containers.Config{Addrs: []string{"tcp://127.0.0.1:0"},
			Settings: containers.Settings{Limits: containers.Limits{Handshakes: 4}}})
	from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	elsewhere, err := from.Dial("tcp", r.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "it to be accepted", func() bool { return r.Stats().Accepted == 1 })
	for range 10 {
		dial(t, r)
	}
	budgettest.Until(t, "the crowd to be displaced", func() bool { return r.Stats().Displaced == 7 })
	if !strings.Contains(r.log.String(), "raise containers.handshakes") {
		t.Errorf("the log does not say what to do: %s", r.log)
	}
	c, err := containertest.Start(elsewhere, echo(nil))
	if err != nil {
		t.Fatalf("it was displaced: %v", err)
	}
	c.Close()
}

// TestToldWhy: who is displaced before it has registered, during its handshake or after it, and who
// finds all connections taken, is told the limit; but only so many are told at a time, and the
// others just end.
func TestToldWhy(t *testing.T) {
	r := newRig(t,
		containers.Config{Addrs: []string{"tcp://127.0.0.1:0"},
			Settings: containers.Settings{Limits: containers.Limits{Sessions: 9, Handshakes: 2}}})
	const limit = "more than containers.handshakes = 2 connections waited to; raise containers.handshakes"
	silent := dial(t, r)
	budgettest.Until(t, "it to be accepted", func() bool { return r.Stats().Accepted == 1 })
	greeted, err := containertest.NewPeer(dial(t, r))
	if err != nil {
		t.Fatal(err)
	}
	for n := range uint64(2) {
		dial(t, r)
		budgettest.Until(t, "one to be displaced", func() bool { return r.Stats().Displaced == n+1 })
	}
	if text, err := io.ReadAll(silent); err != nil || !strings.HasSuffix(string(text), limit+" if one process serves that many models") {
		t.Errorf("during the handshake it is told %q, %v", text, err)
	}
	told := new(zmtp.PeerError)
	if _, err := greeted.Receive(); !errors.As(err, &told) || !strings.Contains(told.Reason, limit) {
		t.Errorf("after the handshake it is told %v", err)
	}
	silent.Close()
	greeted.Close()

	var crowd []net.Conn
	for n := range uint64(containers.MostParting + 5) {
		crowd = append(crowd, dial(t, r))
		budgettest.Until(t, "one to be displaced", func() bool { return r.Stats().Displaced == n+3 })
	}
	if n := r.Stats().Sessions; n > containers.MostParting+2+5 {
		t.Errorf("%d sessions", n)
	}
	for _, c := range crowd {
		c.Close()
	}
	budgettest.Until(t, "the crowd to leave", func() bool { return r.Stats().Sessions <= 2 })

	for i := range 9 {
		m := echo(nil)
		m.Name = fmt.Sprint("m", i)
		r.join(t, m)
	}
	if text, err := io.ReadAll(dial(t, r)); err != nil || !strings.HasSuffix(string(text), "containers.sessions = 9 allows") {
		t.Errorf("above the limit it is told %q, %v", text, err)
	}
}

// TestTooMany: beyond the limits connections are refused, and unregistered ones are displaced by
// new ones.
func TestTooMany(t *testing.T) {
	r := newRig(t,
		containers.Config{Addrs: []string{"tcp://127.0.0.1:0"},
			Settings: containers.Settings{Limits: containers.Limits{Sessions: 12, Handshakes: 4}}})
	var silent []net.Conn
	for range 10 {
		silent = append(silent, dial(t, r))
	}
	budgettest.Until(t, "the oldest to be displaced", func() bool { return r.Stats().Displaced == 6 })
	good, err := containertest.Dial(t.Context(), r.Dialable()[0], echo(nil))
	if err != nil {
		t.Fatalf("a container could not join among strangers: %v", err)
	}
	defer good.Close()
	var more []*containertest.Container
	for len(more) < 8 {
		c, err := containertest.Dial(t.Context(), r.Dialable()[0], echo(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		more = append(more, c)
	}
	for range 6 {
		silent = append(silent, dial(t, r))
	}
	budgettest.Until(t, "connections to be refused", func() bool { return r.Stats().Refused > 0 })
	if err := r.echoes(echoID); err != nil {
		t.Error(err)
	}
	for _, c := range silent {
		c.Close()
	}
}

// TestIPC: a socket file has its permissions. The file of a dead server is replaced; that of a live
// server and other files are not.
func TestIPC(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	r := newRig(t, containers.Config{Addrs: []string{"ipc://" + path}, Access: unixsocket.Access{Mode: 0o620}})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o620 {
		t.Errorf("the file of the socket: %v, %v", info.Mode(), err)
	}
	c, err := containertest.Dial(t.Context(), r.Dialable()[0], echo(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r.wait(t, echoID, 1)
	if err := r.echoes(echoID); err != nil {
		t.Error(err)
	}
	if _, err := containers.Listen(containers.Config{Scheduler: r.sched, Addrs: []string{"ipc://" + path}}); err ==
		nil || !strings.Contains(err.Error(), "another server") {
		t.Errorf("a second server: %v", err)
	}
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := containers.Listen(containers.Config{Scheduler: r.sched,
		Addrs: []string{"tcp://127.0.0.1:0", "ipc://" + file}}); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("an ordinary file: %v", err)
	}
}
