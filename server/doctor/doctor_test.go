package doctor

import (
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/certtest"
)

// closed has no open addresses, so that tests disturb nobody; settings go below it.
const closed = `tcp.listen = "127.0.0.1:0"
rest.listen = []
grpc.listen = []
admin.listen = ""
containers.listen = "127.0.0.1:0"
`

// A patient is a machine with a configuration, to which a test gives a fault.
type patient struct {
	*testing.T
	dir     string // of the file and what it names
	machine machine
	text    string
}

func (p *patient) add(settings string) { p.text += strings.ReplaceAll(settings, "DIR", p.dir) + "\n" }

func (p *patient) write(name, text string, mode os.FileMode) string {
	path := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		p.Fatal(err)
	}
	return path
}

// encrypted gives the TCP door a certificate.
func (p *patient) encrypted(listen string, change func(*x509.Certificate)) {
	one := certtest.New(p, "test").Server(change)
	certtest.Write(p, p.dir, "cert.pem", one.Cert, "key.pem", one.Key)
	p.text = strings.Replace(p.text, `"127.0.0.1:0"`, `"`+listen+`"`, 1)
	p.add("tls = { cert = \"cert.pem\", key = \"key.pem\" }")
}

// python makes a program that stands for Python: it has the package shiva-container, and says why
// it has not what else is imported.
func (p *patient) python(lacks string) {
	p.write("python", `#!/bin/sh
case "$2" in "import shiva_container.files") exit 0;; esac
echo "`+lacks+`" >&2
exit 1
`, 0o700)
	p.write("m.onnx", "", 0o600)
}

func (p *patient) gpu(files ...string) {
	for _, name := range files {
		p.write(name, "", 0o600)
	}
	p.machine.root = p.dir
	p.write("good", "#!/bin/sh\n", 0o700)
	p.write("m.onnx", "", 0o600)
}

func (p *patient) examine() admin.Diagnosis {
	return examine(p.Context(), p.write("shivad.toml", p.text, 0o600), p.machine)
}

func newPatient(t *testing.T) *patient {
	return &patient{t, t.TempDir(), machine{t.TempDir(), time.Now}, closed}
}

// openFiles limits the descriptors of this process until the test ends.
func (p *patient) openFiles(n uint64) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		p.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: was.Max}); err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was) })
}

// dead returns an address at which nobody listens.
func (p *patient) dead() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.Fatal(err)
	}
	l.Close()
	return l.Addr().String()
}

// plants are faults, the check that finds each, and a part of what it says and of the remedy.
var plants = map[string]struct {
	plant               func(p *patient)
	check, text, remedy string
}{
	"a misspelled setting": {func(p *patient) { p.add("tcp.conections = 5") },
		"configuration", "shivad.toml:6:5: tcp.conections", "--check"},
	"a port that another program has": {func(p *patient) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			p.Fatal(err)
		}
		p.Cleanup(func() { l.Close() })
		p.machine.root = "/"
		p.add("[frigate]\nlisten = \"" + l.Addr().String() + "\"")
	}, "ports", "address already in use", "(process "},
	"an address of another machine": {func(p *patient) { p.add("[frigate]\nlisten = \"192.0.2.1:7777\"") },
		"ports", "cannot assign", `frigate.listen = ":7777"`},
	"a socket without a folder": {func(p *patient) { p.add("[frigate]\nlisten = \"unix:DIR/no/s\"") },
		"ports", "no such file", "install -d"},
	"too few descriptors": {func(p *patient) { p.openFiles(80) }, "descriptors", "limit of 80 open files", "LimitNOFILE="},
	"too little memory": {func(p *patient) {
		was := debug.SetMemoryLimit(512 << 20)
		p.Cleanup(func() { debug.SetMemoryLimit(was) })
		p.Setenv("GOMEMLIMIT", "512MiB")
		p.add("limits = { payload_bytes = \"1GiB\", message_bytes = \"1GiB\" }")
	}, "memory", "GOMEMLIMIT", "MemoryMax="},
	"a clock that was never set": {func(p *patient) { p.machine.now = func() time.Time { return time.Unix(9, 0) } },
		"clock", "1970-01-01", "timedatectl"},
	"an expired certificate": {func(p *patient) {
		p.encrypted("tls://127.0.0.1:0", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })
	}, "certificates", "expired on", "replace the file"},
	"a certificate that soon expires": {func(p *patient) {
		p.encrypted("tls://127.0.0.1:0", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(time.Hour) })
	}, "certificates", "tcp: it expires on", "renew"},
	"the key of another certificate": {func(p *patient) {
		p.encrypted("tls://127.0.0.1:0", nil)
		certtest.Write(p, p.dir, "key.pem", certtest.New(p, "other").Server(nil).Key)
	}, "certificates", "does not fit", "replace the file"},
	"a certificate for another host": {func(p *patient) { p.encrypted("tls://127.0.0.2:0", nil) },
		"certificates", "127.0.0.2", "with that name"},
	"a certificate without names": {func(p *patient) {
		p.encrypted("tls://127.0.0.1:0", func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = nil, nil })
	}, "certificates", "no names", "subjectAltName=DNS:"},
	"a Redis that does not run": {func(p *patient) { p.add("state.at = \"redis://" + p.dead() + "/0\"") },
		"state", "connection refused", "check the address in state.at"},
	"a state without a folder": {func(p *patient) { p.add("state.at = \"DIR/no/state.db\"") },
		"state", "no such file", "install -d"},
	"a state that is something else": {func(p *patient) {
		p.write("state.db", strings.Repeat("no", 1<<15), 0o600)
		p.add("state.at = \"DIR/state.db\"")
	}, "state", "state.db", "move it away"},
	"a program that is not there": {func(p *patient) {
		p.add("[[container]]\nname = \"a\"\ncommand = [\"./nobody\"]")
	}, "containers", "nobody", "install it"},
	"a container that does not run": {func(p *patient) {
		p.add("[[container]]\nname = \"a\"\nrpc = \"v0\"\nmodel = \"a\"\nversion = \"1\"\ninput = \"doubles\"")
		p.add("address = \"tcp://" + p.dead() + "\"")
	}, "containers", "refused", "start it"},
	"a model file that is not there": {func(p *patient) { p.add("[[model_file]]\npath = \"no.onnx\"") },
		"model files", "no such file", "model_file[0]"},
	"a Python without the package": {func(p *patient) {
		p.write("python", "#!/bin/sh\necho No module named shiva_container >&2\nexit 1\n", 0o700)
		p.write("m.onnx", "", 0o600)
		p.add("[[model_file]]\npath = \"m.onnx\"\npython = \"DIR/python\"")
	}, "model files", "No module named", "python -m pip install 'shiva-container[onnx]'"},
	"a Python without what reads the file": {func(p *patient) {
		p.python("No module named onnxruntime")
		p.add("[[model_file]]\npath = \"m.onnx\"\npython = \"DIR/python\"")
	}, "model files", "onnxruntime", "python -m pip install 'shiva-container[onnx]'"},
	"a GPU that is not there": {func(p *patient) {
		p.gpu()
		p.add("[[model_file]]\npath = \"m.onnx\"\npython = \"DIR/good\"\ndevice = \"cuda:0\"")
	}, "gpu", "no GPU", "--gpus all"},
	"a GPU that is hidden": {func(p *patient) {
		p.gpu("proc/driver/nvidia/gpus/0")
		p.add("[[model_file]]\npath = \"m.onnx\"\npython = \"DIR/good\"\ndevice = \"cuda:0\"")
	}, "gpu", "nvidiactl", "PrivateDevices=no"},
	"a GPU too many": {func(p *patient) {
		p.gpu("proc/driver/nvidia/gpus/0", "dev/nvidiactl")
		p.add("[[model_file]]\npath = \"m.onnx\"\npython = \"DIR/good\"\ndevice = [\"cuda:0\", \"cuda:1\"]")
	}, "gpu", `"cuda:1"`, "cuda:0"},
}

// A planted fault is found by its check alone, and the remedy names what mends it.
func TestFaults(t *testing.T) {
	for name, c := range plants {
		t.Run(name, func(t *testing.T) {
			p := newPatient(t)
			c.plant(p)
			r := p.examine()
			wrong := 0
			for _, f := range r.Findings {
				if f.Verdict != admin.Wrong {
					continue
				}
				wrong++
				if f.Check != c.check || !strings.Contains(f.Text, c.text) || !strings.Contains(f.Remedy, c.remedy) {
					t.Errorf("expected of %s: %q, mended by %q; got %+v", c.check, c.text, c.remedy, f)
				}
			}
			if wrong != 1 || r.Wrong != 1 {
				t.Errorf("expected one fault, got %d (%d): %+v", wrong, r.Wrong, r.Findings)
			}
		})
	}
}

// A machine without a fault has a finding of every check, and none is wrong.
func TestHealthy(t *testing.T) {
	p := newPatient(t)
	p.encrypted("tls://127.0.0.1:0", nil)
	p.write("good", "#!/bin/sh\n", 0o700)
	p.write("m.onnx", "", 0o600)
	p.add("state.at = \"DIR/state.db\"")
	p.add("[[model_file]]\npath = \"m.onnx\"\npython = \"DIR/good\"")
	p.add("[[container]]\nname = \"a\"\ncommand = [\"./good\"]\ndir = \"DIR\"")
	r := p.examine()
	seen := map[string]bool{}
	for _, f := range r.Findings {
		if seen[f.Check] = true; f.Verdict == admin.Wrong {
			t.Errorf("%+v", f)
		}
	}
	if r.Wrong != 0 || len(seen) != 11 {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(filepath.Join(p.dir, "state.db")); err == nil {
		t.Error("it made the file of the state")
	}
}

// What has fewer descriptors than configured is named, and nothing else: with 240 for clients,
// containers and regions, an eighth for each door, and a quarter for containers.
func TestFewDescriptors(t *testing.T) {
	p := newPatient(t)
	p.openFiles(320)
	p.text = strings.Replace(p.text, "grpc.listen = []", "grpc.listen = \"127.0.0.1:0\"", 1)
	p.add("containers.sessions = 10")
	p.add("[frigate]\nlisten = \"127.0.0.1:0\"")
	for _, f := range p.examine().Findings {
		if f.Check == "descriptors" {
			want := "enough here for 170 of 65536 tcp.connections, 30 of 1024 grpc.connections, 30 of 256 frigate.connections"
			if f.Verdict != admin.Note || f.Text != want {
				t.Errorf("%+v, expected %q", f, want)
			}
			return
		}
	}
	t.Error("nothing is said of descriptors")
}

// The ports and the state of a shivad that runs are no faults, also where its processes cannot be
// seen.
func TestRunning(t *testing.T) {
	p := newPatient(t)
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/livez" {
			_, _ = w.Write([]byte(`{"live":true}`))
		}
	}))
	t.Cleanup(admin.Close)
	p.text = strings.Replace(p.text, `admin.listen = ""`, `admin.listen = "`+admin.Listener.Addr().String()+`"`, 1)
	p.write("state.db", "which the server holds", 0o600)
	p.add("state.at = \"DIR/state.db\"")
	if r := p.examine(); r.Wrong != 0 {
		t.Errorf("%+v", r.Findings)
	}
	admin.Config.Handler = http.NotFoundHandler() // another program
	if r := p.examine(); r.Wrong != 2 {
		t.Errorf("expected the port and the state, got %+v", r.Findings)
	}
}

// Inside a container whose configuration starts nothing, an address of its loopback reaches nobody.
func TestDockerLoopback(t *testing.T) {
	p := newPatient(t)
	p.machine.root = p.dir
	p.write(".dockerenv", "", 0o600)
	for _, f := range p.examine().Findings {
		if f.Check == "containers" && (f.Verdict != admin.Note || f.Remedy != `containers.listen = "0.0.0.0:0"`) {
			t.Errorf("%+v", f)
		}
	}
}
