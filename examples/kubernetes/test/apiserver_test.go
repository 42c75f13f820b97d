package kubernetes

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// adminToken is the token of a member of system:masters.
const adminToken = "administrator"

// An apiserver is a kube-apiserver with an etcd of its own. It can be stopped, frozen and restarted
// at its address, to play an unreachable or slow one.
type apiserver struct {
	t       testing.TB
	dir     string
	port    int
	etcd    string // its address
	store   *exec.Cmd
	process *exec.Cmd
}

// theServer is shared by tests that leave namespaces of their own behind.
var theServer struct {
	once sync.Once
	*apiserver
	dir string
}

// shared is the apiserver of all tests, with the CRDs.
func shared(t *testing.T) *apiserver {
	t.Helper()
	theServer.once.Do(func() {
		dir, err := os.MkdirTemp("", "apiserver")
		if err != nil {
			t.Fatal(err)
		}
		theServer.dir = dir
		theServer.apiserver = begin(t, dir)
	})
	if theServer.apiserver == nil {
		t.Fatal("the apiserver did not start, as an earlier test says")
	}
	return theServer.apiserver
}

// newServer returns an apiserver that a test may stop.
func newServer(t *testing.T) *apiserver {
	t.Helper()
	s := begin(t, t.TempDir())
	t.Cleanup(s.end)
	return s
}

// begin starts etcd and an apiserver, and installs the CRDs.
func begin(t *testing.T, dir string) *apiserver {
	t.Helper()
	s := &apiserver{t: t, dir: dir, port: freePort(t)}
	s.startEtcd()
	s.start()
	installCRDs(t, s)
	return s
}

func TestMain(m *testing.M) {
	code := m.Run()
	if theServer.apiserver != nil {
		theServer.end()
	}
	if theServer.dir != "" {
		os.RemoveAll(theServer.dir)
	}
	os.Exit(code)
}

func (s *apiserver) startEtcd() {
	s.t.Helper()
	s.etcd = local(s.t)
	cmd := exec.Command(built(s.t, "k8s/kube-apiserver"), "etcd", filepath.Join(s.dir, "etcd"), s.etcd, local(s.t))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.store = cmd
}

func local(t testing.TB) string { return fmt.Sprintf("http://127.0.0.1:%d", freePort(t)) }

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// built is the path of a program that "make k8s" builds.
func built(t testing.TB, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../../bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: \"make k8s\" builds it", err)
	}
	return path
}

// start starts the server, and waits until it serves.
func (s *apiserver) start() {
	s.t.Helper()
	key := filepath.Join(s.dir, "accounts.key")
	if _, err := os.Stat(key); err != nil {
		writeKey(s.t, key)
	}
	tokens := filepath.Join(s.dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(adminToken+`,admin,admin,"system:masters"`+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "apiserver.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(built(s.t, "k8s/kube-apiserver"),
		"--etcd-servers="+s.etcd, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", s.port),
		"--cert-dir="+filepath.Join(s.dir, "certs"), "--token-auth-file="+tokens, "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key,
		"--service-account-signing-key-file="+key, "--service-cluster-ip-range=10.0.0.0/24")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.process = cmd
	client := http.Client{Timeout: 5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	until(s.t, "the apiserver to be ready", func() bool {
		request, _ := http.NewRequest(http.MethodGet, s.url()+"/readyz", nil)
		request.Header.Set("Authorization", "Bearer "+adminToken)
		answer, err := client.Do(request)
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}

func (s *apiserver) url() string { return fmt.Sprintf("https://127.0.0.1:%d", s.port) }

// stop ends the server.
func (s *apiserver) stop() {
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

// end ends the server for good, with its etcd.
func (s *apiserver) end() {
	s.stop()
	_ = s.store.Process.Kill()
	_ = s.store.Wait()
}

// Between freeze and thaw the server answers nothing, while its connections stay open.
func (s *apiserver) freeze() { _ = s.process.Process.Signal(syscall.SIGSTOP) }
func (s *apiserver) thaw()   { _ = s.process.Process.Signal(syscall.SIGCONT) }

// kubeconfig writes a file with which a program talks to the server, with a token.
func kubeconfig(t *testing.T, url, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: %q}}]
`, url, token)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func writeKey(t testing.TB, path string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
		0o600); err != nil {
		t.Fatal(err)
	}
}

// until waits for a condition, for ten minutes at most: the machine may have other work.
func until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("ten minutes were not enough for %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// lastLines returns the last n lines of a file, for errors.
func lastLines(path string, n int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
