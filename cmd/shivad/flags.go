package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/shivad/shivad/server"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/manual"
	"github.com/shivad/shivad/shiva/nearest"
)

// options are the flags as given.
type options struct {
	file           string
	version, check bool
	doctor         bool
	over           []override // in the order of the command line
	models         modelFiles // of "shivad serve"
}

// override is a flag that overrides a setting of the file.
type override struct{ flag, key, value string }

// settings are the flags that override the file. A flag without a value sets true.
var settings = []struct{ flag, key, value, help string }{
	{"tcp", "tcp.listen", "HOST:PORT,...", "endpoint of the Shiva protocol"},
	{"rest", "rest.listen", "HOST:PORT,...", "endpoint of the Predict Protocol V2 over HTTP"},
	{"grpc", "grpc.listen", "HOST:PORT,...", "endpoint of the Predict Protocol V2 over gRPC"},
	{"frigate", "frigate.listen", "HOST:PORT,...", "endpoint of Frigate's object detectors, over ZeroMQ"},
	{"containers", "containers.listen", "HOST:PORT,...", "address that model containers connect to; also ipc://PATH"},
	{"containers-v2", "containers.listen_v2", "HOST:PORT,...", "address that containers of RPC v2 connect to"},
	{"state", "state.at", "PATH|redis://...", "file or Redis that keeps applications and what they learn"},
	{"admin", "admin.listen", "HOST:PORT", "admin API over HTTP, with page, health and metrics"},
	{"health", "admin.health", "HOST:PORT", "only /livez and /readyz, for probes from other machines"},
	{"tls-cert", "tls.cert", "FILE", "certificate of tls:// addresses, in PEM"},
	{"tls-key", "tls.key", "FILE", "key of that certificate, in PEM"},
	{"tls-client-ca", "tls.client_ca", "FILE", "CA certificates that sign client certificates"},
	{"tls-client-auth", "tls.client_auth", "WORD", "whether clients need a certificate: none, optional or required"},
	{"profiling", "admin.profiling", "", "serve profiles of the process (pprof) on the admin API"},
	{"traces", "traces.endpoint", "URL", "collector to send traces to, as OTLP over HTTP"},
	{"metrics-triton", "admin.metrics_triton", "", "also export metrics under Triton's names"},
	{"log-level", "log.level", "LEVEL", "lowest level that is logged: debug, info, warn or error"},
	{"log-format", "log.format", "FORMAT", "format of the log: text or json"},
}

const help = `shivad serves machine-learning models to clients that stream tensors over TCP.

Usage: shivad [flags]
       shivad serve FILE... [--models DIR] [flags]

%s%s%s
"shivad serve yolo11n.onnx" serves model files until Ctrl-C: ONNX, OpenVINO,
TensorFlow Lite, scikit-learn, XGBoost and LightGBM, and Python programs with
models. It takes the flags above, and these:

%s
A Python with the package shiva-container reads the files. shivad uses the one
that --python or $SHIVAD_PYTHON names. Without these it uses the first one that
has the package: .venv beside the file, $VIRTUAL_ENV, the Python beside shivad,
or python3.

An address is host:port, tls://host:port, or unix:PATH for clients on this
machine. Endpoints for clients take several addresses, separated by commas. Port
0 takes a free port, and the log says which. An empty address turns the endpoint
off. All other settings are in the file: shivactl manual settings.

On SIGTERM or Ctrl-C the server drains: it refuses new requests and answers
those in flight (server.drain, 30s by default). A second signal ends the process
at once. On SIGHUP the server reads the file and the certificates again. The log
names the settings that wait for a restart; an invalid file changes nothing.

Exit code: 0 stopped on request, 1 did not start, failed, or stopped before the
last requests were answered, 2 wrong flags or file.

Try it:  shivad, then in another shell:  shivactl status
         shivactl doctor says why it does not start

Manual:  ` + manual.Address + ` while it runs, or
         shivactl manual tutorial, configuration, tls, troubleshooting
`

// parseFlags reads the command line. Help goes to stdout, and the error is then flag.ErrHelp.
func parseFlags(args []string, stdout io.Writer) (options, error) {
	var o options
	serve := len(args) > 0 && args[0] == "serve"
	f := flag.NewFlagSet("shivad", flag.ContinueOnError)
	f.SetOutput(io.Discard) // the caller prints errors, once
	f.StringVar(&o.file, "config", "", "")
	f.BoolVar(&o.check, "check", false, "")
	f.BoolVar(&o.doctor, "doctor", false, "")
	f.BoolVar(&o.version, "version", false, "")
	for _, s := range settings {
		define := f.Func
		if s.value == "" {
			define = f.BoolFunc
		}
		define(s.flag, "", func(value string) error {
			o.over = append(o.over, override{"--" + s.flag, s.key, value})
			return nil
		})
	}
	if serve {
		args = args[1:]
		o.models.define(f)
	}
	err := f.Parse(args)
	for serve && err == nil && f.NArg() > 0 { // flags may stand before, between and after files
		path, failed := filepath.Abs(f.Arg(0)) // "." has no name
		if failed != nil {
			return o, failed
		}
		o.models.files = append(o.models.files, path)
		err = f.Parse(f.Args()[1:])
	}
	switch {
	case err == flag.ErrHelp:
		fmt.Fprintf(stdout, help, entry("--config FILE", "read settings from a TOML file; flags override it"),
			settingsHelp(), ownHelp(), serveHelp())
		return o, err
	case err != nil:
		return o, badFlag(f, err)
	case serve && o.models.files == nil && o.models.folders == nil:
		return o, errors.New("serve: expected files with models, or a folder of them by --models, as \"shivad serve yolo11n.onnx\"; shivad -h lists the flags")
	case o.doctor && (serve || o.over != nil):
		return o, errors.New("--doctor examines the file that --config names, and takes no other flags; shivad -h lists the flags")
	case f.NArg() > 0 && nearest.Names(f.Arg(0), []string{"serve"}) != nil:
		return o, fmt.Errorf("unexpected argument %q; did you mean shivad serve? shivad -h lists the flags", f.Arg(0))
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q; settings are read with --config FILE, and models served with shivad serve "+
			"FILE; shivad -h lists the flags", f.Arg(0))
	}
	return o, nil
}

// badFlag is the error of flags that could not be parsed.
func badFlag(f *flag.FlagSet, err error) error {
	name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !unknown {
		return fmt.Errorf("%w; shivad -h lists the flags", err)
	}
	var all []string
	f.VisitAll(func(f *flag.Flag) { all = append(all, f.Name) })
	if near := nearest.Names(name, all); near != nil {
		return fmt.Errorf("there is no flag --%s; did you mean --%s? shivad -h lists the flags", name,
			strings.Join(near, " or --"))
	}
	return fmt.Errorf("there is no flag --%s; shivad -h lists the flags", name)
}

// settingsHelp is the help text for the flags that override the file, with their defaults.
func settingsHelp() string {
	d := config.Default()
	defaults := map[string]string{
		"tcp": d.TCP.Listen[0], "rest": d.REST.Listen[0], "grpc": d.GRPC.Listen[0], "frigate": "none",
		"containers": d.Containers.Listen[0], "containers-v2": "none", "admin": d.Admin.Listen, "health": "none",
		"state": "memory", "profiling": "off", "metrics-triton": "off", "traces": "none",
		"tls-cert": "none", "tls-key": "none", "tls-client-ca": "none", "tls-client-auth": d.TLS.ClientAuth,
		"log-level": d.Log.Level, "log-format": d.Log.Format,
	}
	text := ""
	for _, s := range settings {
		text += entry("--"+s.flag+" "+s.value, fmt.Sprintf("%s (default %s)", s.help, defaults[s.flag]))
	}
	return text
}

// ownHelp is the help text for the flags that are no settings.
func ownHelp() string {
	return entry("--check", "check flags and file, print all settings in effect as TOML, and exit") +
		entry("--doctor", "check whether a server with this --config can run on this machine, print the result as JSON, and exit; shivactl doctor shows it as text") +
		entry("--version", "print the version and exit") + entry("-h, --help", "print this help and exit")
}

// helpColumns is the width of the help, and helpIndent where a flag's meaning begins.
const helpColumns, helpIndent = 80, 31

// entry is a flag in the help, with its meaning wrapped beside it.
func entry(flag, meaning string) string {
	text := fmt.Sprintf("  %-*s", helpIndent-3, strings.TrimSpace(flag))
	column := len(text)
	for word := range strings.FieldsSeq(meaning) {
		if column+1+len(word) > helpColumns {
			text += "\n" + strings.Repeat(" ", helpIndent-1)
			column = helpIndent - 1
		}
		text += " " + word
		column += 1 + len(word)
	}
	return text + "\n"
}

// load combines defaults, file and flags, checks the result, and fits it into the memory limit of
// the process. lowered names the settings that were lowered for that; it is empty if none was.
func (o options) load() (cfg config.Config, lowered string, err error) {
	cfg = config.Default()
	if o.file != "" {
		if cfg, err = config.Load(o.file); err != nil {
			return cfg, "", err
		}
	}
	for _, s := range o.over {
		if err := cfg.Set(s.key, s.value, s.flag); err != nil {
			return cfg, "", err
		}
	}
	o.models.addTo(&cfg)
	if err := cfg.Validate(); err != nil {
		return cfg, "", err
	}
	if err := server.CheckModelFiles(cfg); err != nil {
		return cfg, "", err
	}
	return cfg.Fit()
}
