//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/certtest"
)

// Clients with their own TLS libraries get the same bytes as plain ones: Python's ssl, openssl,
// curl, Triton's over HTTP and gRPC, and ours in Python, which asks a container in Python that has
// connected over TLS. Each shows a certificate; without one no client is answered and no container
// registers. A SIGHUP replaces the server's certificate.
func TestE2ETLS(t *testing.T) {
	dir := t.TempDir()
	authority := certtest.New(t, "authority")
	first, client := authority.Server(nil), authority.Client("camera", nil)
	certtest.Write(t, dir, "ca.pem", authority.PEM(), "server.pem", first.Cert, "server.key", first.Key, "client.pem",
		client.Cert, "client.key", client.Key)
	file := filepath.Join(dir, "shivad.toml")
	text := config(t, digits) + `
[tls]
cert = "server.pem"
key = "server.key"
client_ca = "ca.pem"
client_auth = "required"
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	const both = "127.0.0.1:0,tls://127.0.0.1:0"
	s := startWith(t, []string{binary(t, "shivad"), "--config", file, "--log-format", "json",
		"--containers", both, "--admin", "127.0.0.1:0", "--tcp", both, "--rest", both, "--grpc", both})
	s.containers, s.sockets["containers"], _ = strings.Cut(s.containers, ",")
	at := func(name string) string { return filepath.Join(dir, name) }
	serves := func(name string, more ...string) {
		s.run("env",
			append(append([]string{"SHIVA_SERVERS=" + s.sockets["containers"], "SHIVA_TLS_CA=" + at("ca.pem")},
				more...), python(t), "server/e2e/python/tls_model.py", name)...)
	}
	serves("encrypted", "SHIVA_TLS_CERT="+at("client.pem"), "SHIVA_TLS_KEY="+at("client.key"))
	serves("stranger")
	s.waitReplicas("digits", 1)
	s.waitReplicas("encrypted", 1)
	budgettest.Until(t, "a container without a certificate to be refused", func() bool {
		return s.logs("connection ended before it registered", "client didn't provide a certificate")
	})
	s.waitReplicas("stranger", 0)
	ask := func() {
		t.Helper()
		cmd := exec.Command(python(t), "server/e2e/python/tls_clients.py", dir)
		cmd.Env, cmd.Dir = s.env(), root(t)
		for door, addr := range s.sockets {
			cmd.Env = append(cmd.Env, "SHIVA_TLS_"+strings.ToUpper(door)+"="+strings.TrimPrefix(addr, "tls://"))
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	ask()
	second := authority.Server(nil)
	certtest.Write(t, dir, "server.pem", second.Cert, "server.key", second.Key)
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the new certificate", func() bool { return s.logs("certificates reloaded", `"door":"grpc"`) })
	ask()
	certtest.Write(t, dir, "server.key", first.Key)
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the refusal", func() bool { return s.logs("the configuration was not reloaded", "server.key does not fit") })
	ask()
}
