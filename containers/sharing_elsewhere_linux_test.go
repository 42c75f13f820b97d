package containers_test

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/shiva/hosttest"
)

// TestStrangers: a container that may not open the server's memory gets bytes, and the log says
// why.
func TestStrangers(t *testing.T) {
	if os.Getuid() != 0 {
		hosttest.Lacks(t, "this test changes its user and namespaces, as root")
	}
	for name, c := range map[string]struct {
		attr   syscall.SysProcAttr
		reason string
	}{
		"another user":      {syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}, "permission denied"},
		"another namespace": {syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}, "no such file"},
		"another namespace of users": {syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: 0, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: 0, Size: 1}},
		}, "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newSharedRig(t, containers.Config{Addrs: []string{"tcp://127.0.0.1:0"}})
			self, err := os.Open(os.Args[0])
			if err != nil {
				t.Fatal(err)
			}
			defer self.Close()
			cmd := exec.Command("/bin/sh", "-c", "[ $$ != 1 ] || { mount --make-rprivate / && mount -t proc proc /proc; }; exec /proc/self/fd/3")
			cmd.Env = append(os.Environ(), childEnv+"=sharing", benchAddrEnv+"="+r.Dialable()[0])
			cmd.ExtraFiles = []*os.File{self}
			cmd.Dir, cmd.Stderr = "/", os.Stderr
			cmd.SysProcAttr = &c.attr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				cmd.Process.Kill()
				cmd.Wait()
			})
			r.logs(t, "over the connection", c.reason)
			for i := range 5 {
				if err := r.adds(t, 1, byte(i)); err != nil {
					t.Fatal(err)
				}
			}
			if i := r.session(t); i.Arena != "" {
				t.Errorf("it goes by shared memory: %q", i.Arena)
			}
		})
	}
}

// An addressed connection reports these addresses as its ends.
type addressed struct {
	net.Conn
	local, remote net.Addr
}

func (c addressed) LocalAddr() net.Addr  { return c.local }
func (c addressed) RemoteAddr() net.Addr { return c.remote }

// TestElsewhere: a container on another machine, or one that does not request it, gets no offer.
func TestElsewhere(t *testing.T) {
	r, _ := newSharedRig(t, containers.Config{})
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 7000} }
	unix := &net.UnixAddr{Name: "@", Net: "unix"}
	for name, c := range map[string]struct {
		local, remote   net.Addr
		requests, offer bool
	}{
		"a Unix socket":               {unix, unix, true, true},
		"not requested":               {unix, unix, false, false},
		"loopback":                    {tcp("127.0.0.1"), tcp("127.0.0.1"), true, true},
		"two loopback addresses":      {tcp("127.0.0.1"), tcp("127.0.0.2"), true, true},
		"loopback of IPv6":            {tcp("::1"), tcp("::1"), true, true},
		"the same address":            {tcp("192.0.2.2"), tcp("192.0.2.2"), true, true},
		"the same address, not asked": {tcp("192.0.2.2"), tcp("192.0.2.2"), false, false},
		"another address":             {tcp("192.0.2.2"), tcp("192.0.2.3"), true, false},
		"another address of IPv6":     {tcp("2001:db8::1"), tcp("2001:db8::2"), true, false},
		"from elsewhere to loopback":  {tcp("127.0.0.1"), tcp("192.0.2.3"), true, false},
		"from loopback to elsewhere":  {tcp("192.0.2.3"), tcp("127.0.0.1"), true, false},
		"an address of no known family": {&net.IPAddr{IP: net.IPv4(127, 0, 0, 1)},
			&net.IPAddr{IP: net.IPv4(127, 0, 0, 1)}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			mine, theirs := containertest.Pipe()
			if err := r.Add(addressed{theirs, c.local, c.remote}); err != nil {
				t.Fatal(err)
			}
			p, err := containertest.NewPeer(mine)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			hello, err := json.Marshal(wire.HelloMessage{Protocol: wire.Version, Model: "sharing", Version: "1",
				Batched: new(true), Arena: c.requests,
				Inputs:  []wire.TensorMessage{{Name: "x", Datatype: "UINT8", Shape: []int{-1, mib}}},
				Outputs: []wire.TensorMessage{{Name: "y", Datatype: "UINT8", Shape: []int{-1}}}})
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Send([]byte(wire.Hello), hello); err != nil {
				t.Fatal(err)
			}
			m, err := p.Receive()
			if err != nil || string(m[0]) != wire.Welcome || strings.Contains(string(m[1]), `"arena"`) != c.offer {
				t.Errorf("%q, %v; expected an offer: %v", m, err, c.offer)
			}
			if c.offer {
				return
			}
			// An answer to no offer ends the session.
			if err := p.Send([]byte(wire.Arena), []byte(`{"segment":1}`)); err != nil {
				t.Fatal(err)
			}
			for err == nil {
				_, err = p.Receive()
			}
			r.logs(t, "gone", "arena")
		})
	}
}
