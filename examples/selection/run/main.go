// Command run shows an application that learns which of its models to trust. Three models of
// handwritten digits answer together, weighted by feedback, and half-way a bad build replaces the
// best model. `make run EXAMPLE=selection` runs it from the top of the source tree.
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
	"syscall"

	"github.com/shivad/shivad/examples/internal/process"
	"github.com/shivad/shivad/examples/selection"
	"github.com/shivad/shivad/shiva"
)

const example = "examples/selection"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	var o options
	flag.StringVar(&o.tcp, "tcp", "127.0.0.1:6174", "`address` of the door for clients")
	flag.StringVar(&o.containers, "containers", "127.0.0.1:7000", "`address` where containers connect")
	flag.StringVar(&o.admin, "admin", "127.0.0.1:8002", "`address` of health, metrics and management")
	flag.StringVar(&o.svg, "svg", filepath.Join(example, "selection.svg"), "`file` to draw the curve in")
	flag.Parse()
	flag.Visit(func(f *flag.Flag) { o.fixed = o.fixed || f.Name != "svg" })
	if _, err := run(ctx, o, os.Stdout); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(1)
	}
}

type options struct {
	tcp, containers, admin, svg string
	fixed                       bool // use these addresses or fail
}

// run runs the example and returns its rounds.
func run(ctx context.Context, o options, out io.Writer) (rounds []round, err error) {
	images, err := heldOut()
	if err != nil {
		return nil, err
	}
	addrs := process.Addresses{All: []*string{&o.tcp, &o.containers, &o.admin}, Fixed: o.fixed}
	server, err := process.Serve(ctx, out, addrs, &o.admin, func() []string {
		return []string{"--config", filepath.Join(example, "selection.toml"), "--log-level", "warn",
			"--tcp", o.tcp, "--rest", "", "--grpc", "", "--containers", o.containers, "--admin", o.admin}
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	create := []string{"apps", "create", "selection", "--admin", o.admin, "--policy", "exp4", "--param", "eta=0.5",
		"--param", "share=0.01",
		"--param", "inherit=1", "--slo", "5s"}
	for _, m := range selection.Models {
		create = append(create, "--model", m)
	}
	if output, err := exec.CommandContext(ctx, "bin/shivactl", create...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("bin/shivactl apps create: %w\n%s", err, output)
	}
	client, err := shiva.Dial(ctx, o.tcp)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	s := &stream{client: client, admin: o.admin, out: out}

	fmt.Fprintf(out, "%d images it has never seen go to the application \"selection\", and to its models for comparison:\n\n",
		len(images))
	s.head()
	if err := s.send(ctx, images); err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "\nVersion 2 of sharp is rolled out; the images are sent again:\n\n")
	next, err := process.Start("bin/selection-container", []string{"SHIVA_SERVERS=" + o.containers}, "sharp", "2")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, next.Stop()) }()
	if err := server.Wait(ctx, "version 2 of sharp to take over", func(ctx context.Context) (bool, string, error) {
		return takenOver(ctx, o.admin)
	}); err != nil {
		return nil, err
	}
	if err := s.send(ctx, images); err != nil {
		return nil, err
	}
	summarise(out, s.rounds)
	if err := drawSVG(o.svg, s.rounds); err != nil {
		return nil, fmt.Errorf("drawing the curve: %w", err)
	}
	fmt.Fprintf(out, "\nThe curve is in %s.\n", o.svg)
	return s.rounds, nil
}

// takenOver reports whether version 2 is the default version of sharp.
func takenOver(ctx context.Context, admin string) (ok bool, text string, err error) {
	ok, text, err = process.Get(ctx, "http://"+admin+"/v1/models/sharp")
	if err != nil || !ok {
		return false, text, err
	}
	var model struct {
		Versions []struct {
			Version        string
			Default, Ready bool
		}
	}
	if err := json.Unmarshal([]byte(text), &model); err != nil {
		return false, text, err
	}
	for _, v := range model.Versions {
		if v.Version == "2" && v.Default && v.Ready {
			return true, "", nil
		}
	}
	return false, text, nil
}

// An image is one row of examples/digits/heldout.u8.
type image struct {
	pixels []byte
	digit  int
}

func heldOut() ([]image, error) {
	data, err := os.ReadFile("examples/digits/heldout.u8")
	if err != nil {
		return nil, fmt.Errorf("%w (run this from the top of the source tree)", err)
	}
	const row = 64 + 1 // pixels and label
	if len(data) == 0 || len(data)%row != 0 {
		return nil, fmt.Errorf("examples/digits/heldout.u8 has %d bytes, expected %d for each image", len(data), row)
	}
	images := make([]image, 0, len(data)/row)
	for reader := bytes.NewBuffer(data); reader.Len() > 0; {
		r := reader.Next(row)
		images = append(images, image{r[:row-1], int(r[row-1])})
	}
	return images, nil
}
