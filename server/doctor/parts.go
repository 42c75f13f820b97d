package doctor

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/modelfiles"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/plural"
)

// What the configuration names besides addresses: certificates, state, containers, model files.

func (e *examination) certificates() {
	doors, err := e.cfg.Secure(nil, e.now)
	if faults, ok := errors.AsType[*config.Error](err); ok {
		for _, f := range faults.Faults {
			e.invalid(f)
		}
		return
	}
	if len(doors) == 0 {
		e.ok("none: no address has TLS")
		return
	}
	for _, door := range slices.Sorted(maps.Keys(doors)) {
		e.certificate(door, doors[door])
	}
}

// certificate examines the certificate of a door, which could be read.
func (e *examination) certificate(door string, t *listen.TLS) {
	leaf, until := t.Certificates[0].Leaf, t.Until.UTC().Format(time.RFC3339)
	names := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	faults := len(e.found)
	if t.Expiring(e.now()) {
		e.wrong("renew it, then: systemctl reload shivad", "%s: it expires on %s", door, until)
	}
	if len(names) == 0 {
		e.wrong("issue one with subjectAltName=DNS:NAME, the name that clients connect to",
			"%s: it has no names of hosts (subjectAltName): clients refuse it", door)
	}
	for _, a := range e.addresses() {
		hostport, encrypted := listen.CutTLS(a.addr)
		host, _, err := net.SplitHostPort(hostport)
		ip := net.ParseIP(host)
		every := host == "" || host == "*" || ip != nil && ip.IsUnspecified()
		if !encrypted || err != nil || !strings.HasPrefix(a.key, door+".") || every || len(names) == 0 {
			continue
		}
		if err := leaf.VerifyHostname(host); err != nil {
			e.wrong("issue one with that name, too, unless clients use another name for it", "%s: %s: %v", door, a.addr,
				err)
		}
	}
	if len(e.found) == faults {
		e.ok("%s: for %s, until %s", door, strings.Join(names, ", "), until)
	}
}

// stateWithin bounds how long a Redis may take to be read.
const stateWithin = 5 * time.Second

func (e *examination) state() {
	at := e.cfg.State.At
	switch _, err := os.Stat(at); {
	case at == "":
		e.ok("in memory: a restart forgets applications, and what they learned")
		return
	case e.cfg.State.Shared():
	case errors.Is(err, fs.ErrNotExist):
		e.stateFolder(at)
		return
	case e.running():
		e.ok("%s is in use by a shivad that runs", at)
		return
	}
	ctx, cancel := context.WithTimeout(e.ctx, stateWithin)
	defer cancel()
	s, err := state.Open(ctx, at, state.Options{Namespace: e.cfg.State.Namespace, Required: true})
	if err != nil {
		remedy := "correct state.at"
		if known, ok := errors.AsType[*state.OpenError](err); ok {
			err, remedy = known.Err, known.Remedy
		}
		e.wrong(remedy, "%v", err)
		return
	}
	_ = s.Close()
	e.ok("%s can be read", e.cfg.State.Redacted())
}

// stateFolder looks at where a new file would be.
func (e *examination) stateFolder(at string) {
	dir := filepath.Dir(at)
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		e.wrong("install -d -o shivad -g shivad "+dir, "state.at: %s cannot be written to: %v", dir, err)
		return
	}
	e.ok("%s will be made", at)
}

// containers looks at whether containers can connect, and at those that the server starts or calls.
func (e *examination) containers() {
	faults := len(e.found)
	for _, p := range e.cfg.Supervised {
		if p.Address != "" {
			network, address := "tcp", strings.TrimPrefix(p.Address, "tcp://")
			if path, isPath := strings.CutPrefix(p.Address, "ipc://"); isPath {
				network, address = "unix", path
			}
			c, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(e.ctx, network, address)
			if err != nil {
				e.wrong("start it, or correct its address", "[[container]] %s: %v", p.Name, err)
				continue
			}
			c.Close()
		} else if err := executable(p.Dir, p.Command[0]); err != nil {
			e.wrong("install it, or give command its whole path", "[[container]] %s: %v", p.Name, err)
		}
	}
	own := len(e.cfg.Supervised) + len(e.cfg.ModelFiles) + len(e.cfg.ModelFolders)
	inside := e.has(".dockerenv") || e.has("run/.containerenv")
	for _, addr := range e.cfg.Containers.Listen {
		_, hostport, found := strings.Cut(addr, "://")
		if !found {
			hostport = addr
		}
		host, port, err := net.SplitHostPort(hostport)
		ip := net.ParseIP(host)
		loopback := err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
		if loopback && own == 0 && inside {
			e.note(`containers.listen = "0.0.0.0:`+port+`"`,
				"only processes inside this Docker container can connect to %s, and the configuration starts none", addr)
		}
	}
	if len(e.found) == faults {
		e.ok("%s; all connect to %s", plural.Words(own, "is configured", "are configured"),
			strings.Join(e.cfg.Containers.Listen, ", "))
	}
}

// executable returns why a command cannot be executed in a directory.
func executable(dir, command string) error {
	if strings.Contains(command, "/") && !filepath.IsAbs(command) {
		command = filepath.Join(dir, command)
	}
	_, err := exec.LookPath(command)
	return err
}

func (e *examination) modelFiles() {
	list := modelfiles.Readers(e.cfg)
	for _, r := range list {
		err := r.Err
		if err == nil {
			err = r.Imports(e.ctx)
		}
		missing, isMissing := errors.AsType[*modelfiles.MissingError](err)
		switch {
		case isMissing:
			e.wrong(missing.Install, "%s: %s: %v", r.Key, r.Path, missing.Why)
		case err != nil:
			e.wrong("correct the path, or python, of "+r.Key, "%s: %v", r.Key, err)
		default:
			e.ok("%s: %s reads %s", r.Key, r.Python, r.Path)
		}
	}
	if len(list) == 0 {
		e.ok("none are configured")
	}
}
