package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A Server is a server that is measured: its processes, the first of which is the server itself,
// and the addresses of its doors.
type Server struct {
	Group
	Dir                                string // of its programs, their output and its configuration
	TCP, REST, GRPC, Admin, Containers string
}

// NewServer chooses addresses for a server that has not started. Programs are in dir.
func NewServer(dir string) (*Server, error) {
	s := &Server{Dir: dir}
	return s, FreeAddrs(&s.TCP, &s.REST, &s.GRPC, &s.Admin, &s.Containers)
}

// Options are how a shivad is started, apart from its addresses.
type Options struct {
	Config string   // the text of its configuration file; "": it has none
	Flags  []string // more of them; the last of a name counts
	V2     bool     // the doors of V2, REST and GRPC, are open
	Unix   string   // a Unix socket of the TCP door as well; "": none
	TLS    bool     // the TCP door speaks TLS, with a certificate that Flags name
	Under  []string // the command that starts it, with its arguments; nil: none
}

// Shivad starts a shivad. It returns at once: see [Group.Await].
func Shivad(dir string, o Options) (*Server, error) {
	s, err := NewServer(dir)
	if err != nil {
		return s, err
	}
	if !o.V2 {
		s.REST, s.GRPC = "", ""
	}
	listen := s.TCP
	if o.TLS {
		listen = "tls://" + listen
	}
	if o.Unix != "" {
		listen += ",unix:" + o.Unix
	}
	args := []string{"--tcp", listen, "--rest", s.REST, "--grpc", s.GRPC, "--admin", s.Admin, "--profiling",
		"--containers", s.Containers}
	if o.Config != "" {
		file, err := os.CreateTemp(dir, "shivad-*.toml")
		if err != nil {
			return s, err
		}
		_, err = file.WriteString(o.Config)
		if err := errors.Join(err, file.Close()); err != nil {
			return s, err
		}
		args = append(args, "--config", file.Name())
	}
	return s, s.Run(o.Under, "shivad", append(args, o.Flags...)...)
}

// Run starts a program of the server's directory, by a command if under is one.
func (s *Server) Run(under []string, program string, args ...string) error {
	command := append(append([]string(nil), under...), filepath.Join(s.Dir, program))
	command = append(command, args...)
	return s.Start(s.Dir, command[0], command[1:]...)
}

// Await tries until there is no error. It fails when a process has ended, ctx ends, or within is
// over, with the error of the last try and what the processes have printed.
func (g Group) Await(ctx context.Context, within time.Duration, try func() error) error {
	for end := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		err := try()
		if err == nil {
			return nil
		}
		if ended := errors.Join(g.Alive(), ctx.Err()); ended != nil || time.Now().After(end) {
			return fmt.Errorf("%w\n%s", errors.Join(err, ended), g.Output())
		}
	}
}

// Get copies an answer of the admin door.
func (s *Server) Get(ctx context.Context, path string, to io.Writer) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Admin+path, nil)
	if err != nil {
		return err
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(a.Body)
		return fmt.Errorf("process: %s: %s: %s", path, a.Status, text)
	}
	_, err = io.Copy(to, a.Body)
	return err
}

// Metrics reads the server's metrics.
func (s *Server) Metrics(ctx context.Context) (Metrics, error) {
	var text strings.Builder
	if err := s.Get(ctx, "/metrics", &text); err != nil {
		return nil, err
	}
	m := Metrics{}
	for line := range strings.Lines(text.String()) {
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		if err != nil {
			return nil, fmt.Errorf("process: a metric is %q: %w", line, err)
		}
		m[line[:at]] = v
	}
	return m, nil
}

// Metrics are the values of a server's metrics, by their names with labels.
type Metrics map[string]float64

// By adds up the values of a metric by the value of one of its labels.
func (m Metrics) By(metric, label string) map[string]float64 {
	labelled := regexp.MustCompile(`^` + metric + `\{(?:.*,)?` + label + `="([^"]*)"`)
	sums := map[string]float64{}
	for name, v := range m {
		if found := labelled.FindStringSubmatch(name); found != nil {
			sums[found[1]] += v
		}
	}
	return sums
}
