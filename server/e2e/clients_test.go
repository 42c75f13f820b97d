//go:build e2e

package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/certtest"
)

// Our clients with a server whose doors speak only TLS: shivactl, which contains the client in Go,
// at each door, and the client in Python.
func TestE2EClientsOverTLS(t *testing.T) {
	authority := certtest.New(t, "authority")
	issue, dir := authority.Server(nil), t.TempDir()
	certtest.Write(t, dir, "cert.pem", issue.Cert, "key.pem", issue.Key)
	ca := certtest.Write(t, dir, "ca.pem", authority.PEM(), "shivad.toml", []byte(config(t, digits)+"\n[tls]\ncert = \"cert.pem\"\nkey = \"key.pem\"\n"))[0]
	args := []string{binary(t, "shivad"), "--config", filepath.Join(dir, "shivad.toml"), "--log-format", "json",
		"--containers", "127.0.0.1:0"}
	for _, door := range []string{"tcp", "rest", "grpc", "admin"} {
		args = append(args, "--"+door, "tls://127.0.0.1:0")
	}
	s := startWith(t, args)
	shivactl := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(binary(t, "shivactl"), append(args, "--tls-ca", ca, "--timeout", "20s")...).
			CombinedOutput()
		if err != nil {
			t.Errorf("shivactl %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	images, err := filepath.Glob(filepath.Join(root(t), "examples", "digits", "images", "*.png"))
	if err != nil || len(images) == 0 {
		t.Fatal("no images of digits", err)
	}
	budgettest.Until(t, "an answer", func() bool {
		return exec.Command(binary(t, "shivactl"), "infer", "digits", images[0], "--addr", s.tcp, "--tls-ca", ca).
			Run() == nil
	})
	if models := shivactl("models", "--admin", s.admin); !strings.Contains(models, "digits") {
		t.Errorf("the models: %s", models)
	}
	for door, addr := range map[string]string{"tcp": s.tcp, "rest": s.rest, "grpc": s.grpc} {
		var report struct{ Answered, Failed, Unanswered int64 }
		out := shivactl("bench", "digits", "--door", door, "--addr", addr, "--conns", "3", "--for", "300ms", "--json")
		if err := json.Unmarshal([]byte(out), &report); err != nil || report.Answered == 0 ||
			report.Failed+report.Unanswered > 0 {
			t.Errorf("bench over %s: %v, %s", door, err, out)
		}
	}
	program := `
import sys, numpy
from shiva_client import TLS, Client
with Client(sys.argv[1], tls=TLS(ca=sys.argv[2])) as client:
    print(client.infer("digits", numpy.zeros((1, 8, 8), "u1"), timeout=20)["label"].shape)
`
	if out, err := exec.Command(python(t), "-c", program, s.tcp, ca).CombinedOutput(); err != nil ||
		strings.TrimSpace(string(out)) != "(1,)" {
		t.Errorf("the client in Python: %v, %s", err, out)
	}
}
