// Command frames measures the cost of a large tensor on its way through a server to a model and
// back: a frame of video and a picture, over each protocol, to containers in Go and in Python and
// to other servers. All models are the identity, so that only the way is measured.
//
//	frames [-rounds N] [-duration D] [-short] [-only REGEXP] [-peers DIR] [-markdown]
//	       [-chart FILE.svg]
//
// -only limits a run to the turns whose names match, and to the bars between them; a run prints its
// turns' names. -peers adds the other servers, which bench/peers/install has installed in DIR. The
// exit status is 1 if a bar of bars.go does not hold.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/internal/table"
)

type options struct {
	rounds   int
	duration time.Duration
	python   string
	peers    string // directory; "": without them
	chart    string // file; "": none
	markdown bool
	only     *regexp.Regexp // of turns' names; nil: all

	bin    string // directory of programs and logs
	frames map[*way]map[*size][][]byte
}

func main() {
	o := &options{}
	flag.IntVar(&o.rounds, "rounds", 9, "number of `rounds`, in each of which all systems take their turns")
	flag.DurationVar(&o.duration, "duration", time.Second/2, "measured `time` of one turn")
	short := flag.Bool("short", false, "two rounds of a fifth of a second: for a quick check, not for figures")
	flag.StringVar(&o.python, "python", process.Python(), "Python `interpreter` that has shiva_container: $PYTHON, or that of make")
	flag.StringVar(&o.peers, "peers", "", "also measure the servers that bench/peers/install has installed in this `directory`")
	flag.StringVar(&o.chart, "chart", "", "draw the figures into this `file`")
	flag.BoolVar(&o.markdown, "markdown", false, "write the tables in Markdown")
	flag.Func("only", "measure only turns whose names match this `REGEXP`, and bars between them: \"way=Shiva-TCP/size=small/inflight=one\"",
		func(text string) (err error) {
			o.only, err = regexp.Compile(text)
			return err
		})
	flag.Parse()
	if *short {
		o.rounds, o.duration = 2, time.Second/5
	}
	process.Main("frames", o.run)
}

// run measures and reports, and returns the bars that do not hold.
func (o *options) run(ctx context.Context) (broken []string, err error) {
	began := time.Now()
	if o.bin, err = os.MkdirTemp("", "shivad-frames-"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(o.bin)
	if err := process.Build(ctx, o.bin, programs...); err != nil {
		return nil, err
	}
	defer func() {
		for _, s := range sizes {
			s.unshare()
		}
	}()
	if err := o.encode(); err != nil {
		return nil, err
	}
	all, err := measure(ctx, o)
	if err != nil {
		return nil, err
	}
	fmt.Println()
	for _, size := range sizes {
		if size.inTable {
			table.Write(os.Stdout, o.markdown, head(size), all.rows(size))
			fmt.Println()
		}
	}
	var rows [][]string
	for _, bar := range all.bars(o.peers != "") {
		if o.only != nil && len(bar.Rounds) == 0 {
			continue
		}
		rows = append(rows, bar.Cells())
		if !bar.Holds() {
			broken = append(broken, bar.What)
		}
	}
	table.Write(os.Stdout, o.markdown, ratio.Head, rows)
	if o.chart != "" {
		if err := all.draw(ctx, o.chart); err != nil {
			return nil, err
		}
	}
	fmt.Printf("\n%d rounds of %v, %v in all\n", o.rounds, o.duration, time.Since(began).Round(time.Second))
	return broken, nil
}

// programs are those of this tree that systems start.
var programs = []string{"cmd/shivad", "bench/echo", "bench/door", "bench/noop"}

// encode makes the requests: eight of each, one for each of HTTP's connections.
func (o *options) encode() error {
	o.frames = make(map[*way]map[*size][][]byte)
	for _, s := range sizes {
		xs, err := s.tensors(8)
		if err != nil {
			return err
		}
		if s.inTable {
			if err := s.share(xs); err != nil {
				return err
			}
		}
		for _, w := range ways {
			if o.frames[w] == nil {
				o.frames[w] = make(map[*size][][]byte)
			}
			if s.inTable || w == shivaTCP {
				if o.frames[w][s], err = w.frames(s, xs); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
