// Command run shows shivad in a minute: it starts the server and a container with the digits model,
// classifies over TCP handwritten digits that the model has never seen, and serves until Ctrl-C.
// `make run` runs it from the top of the source tree.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/shivad/shivad/examples/internal/process"
)

const example = "examples/digits"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	var o options
	flag.StringVar(&o.tcp, "tcp", "127.0.0.1:6174", "`address` of the door for clients")
	flag.StringVar(&o.rest, "rest", "127.0.0.1:8000", "`address` of the door for clients that speak HTTP")
	flag.StringVar(&o.grpc, "grpc", "127.0.0.1:8001", "`address` of the door for clients of the Predict Protocol over gRPC")
	flag.StringVar(&o.containers, "containers", "127.0.0.1:7000", "`address` where containers connect")
	flag.StringVar(&o.admin, "admin", "127.0.0.1:8002", "`address` of health and metrics")
	flag.BoolVar(&o.once, "once", false, "exit after the images instead of serving until Ctrl-C")
	flag.Parse()
	flag.Visit(func(f *flag.Flag) { o.fixed = o.fixed || f.Name != "once" })
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(1)
	}
}

type options struct {
	tcp, rest, grpc, containers, admin string
	once                               bool
	fixed                              bool // use these addresses or fail
}

func run(ctx context.Context, o options, out io.Writer) (err error) {
	labels, err := readLabels()
	if err != nil {
		return err
	}
	server, err := serve(ctx, &o, out)
	if err != nil {
		return ended(ctx, err)
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	fmt.Fprintf(out, "shivad serves on %s; %d images it has never seen go through bin/shivactl:\n\n", o.tcp,
		len(labels))
	if err := classify(ctx, o.tcp, labels, out); err != nil {
		return ended(ctx, err)
	}
	if o.once {
		return nil
	}
	fmt.Fprintf(out, "\nTry next, in another terminal:\n\n  bin/shivactl%s infer digits %s/images/00.png\n  bin/shivactl%s status\n\nServing until Ctrl-C.\n",
		unless("--addr", o.tcp, "127.0.0.1:6174"), example, unless("--admin", o.admin, "127.0.0.1:8002"))
	select {
	case <-ctx.Done():
		fmt.Fprintln(out, "\nstopping")
		return nil
	case <-server.Done():
		return server.Ended()
	}
}

// ended returns err, or nil if it is due to Ctrl-C.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func unless(flag, value, standard string) string {
	if value == standard {
		return ""
	}
	return " " + flag + " " + value
}

// A label is the right digit of a held-out image.
type label struct {
	file  string
	digit int
}

func readLabels() ([]label, error) {
	text, err := os.ReadFile(filepath.Join(example, "labels.txt"))
	if err != nil {
		return nil, fmt.Errorf("%w (run this from the top of the source tree)", err)
	}
	var list []label
	for line := range strings.Lines(string(text)) {
		var l label
		if _, err := fmt.Sscanf(line, "%s %d", &l.file, &l.digit); err != nil {
			return nil, fmt.Errorf("labels.txt: %q is not a file and a digit: %w", line, err)
		}
		l.file = filepath.Join(example, "images", l.file)
		list = append(list, l)
	}
	return list, nil
}

// serve starts the server with the digits model, and waits until the model is ready.
func serve(ctx context.Context, o *options, out io.Writer) (*process.Process, error) {
	addrs := process.Addresses{All: []*string{&o.tcp, &o.rest, &o.grpc, &o.containers, &o.admin}, Fixed: o.fixed}
	return process.Serve(ctx, out, addrs, &o.admin, func() []string {
		return []string{"--config", filepath.Join(example, "digits.toml"), "--log-level", "warn",
			"--tcp", o.tcp, "--rest", o.rest, "--grpc", o.grpc, "--containers", o.containers, "--admin", o.admin}
	})
}

// answers is the output of shivactl infer --json.
type answers struct {
	Results []struct {
		File    string
		Outputs []struct {
			Name string
			Data json.RawMessage
		}
		Error *struct{ Type, Message string }
	}
}

// classify sends every image and prints its prediction next to its label.
func classify(ctx context.Context, tcp string, labels []label, out io.Writer) error {
	args := []string{"infer", "--json", "--addr", tcp, "digits"}
	for _, l := range labels {
		args = append(args, l.file)
	}
	cmd := exec.CommandContext(ctx, "bin/shivactl", args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("bin/shivactl infer: %w\n%s%s", err, &stderr, &stdout)
	}
	var got answers
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
		return fmt.Errorf("bin/shivactl infer --json: %w", err)
	}
	if len(got.Results) != len(labels) {
		return fmt.Errorf("bin/shivactl infer: %d images sent, %d results", len(labels), len(got.Results))
	}
	right := 0
	fmt.Fprintf(out, "  %-32s %-9s %s\n", "image", "predicted", "label")
	for i, r := range got.Results {
		predicted := -1
		for _, o := range r.Outputs {
			var values []int
			if o.Name == "label" && json.Unmarshal(o.Data, &values) == nil && len(values) == 1 {
				predicted = values[0]
			}
		}
		if predicted < 0 {
			if r.Error != nil {
				return fmt.Errorf("%s: %s: %s", r.File, r.Error.Type, r.Error.Message)
			}
			return fmt.Errorf("%s: the answer has no output \"label\" of one row", r.File)
		}
		mark := ""
		if predicted == labels[i].digit {
			right++
		} else {
			mark = "  wrong"
		}
		fmt.Fprintf(out, "  %-32s %-9d %d%s\n", r.File, predicted, labels[i].digit, mark)
	}
	fmt.Fprintf(out, "\n%d of %d right (%.0f %%)\n", right, len(labels), 100*float64(right)/float64(len(labels)))
	return nil
}
