package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/unixsocket"
)

func (c *cli) benchCommand() *cobra.Command {
	o := &benchOptions{length: 10 * time.Second, door: doors[0]}
	cmd := &cobra.Command{
		Use: "bench ROUTE", Short: "load-test a model and report latency percentiles",
		Long: benchHelp, Example: benchExample,
		Args: oneArgument("a model or application"), ValidArgsFunction: c.completes(routeNames),
		RunE: c.asks(func(c *cli, args []string) error { return c.bench(o, args[0]) }),
	}
	f := cmd.Flags()
	f.Var(value[float64]{&o.rate, positive, ""}, "rate", "send `N` requests a second at random times")
	f.Var(value[time.Duration]{&o.length, period, "10s"}, "for", "duration of the test, a `TIME` with a unit")
	f.Var(value[int]{&o.conns, count, ""}, "conns", "use `N` connections (default 16, with --door rest 64; with --streams one for each)")
	f.Var(value[int]{&o.inFlight, count, ""}, "inflight", "at most `N` unanswered requests of a connection (default 1, with --rate any number)")
	f.Var(value[door]{&o.door, parseDoor, "tcp"}, "door", "the `ENDPOINT` to load: tcp, rest or grpc")
	f.Var(value[int]{&o.clients, count, ""}, "clients", "run `N` clients that wait for each answer before the next request")
	f.Var(value[*load.Think]{&o.think, parseThink, ""}, "think", "pause of clients after each answer: a `TIME`, or exp:TIME (default 0s)")
	f.Var(value[int]{&o.streams, count, ""}, "streams", "send `N` streams of frames, as cameras do")
	f.Var(value[float64]{&o.fps, positive, ""}, "fps", "send `N` frames a second on each stream (default 30)")
	f.Var(value[string]{&o.keep, parseKeep, ""}, "keep", "how many `FRAMES` of a stream may wait: all, latest or a number (default: the model's setting)")
	f.StringVar(&o.data, "data", "", "send the contents of `FILE`, or of the files in a directory")
	f.Var(value[*load.Promise]{&o.search, parsePromise, ""}, "search", "find the highest rate that meets the target `pN<TIME`, such as p99<50ms")
	f.StringVar(&o.hdr, "hdr", "", "write the latencies to `FILE`, for HdrHistogram's tools")
	var names []string
	for _, d := range doors {
		names = append(names, d.name)
	}
	c.completeFlag(cmd, "door", oneOf(names...))
	c.completeFlag(cmd, "keep", keepWords)
	return c.patient(cmd, 1000*time.Hour)
}

const benchHelp = `ROUTE is NAME, NAME/VERSION or v2/models/NAME[/versions/VERSION]. The command asks the server which
inputs the model declares, and sends random tensors of these shapes. --data sends a file instead, or each file of a
directory in turn; shivactl help infer lists the formats.

  --rate N      an open loop: N requests a second are due at random times (Poisson), like those
                of many independent users. Latency counts from the time when a request was due, so a
                stall counts for all requests that were due in it.
  --streams N   N cameras that send --fps frames a second each. Latency is the age of the frames.
                Superseded frames are counted separately.
  --clients N   N clients, each on its own connection, that wait for their answer, pause (--think)
                and send the next request, as robots and most programs do. With --rate or --streams
                as well, both loads run at once and are reported separately; --inflight then
                applies to the clients.
  --search P    find the highest rate that meets a target such as p99<50ms, or with --think the
                largest number of clients. Errors count as late answers. Trials double the load,
                then bisect. A load misses the target if two trials at it do. A final trial
                that takes --for confirms the result.
  none of them  a closed loop: each connection keeps --inflight requests in flight. It finds the
                highest throughput; users would see other latencies.

--think 5ms pauses for that time after each answer; --think exp:5ms pauses for random times (exponential) of that
mean. Latency counts from the end of the pause.

The line "sent late" shows how late the tool itself sent requests. If that is not much less than the latencies, the
tool had too little processor time, and the latencies include this delay. Ctrl-C ends the run and prints the report.
If the model has a cache, it answers many requests; to measure the model, use --data with many files, or turn the
cache off.

--addr is the address of the endpoint; with --door rest or grpc the default is 127.0.0.1:8000 or 127.0.0.1:8001. --hdr
writes the latencies in a format that HdrHistogram's tools read. The run ends after --for, or after --timeout if you
give it. The exit code is 1 if any request failed.

With --json: {"route", "door", "address", "seconds", "offered", "think", "sent", "answered", "failed",
"unanswered", "rate", "latency_ms": {"mean", "p50", "p90", "p99", "p99_9", "p99_99", "max"},
"sent_late_ms": {...}, "errors": [{"kind", "count", "first"}], "superseded" and "streams":
[{"answered", "superseded", "failed"}] with --streams, "clients": {"number", "think", "seconds",
"sent", and so on} for clients beside another load, "ended" if it ended early, "search": {"promise",
"rate", "clients", "trials": [{"rate", "clients", "seconds", "requests", "in_time", "failed", "ms",
"sent_late_ms", "holds", "confirmation"}]}}; rates are per second
`

const benchExample = `  shivactl bench digits --rate 500 --for 30s
  shivactl bench digits --streams 4 --fps 30 --keep latest
  shivactl bench digits --rate 100 --clients 8 --think exp:20ms
  shivactl bench digits --search 'p99<50ms' --think 0s
  shivactl bench digits --search 'p99<50ms' --door grpc --data frames/ --hdr digits.hgrm
`

type benchOptions struct {
	rate, fps                float64
	length                   time.Duration
	conns, inFlight, streams int
	clients                  int
	think                    *load.Think
	door                     door
	keep, data, hdr          string
	search                   *load.Promise
}

// A door is a protocol through which load can be offered.
type door struct {
	name string
	wire load.Wire
	port int
}

var doors = []door{{"tcp", load.Shiva, shiva.DefaultPort}, {"rest", load.HTTP, 8000}, {"grpc", load.GRPC, 8001}}

// value is a flag whose parser names the expected form in its errors.
type value[T any] struct {
	to      *T
	parse   func(text string) (T, error)
	initial string
}

func (v value[T]) String() string { return v.initial }
func (v value[T]) Type() string   { return "value" }

func (v value[T]) Set(text string) error {
	got, err := v.parse(text)
	if err == nil {
		*v.to = got
	}
	return err
}

func positive(text string) (float64, error) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0 && n <= 1e7) {
		return 0, errors.New("expected a number above 0 and at most ten million, such as 500")
	}
	return n, nil
}

func count(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > load.MaxStreams {
		return 0, fmt.Errorf("expected a whole number from 1 to %d", load.MaxStreams)
	}
	return n, nil
}

func period(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, errors.New("expected a time above 0 with its unit, such as 30s or 500ms")
	}
	return d, nil
}

func parseDoor(text string) (door, error) {
	for _, d := range doors {
		if d.name == text {
			return d, nil
		}
	}
	return door{}, errors.New("expected one of tcp, rest, grpc")
}

func parseKeep(text string) (string, error) {
	const most = 65536
	if n, err := strconv.Atoi(text); text != "all" && text != "latest" && (err != nil || n < 1 || n > most) {
		return "", fmt.Errorf("expected all, latest or a whole number from 1 to %d", most)
	}
	return text, nil
}

func parsePromise(text string) (*load.Promise, error) {
	p, err := load.ParsePromise(text)
	return &p, err
}

// check refuses flags that exclude each other.
func (o *benchOptions) check() error {
	switch {
	case o.streams > 0 && o.rate > 0:
		return usage("bench", "--rate does not go with --streams: the rate of streams is --fps times their number")
	case o.streams == 0 && (o.fps > 0 || o.keep != ""):
		return usage("bench", "--fps and --keep are for frames of streams: expected --streams as well")
	case o.search != nil && (o.rate > 0 || o.streams > 0):
		return usage("bench", "--search finds the rate itself: expected neither --rate nor --streams")
	case o.door.wire == load.HTTP && o.inFlight > 1:
		return usage("bench",
			"--inflight %d: an HTTP connection has one request at a time; expected more --conns instead", o.inFlight)
	case o.streams > 0 && o.conns%o.streams != 0:
		return usage("bench", "--conns %d: expected a multiple of the %s, which have as many connections each", o.conns,
			plural.Of(o.streams, "stream"))
	}
	return o.checkClients()
}

// config returns the configuration of the run that the options ask for, without its requests.
func (o *benchOptions) config(addr string) load.Config {
	host, _ := cutTLS(addr)
	network, target := unixsocket.Target(host)
	c := load.Config{Network: network, Addr: target, Wire: o.door.wire, Conns: o.conns, InFlight: o.inFlight,
		Rate: o.rate, Duration: o.length, Cycle: true}
	perStream, free := 1, 16
	if o.door.wire == load.HTTP {
		// Each connection has one request at a time. A stream has a frame that executes, one that
		// waits, and some that are about to be superseded.
		perStream, free = 4, 64
	}
	switch {
	case o.streams > 0:
		c.Rate, c.Streams = float64(o.streams)*o.fpsOrDefault(), &load.Streams{Count: o.streams}
		if c.Conns == 0 {
			c.Conns = perStream * o.streams
		}
	case c.Conns == 0:
		c.Conns = free
	}
	c.Seed = uint64(time.Now().UnixNano())
	switch {
	case o.mixed():
		c.InFlight = 0
	case o.clients > 0:
		return o.closed(c, o.clients)
	case o.rate == 0 && o.streams == 0:
		return o.closed(c, c.Conns)
	}
	return c
}

func (o *benchOptions) fpsOrDefault() float64 {
	if o.fps == 0 {
		return 30
	}
	return o.fps
}

func (c *cli) bench(o *benchOptions, route string) error {
	if err := o.check(); err != nil {
		return err
	}
	at := c.addr
	if at == defaultAddr && o.door.wire != load.Shiva {
		at = net.JoinHostPort("127.0.0.1", strconv.Itoa(o.door.port))
	}
	m, err := c.declared(o.door, at, route)
	if err != nil {
		return err
	}
	b := &bench{cli: c, o: o, config: o.config(at), report: benchReport{Route: route, Door: o.door.name, Address: at}}
	if _, encrypted := cutTLS(at); encrypted {
		if b.config.TLS, err = c.tls.config(); err != nil {
			return err
		}
	}
	b.config.Token = c.token.Token()
	if o.mixed() {
		clients := o.closed(b.config, o.clients)
		b.beside = &clients
	}
	if err := b.load(m); err != nil {
		return err
	}
	var hdr *os.File
	if o.hdr != "" { // before the run, so that it fails now if the file cannot be written
		if hdr, err = os.Create(o.hdr); err != nil {
			return unfit("", "--hdr: %v", err)
		}
		defer hdr.Close()
	}
	var r, clients *load.Result
	switch {
	case o.search == nil:
		r, clients, err = b.offer()
	case o.think != nil:
		r, err = b.searchClients()
	default:
		r, err = b.search()
	}
	if r == nil || b.beside != nil && clients == nil {
		return explain(err, "--addr", at)
	}
	b.report.Ended = ended(err)
	if hdr != nil {
		if err := errors.Join(r.Latency.WritePercentiles(hdr), hdr.Close()); err != nil {
			return unfit("", "--hdr: %v", err)
		}
	}
	b.report.take(r)
	if clients != nil {
		b.report.Clients = &clientsReport{Number: o.clients}
		b.report.Clients.take(clients)
		b.report.Clients.thinks(o)
	} else if r.Offered == 0 {
		b.report.thinks(o)
	}
	if c.json {
		_ = c.printJSON(&b.report)
	} else {
		b.print(r, clients)
	}
	switch {
	case err != nil && errors.Is(err, load.ErrNoRate):
		return b.silent(&failure{Type: "promise", Message: fmt.Sprintf("no rate keeps %v", o.search),
			code: exitRefused})
	case err != nil && errors.Is(err, load.ErrNoClients):
		return b.silent(&failure{Type: "promise", Message: fmt.Sprintf("not even one client keeps %v", o.search),
			code: exitRefused})
	case err != nil && r.Taken > 0 && b.ctx.Err() == nil:
		return b.silent(&failure{"unreachable", "the server went away: " + b.report.Ended,
			"its log says more; shivactl status shows whether it is back", exitUnreachable})
	case err != nil && b.report.Ended != interrupted:
		return b.silent(explain(err, "--addr", at))
	case o.search == nil && b.report.anyFailed():
		return &failure{code: exitRefused}
	}
	return nil
}

// silent returns a failure after a report: if the report is a JSON document, no second document
// follows.
func (b *bench) silent(f *failure) error {
	if b.json {
		f.Message = ""
	}
	return f
}

// interrupted is the report's text for a run that the user has ended.
const interrupted = "interrupted"

// ended returns the reason why a run ended early; "" if it did not.
func ended(err error) string {
	switch {
	case err == nil, errors.Is(err, load.ErrNoRate), errors.Is(err, load.ErrNoClients):
		return ""
	case errors.Is(err, context.Canceled):
		return interrupted
	case errors.Is(err, context.DeadlineExceeded):
		return "stopped by --timeout"
	default:
		return strings.TrimPrefix(err.Error(), "load: ")
	}
}

// A bench is a load that is being offered.
type bench struct {
	*cli
	o      *benchOptions
	config load.Config
	beside *load.Config // clients beside that load; nil: none
	inputs []string     // descriptions of the inputs, for people
	trials uint64       // of a search, so far
	report benchReport
}

// run offers the load of a configuration, and tells its progress.
func (b *bench) run(config load.Config) (*load.Result, error) {
	config.Live = &load.Live{}
	defer b.moments(config)()
	return load.Run(b.ctx, config)
}

// search finds the highest rate that keeps the promise. It returns the result of the last trial.
func (b *bench) search() (*load.Result, error) {
	first := b.config // a closed loop: the highest rate is near its throughput
	first.InFlight, first.Duration = 1, time.Second
	last, err := b.run(first)
	switch {
	case err != nil:
		return last, err
	case last.Latency.Count() == 0:
		return last, fmt.Errorf("%w: none of the first requests succeeded", load.ErrNoRate)
	}
	const settle = 500 * time.Millisecond // of each trial, until the server has its batches
	rate, trials, err := load.Search(b.ctx, *b.o.search, last.Rate()/2, b.o.length,
		func(_ context.Context, rate float64, length time.Duration, _ bool) (load.Trial, error) {
			c := b.config
			c.Rate, c.Duration, c.Warmup = rate, length, settle
			return b.trial(c, &last)
		})
	b.report.searched(*b.o.search, rate, trials)
	return last, err
}

// trial offers a load as a trial of the search, and sets last to its result, if it has one.
func (b *bench) trial(c load.Config, last **load.Result) (load.Trial, error) {
	b.trials++
	c.Seed, c.Within = c.Seed+b.trials, b.o.search.Within
	r, err := b.run(c)
	if r != nil {
		*last = r
	}
	if err != nil {
		return load.Trial{}, err
	}
	t := load.TrialOf(r, *b.o.search)
	if b.o.think != nil {
		t.Clients = c.Conns
	}
	b.tried(t)
	return t, nil
}
