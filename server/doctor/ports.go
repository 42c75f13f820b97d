package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// An address is one on which the configuration has the server listen.
type address struct {
	key, addr string
	open      func() (net.Listener, error)
}

// addresses are all that the configuration has.
func (e *examination) addresses() (list []address) {
	add := func(key string, addrs config.Addrs, access unixsocket.Access, open listen.Opener) {
		for _, addr := range addrs {
			if addr != "" {
				list = append(list, address{key, addr, func() (net.Listener, error) { return open(addr, access) }})
			}
		}
	}
	c := e.cfg
	for _, d := range c.Doors() {
		add(d.Name+".listen", *d.Listen, d.Access(), listen.Open)
	}
	add("admin.listen", config.Addrs{c.Admin.Listen}, c.Admin.Access(), listen.Open)
	add("admin.health", config.Addrs{c.Admin.Health}, c.Admin.Access(), listen.Open)
	add("containers.listen", c.Containers.Listen, c.Containers.Access(), containers.Open)
	for _, other := range c.Containers.Others() {
		add("containers.listen_"+strings.ToLower(fmt.Sprint(other.Dialect)), config.Addrs{other.Addr},
			c.Containers.Access(), containers.Open)
	}
	return list
}

// ports opens each address for a moment. Those of a server that runs already are as they should be.
func (e *examination) ports() {
	free, used := 0, 0
	for _, a := range e.addresses() {
		l, err := a.open()
		if err == nil {
			_ = l.Close()
			free++
			continue
		}
		if e.servesThere(a.addr, err) {
			used++
			continue
		}
		e.wrong(e.openRemedy(a, err), "%s: %v", a.key, err)
	}
	switch {
	case used > 0:
		e.ok("%d are in use by a shivad that runs, %d are free", used, free)
	case free > 0:
		e.ok("%d are free", free)
	}
}

// servesThere reports whether it is a shivad that keeps an address from being opened: the process
// that has the port, or, where that is not for us to see, one that answers at the admin address.
func (e *examination) servesThere(addr string, err error) bool {
	if !errors.Is(err, syscall.EADDRINUSE) && !strings.Contains(err.Error(), "another server listens") {
		return false
	}
	if name, _ := e.holder(addr); name != "" {
		return name == "shivad"
	}
	return e.running()
}

func (e *examination) openRemedy(a address, err error) string {
	_, port, _ := net.SplitHostPort(a.addr[strings.LastIndex(a.addr, "/")+1:])
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return e.release(a.addr, port)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return a.key + ` = ":` + port + `", since this machine does not have that address`
	case errors.Is(err, fs.ErrPermission):
		return "AmbientCapabilities=CAP_NET_BIND_SERVICE in the unit, or a port above 1023; for a Unix socket, a folder in which shivad's user may write"
	case errors.Is(err, fs.ErrNotExist):
		return "make the folder: install -d -o shivad -g shivad " + filepath.Dir(strings.TrimPrefix(a.addr, "unix:"))
	}
	return "correct " + a.key
}

// Release says how to free the address of an error that says that it is in use; "": it is another
// error.
func Release(err error) string {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || !errors.Is(err, syscall.EADDRINUSE) {
		return ""
	}
	addr, ok := op.Addr.(*net.TCPAddr)
	if !ok {
		return ""
	}
	return machine{root: "/"}.release(addr.String(), strconv.Itoa(addr.Port))
}

func (m machine) release(addr, port string) string {
	if name, pid := m.holder(addr); name != "" {
		return fmt.Sprintf("%s (process %d) has it: end that, or choose another port", name, pid)
	}
	return "sudo ss -ltnp 'sport = :" + port + "' shows who has it: end that, or choose another port"
}

// holder returns the process that listens on the port of an address; "" if there is none, or it is
// not for us to see.
func (m machine) holder(addr string) (name string, pid int) {
	_, port, err := net.SplitHostPort(addr[strings.LastIndex(addr, "/")+1:])
	number, wrong := strconv.Atoi(port)
	if err != nil || wrong != nil {
		return "", 0
	}
	sockets := map[string]bool{}
	for _, table := range []string{"proc/net/tcp", "proc/net/tcp6"} {
		for line := range strings.Lines(string(m.read(table))) {
			// 0: 0100007F:1F40 00000000:0000 0A QUEUES TIMER RETRANSMITS USER TIMEOUT INODE ...
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", number)) {
				sockets["socket:["+f[9]+"]"] = true
			}
		}
	}
	links, _ := filepath.Glob(filepath.Join(m.root, "proc/[0-9]*/fd/*"))
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && sockets[to] {
			process := filepath.Dir(filepath.Dir(link))
			text, _ := os.ReadFile(filepath.Join(process, "comm"))
			pid, _ = strconv.Atoi(filepath.Base(process))
			return strings.TrimSpace(string(text)), pid
		}
	}
	return "", 0
}

// running reports whether a shivad answers at the admin address.
func (e *examination) running() bool {
	ctx, cancel := context.WithTimeout(e.ctx, 2*time.Second)
	defer cancel()
	addr, scheme := e.cfg.Admin.Listen, "http"
	if hostport, encrypted := listen.CutTLS(addr); encrypted {
		addr, scheme = hostport, "https"
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		// Nothing is told, and one bit believed.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			network, address := unixsocket.Target(addr)
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://localhost/livez", nil)
	if err != nil {
		return false
	}
	a, err := client.Do(q)
	if err != nil {
		return false
	}
	defer a.Body.Close()
	text, err := io.ReadAll(io.LimitReader(a.Body, 1<<10))
	return err == nil && strings.Contains(string(text), `"live":`)
}
