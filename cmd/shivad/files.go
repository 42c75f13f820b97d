package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/shivad/shivad/server"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/backoff"
)

// modelFiles are what "shivad serve FILE... --models DIR" serves: a [[model_file]] each, and a
// [[model_folder]].
type modelFiles struct {
	files, folders []string // absolute
	replicas       int      // of each file
	reading        config.Reading
}

// readingFlags are the flags of "shivad serve" that say how files are read. One without a value is
// a switch.
var readingFlags = []struct{ flag, value, help string }{
	{"device", "NAME", "cpu, cuda:0 or openvino:GPU; replicas take turns if you list several (default auto: the best one)"},
	{"batch", "auto|off|force|N", "whether rows may share batches, or at most N rows (default auto: tested when the model starts)"},
	{"as", "raw|TASK", "task of the network: raw, detect, segment, pose, obb or classify (default: as the file says)"},
	{"trust", "", "allow files that execute code when they are read, such as pickles"},
}

// serveHelp is the part of the help for "shivad serve".
func serveHelp() string {
	text := ""
	line := func(flag, value, help string) { text += entry("--"+flag+" "+value, help) }
	line("models", "DIR", "serve the models in a directory, and follow its changes")
	line("python", "PROGRAM", "Python that has the package shiva-container (default: the first one found)")
	line("replicas", "N", "processes for each file (default 1)")
	for _, r := range readingFlags {
		line(r.flag, r.value, r.help)
	}
	return text
}

// define adds the flags of "shivad serve".
func (m *modelFiles) define(f *flag.FlagSet) {
	m.reading = config.NewModelFile("").Reading
	f.Func("models", "", func(value string) error {
		if value == "" { // an unset variable of a shell; Abs would make it the working directory
			return errors.New("expected a directory")
		}
		path, err := filepath.Abs(value)
		m.folders = append(m.folders, path)
		return err
	})
	f.StringVar(&m.reading.Python, "python", "", "")
	f.IntVar(&m.replicas, "replicas", 1, "")
	f.Func("device", "", func(value string) error {
		m.reading.Device = strings.Split(value, ",")
		return nil
	})
	f.Func("batch", "", func(value string) error {
		m.reading.Batch = config.Batching(value)
		return nil
	})
	f.StringVar(&m.reading.As, "as", m.reading.As, "")
	f.BoolVar(&m.reading.Trust, "trust", false, "")
}

// addTo adds the files and folders to a configuration.
func (m *modelFiles) addTo(cfg *config.Config) {
	for _, path := range m.files {
		one := config.NewModelFile(path)
		one.Reading, one.Replicas = m.reading, config.Fixed(m.replicas)
		cfg.ModelFiles = append(cfg.ModelFiles, one)
	}
	for _, path := range m.folders {
		one := config.NewModelFolder(path)
		one.Reading, one.Replicas = m.reading, config.Fixed(m.replicas)
		cfg.ModelFolders = append(cfg.ModelFolders, one)
	}
}

// tell writes how to ask each model, or why it is not served, until all are ready.
func (m *modelFiles) tell(s *server.Server, out io.Writer, over <-chan struct{}) {
	a, faulty := s.Addrs(), map[string]bool{} // models that it has written about
	page := sync.OnceFunc(func() {
		if a.Admin != nil {
			fmt.Fprintf(out, "How it is doing: http://%s/\n", dialable(a.Admin))
		}
	})
	for ready := false; !ready; {
		ready, _ = s.Ready()
		for _, one := range s.ModelFiles() {
			switch was, told := faulty[one.Name]; {
			case one.Fault != "" && !told:
				fmt.Fprintln(out, one.Fault)
				page()
			case one.Fault == "" && (!told || was):
				tellServed(one, a, out)
			default:
				continue
			}
			faulty[one.Name] = one.Fault != ""
		}
		if !ready && !backoff.Wait(50*time.Millisecond, over) {
			return
		}
	}
	page()
}

// tellServed writes how to ask a model, for a shell.
func tellServed(one server.ModelFile, a server.Addrs, out io.Writer) {
	route, array := quoted(one.Name), "..."
	if strings.HasPrefix(one.Name, "-") {
		route = "-- " + route
	}
	if one.Pictures {
		array = `open("FILE", "rb").read()`
	}
	fmt.Fprintf(out, "%s is served%s.\n", one.Name, strings.TrimSuffix("; "+one.Proof, "; "))
	if a.TCP != nil {
		fmt.Fprintf(out, "  shivactl --addr %s infer %s FILE\n", dialable(a.TCP[0]), route)
	}
	if a.REST != nil {
		fmt.Fprintf(out, "  curl http://%s/v2/models/%s\n", dialable(a.REST[0]), url.PathEscape(one.Name))
	}
	if a.TCP != nil {
		fmt.Fprintf(out, "  python3 -c %s\n", quoted(fmt.Sprintf("import shiva_client; print(shiva_client.Client(%q).infer(%q, %s))",
			dialable(a.TCP[0]), one.Name, array)))
	}
}

// quoted is a word of a shell's command line.
func quoted(word string) string {
	if strings.ContainsAny(word, " \t!\"#$&'()*;<>?[\\]`{|}~") {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}

// dialable is an address that a client on this machine can use.
func dialable(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}
