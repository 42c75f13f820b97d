//go:build e2e

package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/hosttest"
)

// `make run EXAMPLE=selection` on other ports: the weights move to the best model, then away from
// it, and the application is as good as the best of its models at any time, except while it notices
// the bad build.
func TestE2ERun(t *testing.T) {
	t.Chdir("../../..")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	o := options{tcp: hosttest.Addr(t), containers: hosttest.Addr(t), admin: hosttest.Addr(t),
		svg: filepath.Join(t.TempDir(), "selection.svg")}
	var out bytes.Buffer
	rounds, err := run(ctx, o, &out)
	defer func() {
		if t.Failed() {
			t.Log(out.String())
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	const sharp, inked, blurred = 0, 1, 2
	half := len(rounds) / 2
	if half != 359 {
		t.Fatalf("%d rounds, expected 359 in each half", len(rounds))
	}

	// A model that errs loses nearly half its weight to the others for a moment, so the test
	// averages weights over a while.
	weight := func(model int, rounds []round) (mean float64) {
		for _, r := range rounds {
			mean += r.shares[model] / float64(len(rounds))
		}
		return mean
	}
	first, last := rounds[half-100:half], rounds[len(rounds)-100:]
	for _, c := range []struct {
		when        string
		rounds      []round
		model       int
		least, most float64
	}{
		{"after the first feedback", rounds[:1], sharp, 0.25, 0.5},
		{"before the bad build", first, sharp, 0.7, 1},
		{"at the end", last, sharp, 0, 0.05},
		{"at the end", last, inked, 0.7, 1},
	} {
		if w := weight(c.model, c.rounds); w < c.least || w > c.most {
			t.Errorf("%s model %d has weight %.3f, expected %.2f to %.2f", c.when, c.model, w, c.least, c.most)
		}
	}

	// As good as the best in each half, less two points and the cost of twenty images that a bad
	// build decided; over both halves, better than any model.
	right := func(rounds []round) (application, best int) {
		for m := range models {
			best = max(best, modelRight(rounds, m))
		}
		return applicationRight(rounds), best
	}
	if application, best := right(rounds[:half]); application < best-7 {
		t.Errorf("first half: the application was right %d times, its best model %d", application, best)
	}
	if application, best := right(rounds[half:]); application < best-7-20 {
		t.Errorf("second half: the application was right %d times, its best model %d", application, best)
	}
	if application, best := right(rounds); application <= best {
		t.Errorf("in all: the application was right %d times, its best model %d", application, best)
	}
	if a, b := modelRight(rounds[half:], sharp), modelRight(rounds[half:], blurred); a >= b {
		t.Errorf("the bad build was right %d times, the worst of the others %d", a, b)
	}

	for _, want := range []string{"Version 2 of sharp", "feedbacks  weights", "      718  ", "\napplication  "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("expected %q in what is printed", want)
		}
	}
	svg, err := os.ReadFile(o.svg)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{">sharp<", ">inked<", ">blurred<", ">right of the last 40<"} {
		if !bytes.Contains(svg, []byte(want)) {
			t.Errorf("expected %s in the picture", want)
		}
	}
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is not XML: %v", err)
		}
	}
}
