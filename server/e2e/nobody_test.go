//go:build e2e

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/certtest"
)

// The server and its containers do not need root, nor a place to write except that of the state and
// the Unix sockets, for all doors and TLS, changes, a restart of containers and a reload. As root
// this test runs them as user nobody, else as the user of the test, on a file system that is
// read-only except for one directory.
func TestE2ENobody(t *testing.T) {
	dir, err := os.MkdirTemp("", "shivad") // not t.TempDir, whose path is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	privileges := containers.Privileges{ReadOnly: true, Writable: []string{filepath.Join(dir, "run")}}
	if os.Geteuid() == 0 {
		privileges.User = "nobody"
	}
	for name, mode := range map[string]os.FileMode{"": 0o755, "run": 0o777} {
		if err := os.MkdirAll(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	// The user nobody may not enter every directory of a source tree.
	for _, name := range []string{"shivad", "digits-container"} {
		program, err := os.ReadFile(binary(t, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), program, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	config := `
[server]
ready_when = "models"
[state]
at = "run/state"
[tls]
cert = "cert.pem"
key = "key.pem"
[tcp]
listen = ["unix:run/shiva.sock", "tls://127.0.0.1:0"]
[rest]
listen = "unix:run/rest.sock"
[grpc]
listen = "unix:run/grpc.sock"
[admin]
listen = "unix:run/admin.sock"
[containers]
listen = "ipc://run/containers.sock"
[[container]]
name = "digits"
command = ["./digits-container"]
read_only = true
`
	authority := certtest.New(t, "authority")
	server := authority.Server(nil)
	for name, text := range map[string][]byte{"shivad.toml": []byte(config), "cert.pem": server.Cert,
		"key.pem": server.Key, "ca.pem": authority.PEM()} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s, err := containers.Supervise(containers.Command{
		Name: "shivad", Args: []string{"./shivad", "--config", "shivad.toml"}, Dir: dir, Privileges: privileges,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if p := s.Status()[0]; t.Failed() {
			t.Logf("%s, %s: %q", p.State, p.LastExit, p.LastLines)
		} else if p.Restarts > 0 || p.Forced {
			t.Errorf("shivad ended: %+v", p)
		}
	})
	var c *shiva.Client
	budgettest.Until(t, "shivad to listen", func() bool {
		c, err = shiva.Dial(context.Background(), "unix:"+filepath.Join(dir, "run", "shiva.sock"))
		return err == nil
	})
	defer c.Close()
	budgettest.Until(t, "an answer", func() bool {
		m, err := c.Do(context.Background(), image(t))
		if err == nil {
			m.Release()
		}
		return err == nil
	})
	useEveryDoor(t, dir)
	if _, err := os.Stat(filepath.Join(dir, "run", "state")); err != nil {
		t.Error(err)
	}
}

// useEveryDoor sends requests through all doors that the test has not used yet, over TLS as well,
// and makes the server change state, restart a container and reload.
func useEveryDoor(t *testing.T, dir string) {
	t.Helper()
	at := func(name string) string { return "unix:" + filepath.Join(dir, "run", name+".sock") }
	shivactl := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(binary(t, "shivactl"), append(args, "--timeout", "20s", "--json")...).CombinedOutput()
		if err != nil {
			t.Errorf("shivactl %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	for _, door := range []string{"rest", "grpc"} {
		shivactl("bench", "digits", "--door", door, "--addr", at(door), "--conns", "1", "--for", "100ms")
	}
	encrypted := regexp.MustCompile(`tls://127\.0\.0\.1:\d+`).FindString(shivactl("status", "--admin", at("admin")))
	shivactl("bench", "digits", "--addr", encrypted, "--tls-ca", filepath.Join(dir, "ca.pem"), "--conns", "1", "--for", "100ms")
	shivactl("apps", "create", "kept", "--model", "digits", "--admin", at("admin"))
	shivactl("containers", "restart", "digits", "--admin", at("admin"))
	shivactl("reload", "--admin", at("admin"))
}
