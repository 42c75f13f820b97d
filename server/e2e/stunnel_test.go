//go:build e2e

package e2e

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/certtest"
	"github.com/shivad/shivad/shiva/hosttest"
)

// Containers without TLS register and answer through stunnel, as configured on the page of
// containers, and on a Unix socket, and a client sends requests through it. All get the same bytes
// as without stunnel.
func TestE2EStunnel(t *testing.T) {
	dir := t.TempDir()
	authority := certtest.New(t, "authority")
	server, client := authority.Server(nil), authority.Client("camera", nil)
	certtest.Write(t, dir, "ca.pem", authority.PEM(), "server.pem", server.Cert, "server.key", server.Key, "camera.pem",
		client.Cert, "camera.key", client.Key,
		"shivad.toml", []byte(config(t, digits)+`
[tls]
cert = "server.pem"
key = "server.key"
client_ca = "ca.pem"
client_auth = "required"
`))
	at := func(name string) string { return filepath.Join(dir, name) }
	s := startWith(t,
		[]string{binary(t, "shivad"), "--config", at("shivad.toml"), "--log-format", "json", "--rest", "127.0.0.1:0",
			"--grpc", "", "--admin", "127.0.0.1:0",
			"--tcp", "127.0.0.1:0,tls://127.0.0.1:0", "--containers", "127.0.0.1:0,tls://127.0.0.1:0,ipc://" + at("s")})
	addrs := strings.Split(s.containers, ",")
	page, err := os.ReadFile(filepath.Join(root(t), "server", "manual", "containers.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "```text\n; stunnel.conf\n")
	text, _, ended := strings.Cut(text, "```")
	if !found || !ended || !strings.Contains(text, "[shivad]") {
		t.Fatal("the page of containers shows no stunnel.conf")
	}
	through := func(to string) string {
		own := hosttest.Addr(t)
		file := filepath.Join(t.TempDir(), "stunnel.conf")
		conf := strings.NewReplacer("127.0.0.1:7000", own, "shivad.example:7443", strings.TrimPrefix(to, "tls://"),
			"ca.pem", at("ca.pem"), "shivad.example", "localhost").Replace(text) +
			"cert = " + at("camera.pem") + "\nkey = " + at("camera.key") + "\n"
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		s.run("stunnel", file)
		budgettest.Until(t, "stunnel", func() bool {
			c, err := net.Dial("tcp", own)
			if err == nil {
				c.Close()
			}
			return err == nil
		})
		return own
	}
	ways := map[string]string{"plain": addrs[0], "tunnel": through(addrs[1]), "unix": "ipc://" + at("s")}
	for way, addr := range ways {
		for _, rpc := range []string{"v1", "v3"} {
			s.run(python(t), "server/e2e/python/legacy_container.py", rpc, addr, rpc+way, "1", "doubles")
		}
	}
	ask := func(model string) (answer []byte) {
		resp, err := http.Post("http://"+s.rest+"/"+model+"/predict", "application/json", strings.NewReader(`{"input":[0.1,0.2,0.4]}`))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		_, output, found := bytes.Cut(text, []byte(`"output"`))
		if err != nil || resp.StatusCode != http.StatusOK || !found {
			t.Fatalf("%s: %s %s", model, text, err)
		}
		return output
	}
	for _, rpc := range []string{"v1", "v3"} {
		var plain []byte
		for _, way := range []string{"plain", "tunnel", "unix"} {
			s.waitReplicas(rpc+way, 1)
			switch got := ask(rpc + way); {
			case way == "plain":
				plain = got
			case !bytes.Equal(got, plain):
				t.Errorf("%s by %s: %s, and plain %s", rpc, way, got, plain)
			}
		}
	}

	s.waitReplicas("digits", 1)
	program, err := os.ReadFile(filepath.Join(root(t), "server", "e2e", "python", "minimal_client.py"))
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(through(s.sockets["tcp"]))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(python(t), "-c", strings.Replace(string(program), "6174", port, 1)).CombinedOutput()
	if err != nil || string(out) != "4\n" {
		t.Errorf("the minimal client through stunnel: %v, %s", err, out)
	}
}
