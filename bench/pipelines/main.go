// Command pipelines compares a pipeline of two models, to which a client sends a picture's file,
// with a client that calls the same two models, and decodes and cuts the picture in between.
//
//	pipelines [-rounds 3] [-for 2s] [-short] [-markdown]
//
// shivad, the models and the cameras (in Python, one or four, each sends again on each answer) are
// processes of their own. Both ways alternate, and ratios are taken within a round. The models
// sleep, so that processor time is that of everything around the networks, and cameras check what
// they get for each object. It exits with 1 if a promise is broken; promises has them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/internal/table"
)

const config = `
[pipeline.signs]
inputs = ["image"]
[[pipeline.signs.stage]]
name = "find"
model = "find"
inputs = { image = "image" }
[[pipeline.signs.stage]]
name = "look"
model = "read"
inputs = { image = "image" }
each = "find.boxes"
`

func main() {
	b := bench{}
	flag.IntVar(&b.rounds, "rounds", 3, "`number` of rounds")
	flag.DurationVar(&b.length, "for", 2*time.Second, "`time` of each number of cameras, each way")
	short := flag.Bool("short", false, "one round of a second each: for a quick check, not for figures")
	markdown := flag.Bool("markdown", false, "write the table in Markdown")
	flag.Parse()
	if *short {
		b.rounds, b.length = 1, time.Second
	}
	process.Main("pipelines", func(ctx context.Context) ([]string, error) { return b.run(ctx, *markdown) })
}

// A bench is the server with its models, and how long it is measured.
type bench struct {
	server *process.Server
	rounds int
	length time.Duration
}

// run measures and reports, and returns the promises that do not hold.
func (b *bench) run(ctx context.Context, markdown bool) (broken []string, err error) {
	dir, err := os.MkdirTemp("", "pipelines-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := process.Build(ctx, dir, "cmd/shivad", "bench/noop"); err != nil {
		return nil, err
	}
	b.server, err = process.Shivad(dir, process.Options{Config: config + chain(1) + chain(longest)})
	defer func() { b.server.Stop() }()
	if err == nil {
		err = b.server.Run(nil, "noop", "-servers", b.server.Containers, "echo:FP32:64")
	}
	for _, name := range []string{"find", "find", "read"} { // as in examples/ocr
		if err == nil {
			err = b.server.Start(dir, process.Python(), filepath.Join("bench", "pipelines", "networks.py"), name,
				b.server.Containers)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := b.ready(ctx); err != nil {
		return nil, err
	}
	for _, way := range []string{"calls", "pipeline"} { // the server learns how long batches take
		if _, err := b.turn(ctx, way, crowd); err != nil {
			return nil, fmt.Errorf("%s, at first: %w", way, err)
		}
	}
	rounds := make([]round, b.rounds)
	for i := range rounds {
		if rounds[i], err = b.round(ctx, i%2 == 1); err != nil {
			return nil, fmt.Errorf("%w\n%s", err, strings.ReplaceAll(b.server.Output(), decoded, ""))
		}
	}
	var rows [][]string
	for _, r := range promises(rounds) {
		rows = append(rows, r.Cells())
		if !r.Holds() {
			broken = append(broken, r.What)
		}
	}
	table.Write(os.Stdout, markdown, ratio.Head, rows)
	fmt.Println()
	table.Write(os.Stdout, markdown, turnHead, turnRows(rounds))
	return broken, nil
}

// ready waits until the models serve.
func (b *bench) ready(ctx context.Context) error {
	return b.server.Await(ctx, time.Minute, func() error {
		m, err := b.server.Metrics(ctx)
		for _, name := range []string{"find", "read", "echo"} {
			if err == nil && m.By("shivad_replicas", "model")[name] == 0 {
				err = fmt.Errorf("%s does not serve", name)
			}
		}
		return err
	})
}

// A round has the figures of both ways, with one camera and with four, and of a stage.
type round struct {
	pipeline, calls map[int]turn // by number of cameras
	stage           time.Duration
}

// crowd is the larger number of cameras.
const crowd = 4

func (b *bench) round(ctx context.Context, reverse bool) (r round, err error) {
	r = round{pipeline: map[int]turn{}, calls: map[int]turn{}}
	for _, n := range []int{1, crowd} {
		ways := []string{"pipeline", "calls"}
		if reverse {
			ways[0], ways[1] = ways[1], ways[0]
		}
		for _, way := range ways {
			t, err := b.turn(ctx, way, n)
			if err != nil {
				return r, fmt.Errorf("%s, %d cameras: %w", way, n, err)
			}
			if way == "calls" {
				r.calls[n] = t
			} else {
				r.pipeline[n] = t
			}
		}
	}
	r.stage, err = b.stage(ctx)
	return r, err
}

// promises are the figures and their limits.
func promises(rounds []round) []ratio.Ratio {
	each := func(what string, bound ratio.Bound, limit float64, of func(round) float64) ratio.Ratio {
		r := ratio.Ratio{What: what, Bound: bound, Limit: limit}
		for _, one := range rounds {
			r.Rounds = append(r.Rounds, of(one))
		}
		return r
	}
	processor := func(n int) func(round) float64 {
		return func(r round) float64 { return r.pipeline[n].processor.all() / r.calls[n].processor.all() }
	}
	rate := func(n int) func(round) float64 {
		return func(r round) float64 { return r.pipeline[n].rate / r.calls[n].rate }
	}
	batch := func(way func(round) map[int]turn) func(round) float64 {
		return func(r round) float64 { return way(r)[crowd].batch / way(r)[1].batch }
	}
	pipeline, calls := func(r round) map[int]turn { return r.pipeline }, func(r round) map[int]turn { return r.calls }
	return []ratio.Ratio{
		each("bytes that a client sends for a picture beyond its file", ratio.AtMost, 1024,
			func(r round) float64 { return r.pipeline[1].beyond }),
		each("the same, by calls", ratio.Reported, 0, func(r round) float64 { return r.calls[1].beyond }),
		each("1 camera: processor time of all processes, to that by calls", ratio.AtMost, 0.9, processor(1)),
		each("4 cameras: processor time of all processes, to that by calls", ratio.AtMost, 0.9, processor(crowd)),
		each("1 camera: frames/s, to those by calls", ratio.Reported, 0, rate(1)),
		each("4 cameras: frames/s, to those by calls", ratio.AtLeast, 1.3, rate(crowd)),
		each("mean batch of the last stage with 4 cameras, to that with 1", ratio.AtLeast, 2, batch(pipeline)),
		each("the same, by calls", ratio.Reported, 0, batch(calls)),
		each("time of one more stage at the median, with the way to a container and back, µs", ratio.AtMost, 300,
			func(r round) float64 { return float64(r.stage) / float64(time.Microsecond) }),
		each("decodes of a picture", ratio.AtMost, 1.1, func(r round) float64 { return r.pipeline[crowd].decodes }),
	}
}

// turnHead names the columns of a table of turns.
var turnHead = []string{"way", "cameras", "frames/s", "mean batch of the last stage", "processor time of a frame, ms",
	"of cameras", "of the server", "of the first model", "of the second"}

// turnRows are the medians of all rounds.
func turnRows(rounds []round) (rows [][]string) {
	for _, n := range []int{1, crowd} {
		for _, way := range []string{"pipeline", "calls"} {
			row := []string{way, fmt.Sprint(n)}
			for _, of := range []func(turn) float64{
				func(t turn) float64 { return t.rate },
				func(t turn) float64 { return t.batch },
				func(t turn) float64 { return 1e3 * t.processor.all() },
				func(t turn) float64 { return 1e3 * t.processor.cameras },
				func(t turn) float64 { return 1e3 * t.processor.server },
				func(t turn) float64 { return 1e3 * t.processor.find },
				func(t turn) float64 { return 1e3 * t.processor.read },
			} {
				var each []float64
				for _, r := range rounds {
					t := r.pipeline[n]
					if way == "calls" {
						t = r.calls[n]
					}
					each = append(each, of(t))
				}
				row = append(row, fmt.Sprintf("%.1f", ratio.Median(each)))
			}
			rows = append(rows, row)
		}
	}
	return rows
}
