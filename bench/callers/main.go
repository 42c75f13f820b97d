// Command callers compares what clients that ask again on each answer get from servers of the same
// model: shivad without its rule for them, shivad with it, and pytriton, whose window the operator
// guesses, with each of three.
//
//	callers [-peers DIR] [-python PROGRAM] [-a 20ms] [-b 1ms] [-clients 1,2] [-for 3s] [-svg FILE]
//	callers -echo [-python PROGRAM] [-for 3s]
//
// The servers, their containers in Python, and the clients are processes of their own. The
// container sleeps, so that the machine's processors matter little. With DIR, in which
// bench/peers/install has put the peers, one client of shivad is eyecan-shiva's; without it
// pytriton is left out. The exit status is 1 if shivad with its rule gets less than 0.9 of what is
// possible with some number of clients, or less than pytriton with its best window.
//
// With -echo clients ask containers that take no time, beside a bare echo (bench/echo) and the
// least that a server with a container does. It has no limits.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/shivad/shivad/bench/internal/figure"
	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva/tensor"
)

const (
	warmup = 2 * time.Second
	// leastShare is the least share of the possible rate.
	leastShare = 0.9
	// asksAgain is about how long a client takes from an answer to its next request.
	asksAgain = 300 * time.Microsecond
)

// options are the flags.
type options struct {
	peers, python, svg string
	a, b, length       time.Duration
	clients            []int
	dir                string // of the programs
}

func main() {
	o := options{}
	flag.StringVar(&o.peers, "peers", "", "`directory` of the peers, by bench/peers/install")
	flag.StringVar(&o.python, "python", process.Python(), "`program` that has shiva_container")
	flag.DurationVar(&o.a, "a", 20*time.Millisecond, "`time` of a batch")
	flag.DurationVar(&o.b, "b", time.Millisecond, "`time` of each of its rows")
	flag.DurationVar(&o.length, "for", 3*time.Second, "counted `time` of each number of clients")
	flag.StringVar(&o.svg, "svg", "", "`file` for a figure")
	beside := flag.Bool("echo", false, "compare containers that take no time with an echo")
	list := flag.String("clients", "1,2,4,8,16,32", "`numbers` of clients")
	flag.Parse()
	for text := range strings.SplitSeq(*list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			log.Fatalf("-clients: expected numbers above 0 with commas between, got %q", *list)
		}
		o.clients = append(o.clients, n)
	}
	process.Main("callers", func(ctx context.Context) (broken []string, err error) {
		if o.dir, err = os.MkdirTemp("", "callers-"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(o.dir)
		if *beside {
			return nil, o.besideEcho(ctx)
		}
		return o.run(ctx)
	})
}

// A system is a server with its container, and what clients got from it.
type system struct {
	name  string
	color string
	wire  load.Wire
	start func(o *options, g *process.Group) (addr string, err error)
	cells []cell // by number of clients
}

// A cell is what a number of clients got.
type cell struct {
	rate      float64 // answers per second, of all
	reference float64 // ... of eyecan-shiva's client
	p50       time.Duration
}

func (o *options) run(ctx context.Context) (broken []string, err error) {
	if err := process.Build(ctx, o.dir, "cmd/shivad"); err != nil {
		return nil, err
	}
	systems := []*system{
		{name: "shivad, together = false", color: "#999999", wire: load.Shiva, start: shivad(false)},
		{name: "shivad", color: "#0072b2", wire: load.Shiva, start: shivad(true)},
	}
	if o.peers != "" {
		for i, window := range []float64{0, 1, 5} {
			systems = append(systems,
				&system{name: fmt.Sprintf("pytriton, %g ms", window),
					color: []string{"#e69f00", "#d55e00", "#cc79a7"}[i], wire: load.GRPC, start: pytriton(window)})
		}
	}
	for _, s := range systems {
		if err := s.measure(ctx, o); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	o.print(systems)
	if o.svg != "" {
		if err := o.draw(ctx, systems); err != nil {
			return nil, err
		}
	}
	return o.broken(systems), nil
}

// possible is the rate of n clients in one batch.
func (o *options) possible(n int) float64 {
	return float64(n) / (o.a + time.Duration(n)*o.b + asksAgain).Seconds()
}

// broken compares shivad with what is possible, and with the best of the others.
func (o *options) broken(systems []*system) (all []string) {
	rule := systems[1]
	for i, n := range o.clients {
		got := rule.cells[i].rate
		if want := leastShare * o.possible(n); got < want {
			all = append(all,
				fmt.Sprintf("%d clients: %.0f/s, want %.0f, which is %g of the possible", n, got, want, leastShare))
		}
		for _, s := range systems[2:] {
			if other := s.cells[i].rate; got < other {
				all = append(all, fmt.Sprintf("%d clients: %.0f/s, and %s has %.0f", n, got, s.name, other))
			}
		}
	}
	return all
}

// milliseconds is how the Python programs take times.
func milliseconds(d time.Duration) string { return fmt.Sprint(d.Seconds() * 1e3) }

func shivad(together bool) func(*options, *process.Group) (string, error) {
	return func(o *options, g *process.Group) (string, error) {
		s, err := process.Shivad(o.dir,
			process.Options{Config: fmt.Sprintf("[model.doubler]\ntogether = %v\n", together)})
		if err == nil {
			err = s.Start(o.dir, o.python, filepath.Join("bench", "callers", "serve_shiva.py"), s.Containers,
				milliseconds(o.a), milliseconds(o.b))
			*g = s.Group
		}
		return s.TCP, err
	}
}

func pytriton(window float64) func(*options, *process.Group) (string, error) {
	return func(o *options, g *process.Group) (string, error) {
		var http, grpc string
		if err := process.FreeAddrs(&http, &grpc); err != nil {
			return "", err
		}
		port := func(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }
		return grpc, g.Start(o.dir, filepath.Join(o.peers, "pytriton", "bin", "python"),
			filepath.Join("bench", "callers", "serve_pytriton.py"),
			port(http), port(grpc), milliseconds(o.a), milliseconds(o.b), fmt.Sprint(window))
	}
}

// begin starts the system, and returns the load of a client once it has answered.
func (s *system) begin(ctx context.Context, o *options, g *process.Group) (c load.Config, err error) {
	addr, err := s.start(o, g)
	if err != nil {
		return c, err
	}
	x, err := tensor.FromSlice(tensor.Shape{1, 64}, make([]float32, 64))
	if err != nil {
		return c, err
	}
	x.Name = "x"
	frame, _, err := (&load.Request{Model: "doubler", Inputs: []tensor.Tensor{x}}).Encode(s.wire)
	if err != nil {
		return c, err
	}
	c = load.Config{Addr: addr, Wire: s.wire, Frames: [][]byte{frame}, Conns: 1, Duration: 10 * time.Millisecond}
	return c, g.Await(ctx, 2*time.Minute, func() error {
		r, err := load.Run(ctx, c)
		if err == nil && r.Latency.Count() == 0 {
			err = fmt.Errorf("it does not answer: %s", r.Failure)
		}
		return err
	})
}

// measure starts the system, and has each number of clients ask it.
func (s *system) measure(ctx context.Context, o *options) error {
	var g process.Group
	defer func() { g.Stop() }()
	c, err := s.begin(ctx, o, &g)
	if err != nil {
		return err
	}
	c.Warmup, c.Duration = warmup, o.length
	for _, n := range o.clients {
		one, err := s.ask(ctx, o, c, n)
		if err != nil {
			return fmt.Errorf("%d clients: %w", n, err)
		}
		s.cells = append(s.cells, one)
	}
	return nil
}

// ask measures n clients, of which one is eyecan-shiva's where it speaks the server's protocol.
func (s *system) ask(ctx context.Context, o *options, c load.Config, n int) (cell, error) {
	c.Conns = n
	var reference *process.Process
	var one cell
	if s.wire == load.Shiva && o.peers != "" && n > 1 {
		c.Conns--
		var err error
		seconds := fmt.Sprint((c.Warmup + c.Duration).Seconds())
		reference, err = process.Start(o.dir, filepath.Join(o.peers, "reference", "bin", "python"),
			filepath.Join("bench", "callers", "ask.py"), c.Addr, seconds)
		if err != nil {
			return one, err
		}
		defer reference.Stop()
		time.Sleep(time.Second) // it imports its packages
	}
	r, err := load.Run(ctx, c)
	if err != nil {
		return one, err
	}
	if r.Failed+r.Lost > 0 {
		return one, fmt.Errorf("%d requests failed, %d were not answered: %s", r.Failed, r.Lost, r.Failure)
	}
	one = cell{rate: r.Rate(), p50: r.Latency.Quantile(0.5)}
	if reference == nil {
		return one, nil
	}
	for end := time.Now().Add(30 * time.Second); reference.Alive() == nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			return one, fmt.Errorf("eyecan-shiva's client does not end\n%s", reference.Output())
		}
	}
	lines := strings.Fields(reference.Output())
	if len(lines) == 0 {
		return one, errors.New("eyecan-shiva's client says nothing")
	}
	answers, err := strconv.Atoi(lines[len(lines)-1])
	if err != nil {
		return one, fmt.Errorf("eyecan-shiva's client: %w\n%s", err, reference.Output())
	}
	one.reference = float64(answers) / (c.Warmup + c.Duration).Seconds()
	one.rate += one.reference
	return one, nil
}

func (o *options) print(systems []*system) {
	fmt.Printf("clients that ask again on each answer, of a container in Python that takes %v and %v a row\n", o.a, o.b)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "clients\tpossible\t")
	for _, s := range systems {
		fmt.Fprintf(w, "%s\tp50\tof possible\t", s.name)
	}
	fmt.Fprintln(w, "eyecan-shiva's client\t")
	for i, n := range o.clients {
		fmt.Fprintf(w, "%d\t%.1f/s\t", n, o.possible(n))
		for _, s := range systems {
			c := s.cells[i]
			fmt.Fprintf(w, "%.1f/s\t%.1f ms\t%.2f\t", c.rate, c.p50.Seconds()*1e3, c.rate/o.possible(n))
		}
		fmt.Fprintf(w, "%.1f/s\t\n", systems[1].cells[i].reference)
	}
	w.Flush()
}

// draw draws rate and latency over the number of clients.
func (o *options) draw(ctx context.Context, systems []*system) error {
	rate := figure.Panel{Title: "Answers per second", X: figure.Axis{Label: "clients", Log: true},
		Y: figure.Axis{Label: "answers/s", Min: figure.At(0)}}
	latency := figure.Panel{Title: "Latency", X: rate.X, Y: figure.Axis{Label: "p50, ms", Min: figure.At(0)},
		Legend: &figure.Legend{}}
	possible, least := figure.Series{Name: "possible", Color: "#000000", Dashes: []float64{3, 2}},
		figure.Series{Name: "possible", Color: "#000000", Dashes: []float64{3, 2}}
	for _, n := range o.clients {
		possible.X, possible.Y = append(possible.X, float64(n)), append(possible.Y, o.possible(n))
		least.X, least.Y = append(least.X, float64(n)), append(least.Y, float64(n)/o.possible(n)*1e3)
	}
	rate.Series, latency.Series = append(rate.Series, possible), append(latency.Series, least)
	for _, s := range systems {
		a, b := figure.Series{Name: s.name, Color: s.color, X: possible.X},
			figure.Series{Name: s.name, Color: s.color, X: possible.X}
		if s == systems[1] {
			a.Width, b.Width = 2, 2
		}
		for _, c := range s.cells {
			a.Y, b.Y = append(a.Y, c.rate), append(b.Y, c.p50.Seconds()*1e3)
		}
		rate.Series, latency.Series = append(rate.Series, a), append(latency.Series, b)
	}
	f := figure.Figure{Columns: 2, Width: 11, Height: 7, Panels: []figure.Panel{rate, latency}}
	return f.Draw(ctx, o.svg)
}
