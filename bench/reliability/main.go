// Command reliability holds shivad to those bars of reliability that tests measure, and prints a
// line for each with its verdict, and below it the figures.
//
//	reliability [-only R2,R7] [-break] [-dir DIR]
//
// With -break it plants a fault in what each bar is about, in a copy of the source that the compiler
// reads instead, and a bar passes if it is seen to fail. It exits with 1 if a bar does not hold.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
)

// A bar is a promise.
type bar struct {
	name   string
	what   string
	pieces []piece
	fault  *fault // nil: it has no planted one
}

// A piece is a test, as a command that fails when the bar does not hold.
type piece struct{ command []string }

// A fault is a change of one place of a file, which the bar has to notice.
type fault struct{ file, was, is string }

func main() {
	log.SetFlags(0)
	log.SetPrefix("reliability: ")
	only := flag.String("only", "", "these bars alone, `names` with commas between")
	broken := flag.Bool("break", false, "plant the fault of each bar that has one, and expect it to fail")
	dir := flag.String("dir", "", "`directory` for what the commands print; empty: a new one, which is removed if all is well")
	flag.Parse()
	if err := process.AtTop(); err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	chosen, err := choose(*only, *broken)
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
	for _, b := range chosen {
		began := time.Now()
		holds, figures, err := b.measure(ctx, at, *broken)
		if err != nil {
			log.Fatal(err)
		}
		verdict := "pass"
		switch {
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
		if holds == *broken {
			failed = append(failed, b.name)
		}
	}
	if len(failed) > 0 {
		log.Fatalf("not as promised: %s; what was printed is in %s", strings.Join(failed, ", "), at)
	}
	if *dir == "" {
		os.RemoveAll(at)
	}
}

// choose returns the bars of a list of names, all for none, and of those with faults only where
// these are planted.
func choose(names string, faults bool) (chosen []bar, err error) {
	for _, b := range bars {
		if faults && b.fault == nil {
			continue
		}
		if names == "" || slices.Contains(strings.Split(names, ","), b.name) {
			chosen = append(chosen, b)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no bar is called %q, or none of them has a fault to plant", names)
	}
	return chosen, nil
}

// A bar shows so many of the lines that a test logs, and so much of each. All are in its log.
const maxFigures, maxWidth = 4, 200

// measure runs the pieces of a bar until one does not hold.
func (b *bar) measure(ctx context.Context, dir string, broken bool) (holds bool, figures []string, err error) {
	env := os.Environ()
	if broken {
		if env, err = b.fault.build(ctx, filepath.Join(dir, b.name), env); err != nil {
			return false, nil, err
		}
	}
	for i, p := range b.pieces {
		var out bytes.Buffer
		c := exec.CommandContext(ctx, p.command[0], p.command[1:]...)
		c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
		c.Stdout, c.Stderr, c.Env, c.WaitDelay = &out, &out, env, time.Minute
		ended := c.Run()
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d.log", b.name, i+1)), out.Bytes(), 0o600); err != nil {
			return false, nil, err
		}
		if ctx.Err() != nil {
			return false, nil, context.Cause(ctx)
		}
		for _, found := range logged.FindAllSubmatch(out.Bytes(), maxFigures) {
			figures = append(figures, fmt.Sprintf("%.*s", maxWidth, found[1]))
		}
		if bytes.Contains(out.Bytes(), []byte("no tests to run")) {
			return false, nil, fmt.Errorf("%s: %q runs no test", b.name, p.command)
		}
		if ended != nil {
			return false, append(figures, strings.Join(p.command, " ")+": "+ended.Error()), nil
		}
	}
	return true, figures, nil
}

// build builds shivad with the fault into a directory, and returns the environment in which tests
// use that, and go builds whatever has the fault.
func (f *fault) build(ctx context.Context, dir string, env []string) ([]string, error) {
	overlay, err := f.plant(dir)
	if err != nil {
		return nil, err
	}
	env = append(env, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay), "SHIVA_E2E_BIN="+dir)
	c := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "./cmd/shivad")
	c.Env = env
	if out, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("with the fault in %s: %w\n%s", f.file, err, out)
	}
	return env, nil
}

// plant writes the file with the fault into a directory, and returns what go build -overlay takes.
func (f *fault) plant(dir string) (overlay string, err error) {
	text, err := f.text()
	if err != nil {
		return "", err
	}
	original, err := filepath.Abs(f.file)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	changed := filepath.Join(dir, filepath.Base(f.file))
	if err := os.WriteFile(changed, text, 0o600); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, list, 0o600)
}

// text is the file with the fault in it.
func (f *fault) text() ([]byte, error) {
	text, err := os.ReadFile(f.file)
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(text, []byte(f.was)); n != 1 {
		return nil, fmt.Errorf("%s: expected this once, where the fault is planted, found it %d times: %s", f.file, n, f.was)
	}
	return bytes.Replace(text, []byte(f.was), []byte(f.is), 1), nil
}
