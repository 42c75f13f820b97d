//go:build e2e

package e2e

import (
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/certtest"
)

// What shivactl init writes is a server: its file is valid, its model answers those who have the
// token and trust the certificate, its unit is one of systemd, and SIGTERM ends it. doctor
// takes its certificate until that expires.
func TestE2EInit(t *testing.T) {
	models, dir := t.TempDir(), filepath.Join(t.TempDir(), "a cell")
	scale(t, filepath.Join(models, "double.onnx"), 2)
	t.Setenv("SHIVAD_PYTHON", python(t))
	at := func(name string) string { return filepath.Join(dir, name) }
	run := func(program string, args ...string) (string, error) {
		cmd := exec.Command(binary(t, program), args...)
		cmd.Stdin = strings.NewReader("[[1, 2]]")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	works := func(want, program string, args ...string) {
		t.Helper()
		if out, err := run(program, args...); err != nil || !strings.Contains(out, want) {
			t.Fatalf("%s %v: %v, expected %q in\n%s", program, args, err, want, out)
		}
	}
	said, err := run("shivactl", "init", dir, "--yes", "--secure", "tls", "--models", models)
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	works("", "shivad", "--config", at("shivad.toml"), "--check")
	doctor := []string{"doctor", "--config", at("shivad.toml")}
	if out, _ := run("shivactl", doctor...); !strings.Contains(out, "ok     certificates   tcp: for localhost") {
		t.Errorf("doctor:\n%s", out) // whatever it says of ports, which others may have
	}
	if analyze, err := exec.LookPath("systemd-analyze"); err == nil {
		out, err := exec.Command(analyze, "verify", "--man=no", at("shivad.service")).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("systemd-analyze verify: %v\n%s", err, out)
		}
	}

	const free = "tls://127.0.0.1:0"
	s := startWith(t, []string{binary(t, "shivad"), "--config", at("shivad.toml"), "--log-format", "json", "--tcp", free,
		"--rest", free, "--grpc", free, "--admin", "127.0.0.1:0", "--containers", "127.0.0.1:0"})
	status := []string{"status", "--admin", s.admin}
	infer := []string{"infer", "double", "-", "--addr", s.tcp, "--tls-ca", at("server.pem")}
	refused := func(want string, args ...string) {
		t.Helper()
		if out, err := run("shivactl", args...); err == nil || !strings.Contains(out, want) {
			t.Errorf("shivactl %v: %v, expected %q in\n%s", args, err, want, out)
		}
	}
	refused("none was presented", infer...)
	refused("none was presented", status...)
	t.Setenv("SHIVA_TOKEN_FILE", at("client.token"))
	refused("admin:read", status...)
	t.Setenv("SHIVA_TOKEN_FILE", at("operator.token"))
	budgettest.Until(t, "the model", func() bool {
		out, err := run("shivactl", status...)
		return err == nil && strings.Contains(out, "double/1") && !strings.Contains(out, "NOT READY")
	})
	t.Setenv("SHIVA_TOKEN_FILE", at("client.token"))
	works("4", "shivactl", infer...)
	os.Unsetenv("SHIVA_TOKEN_FILE")
	lines := strings.Split(strings.TrimSpace(said), "\n")
	ask := exec.Command("sh", "-c", lines[len(lines)-1]) // as it stands, apart from the port
	ask.Env = append(os.Environ(), "PATH="+filepath.Dir(binary(t, "shivactl"))+":"+os.Getenv("PATH"), "SHIVACTL_ADDR="+s.tcp)
	ask.Stdin = strings.NewReader("[[1, 2]]")
	if out, err := ask.CombinedOutput(); err != nil || !strings.Contains(string(out), "4") {
		t.Errorf("%s: %v\n%s", ask, err, out)
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-s.exited; err != nil {
		t.Errorf("SIGTERM: %v", err)
	}

	expired := certtest.New(t, "old").Server(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })
	certtest.Write(t, dir, "server.pem", expired.Cert, "server.key", expired.Key)
	if out, err := run("shivactl", doctor...); err == nil || !strings.Contains(out, "WRONG  certificates") ||
		!strings.Contains(out, "expired on") {
		t.Errorf("doctor: %v\n%s", err, out)
	}
	if _, err := os.Stat(at("state.db")); err != nil {
		t.Errorf("the state is not where the file has it: %v", err)
	}
}
