// Command reliability checks shivad against the bars of reliability. It prints a line with the
// verdict of each, and the figures below it. The measuring is done by tests and the other benches.
//
//	reliability [-only R2,R7] [-break] [-dir DIR]
//
// With -break it plants a fault for each bar, in a copy of the source that the compiler reads
// instead. The bar must then fail with a message that belongs to the fault. The exit status is 1 if
// a bar does not hold, or with -break if a bar does not fail. A bar for which the machine lacks
// something is NOT MEASURED, and does not count.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("reliability: ")
	only := flag.String("only", "", "check only the bars with these `names`, comma-separated")
	broken := flag.Bool("break", false, "plant the fault of each bar, and expect the bar to fail")
	dir := flag.String("dir", "", "`directory` for the output of the commands; empty: a temporary one, which is removed if all results are as expected")
	flag.Parse()
	if err := process.AtTop(); err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	chosen, err := choose(*only)
	if err != nil {
		log.Fatal(err)
	}
	at := *dir
	if at == "" {
		at, err = os.MkdirTemp("", "reliability-")
	} else if at, err = filepath.Abs(at); err == nil {
		err = os.MkdirAll(at, 0o700)
	}
	if err != nil {
		log.Fatal(err)
	}
	var failed []string
	start := time.Now()
	for _, b := range chosen {
		began := time.Now()
		holds, figures, err := b.measure(ctx, at, *broken)
		if ctx.Err() != nil {
			log.Fatal(err)
		}
		verdict := "pass"
		unmeasured := errors.Is(err, errNotMeasured)
		switch {
		case unmeasured:
			verdict = "NOT MEASURED"
		case err != nil:
			verdict, figures = "ERROR", append(figures, err.Error())
		case *broken && !holds:
			verdict = "seen to fail"
		case *broken:
			verdict = "NOT SEEN TO FAIL"
		case !holds:
			verdict = "FAIL"
		}
		fmt.Printf("%-3s %-12s %5.0f s  %s\n", b.name, verdict, time.Since(began).Seconds(), b.what)
		for _, f := range figures {
			fmt.Println("                       ", f)
		}
		if !unmeasured && (err != nil || holds == *broken) {
			failed = append(failed, b.name)
		}
	}
	fmt.Printf("%d bars in %v\n", len(chosen), time.Since(start).Round(time.Second))
	if len(failed) > 0 {
		log.Fatalf("bars with an unexpected result: %s; the output of their commands is in %s", strings.Join(failed, ", "), at)
	}
	if *dir == "" {
		os.RemoveAll(at)
	}
}

// choose returns the bars of a comma-separated list of names, or all if it is empty.
func choose(names string) (chosen []bar, err error) {
	if names == "" {
		return bars, nil
	}
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(bars, func(b bar) bool { return b.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-only: no bar is called %q; they are R1 to %s", name, bars[len(bars)-1].name)
		}
		chosen = append(chosen, bars[i])
	}
	return chosen, nil
}

// Limits on the printed output of a piece: figures, and characters of each. Its log has everything.
const maxFigures, maxWidth = 8, 200

// measure runs the pieces of a bar. If broken is set it runs them with each of the bar's faults
// planted alone; the bar then holds if a fault is not noticed.
func (b *bar) measure(ctx context.Context, dir string, broken bool) (holds bool, figures []string, err error) {
	if !broken {
		return b.judge(ctx, dir, os.Environ(), nil)
	}
	for i := range b.faults {
		f := &b.faults[i]
		env, err := f.build(ctx, filepath.Join(dir, fmt.Sprintf("%s-fault-%d", b.name, i+1)), os.Environ())
		if err != nil {
			return false, figures, err
		}
		unnoticed, shown, err := b.judge(ctx, dir, env, f)
		if figures = append(figures, shown...); err != nil {
			return false, figures, err
		}
		holds = holds || unnoticed
	}
	return holds, figures, nil
}

// errNotMeasured means that this machine lacks what a piece needs.
var errNotMeasured = errors.New("not measured here")

// judge runs the pieces of a bar until one fails. With a fault it runs only the piece that must
// notice it; the bar then holds unless that piece fails with a message that belongs to the fault.
func (b *bar) judge(ctx context.Context, dir string, env []string,
	planted *fault) (holds bool, figures []string, err error) {
	pieces, first := b.pieces, 0
	if planted != nil {
		first = planted.piece
		p := pieces[first]
		p.command = slices.Concat(p.command, planted.args)
		pieces = []piece{p}
	}
	for i, p := range pieces {
		out, ended := p.run(ctx, env)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d.log", b.name, first+i+1)), out,
			0o600); err != nil {
			return false, nil, err
		}
		if ctx.Err() != nil {
			return false, nil, context.Cause(ctx)
		}
		if bytes.Contains(out, []byte("no tests to run")) {
			return false, nil, fmt.Errorf("%s: %q runs no test", b.name, p.command)
		}
		figures = append(figures, p.figures(out)...)
		switch {
		case bytes.Contains(out, []byte("--- SKIP: ")): // its message is among the figures
			return false, figures, errNotMeasured
		case ended == nil:
		case planted != nil && !planted.seen.Match(out):
			return true, append(figures, fmt.Sprintf("it fails, and does not say %q", planted.seen)), nil
		default:
			return false, append(figures, strings.Join(p.command, " ")+": "+ended.Error()), nil
		}
	}
	return true, figures, nil
}
