package main

import (
	"bytes"
	"encoding/xml"
	"image/color"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sample has every feature: two panels, a line with dashes, groups of bars on a logarithmic axis.
const sample = `{"columns": 2, "width": 8, "height": 6, "panels": [
	{"title": "ages", "x": {"label": "seconds"}, "y": {"label": "ms", "min": 0}, "legend": {"up": 1},
	 "series": [{"name": "newest", "x": [0, 1, 2], "y": [120, 180, 150], "width": 2, "dashes": [3, 2]},
	            {"name": "all", "x": [0, 1, 2], "y": [120, 900, 1800], "color": "#000000"}]},
	{"title": "costs", "x": {"names": ["door", "queue"]}, "y": {"label": "us", "log": true, "min": 0.1, "max": 100},
	 "series": [{"bars": true, "y": [0.3, 20], "color": "#ff0000"}, {"bars": true, "y": [3, 50]}]}]}`

func TestSVG(t *testing.T) {
	file := filepath.Join(t.TempDir(), "figure.svg")
	if err := run(strings.NewReader(sample), file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("not XML: %v", err)
		}
	}
	for _, want := range []string{">ages<", ">costs<", ">newest<", ">all<", ">door<", ">queue<", ">seconds<", "stroke-dasharray"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("the figure has no %s", want)
		}
	}
}

// Bars on a logarithmic axis begin at its lower end and have their series' colour.
func TestBarsOnPNG(t *testing.T) {
	file := filepath.Join(t.TempDir(), "figure.png")
	if err := run(strings.NewReader(sample), file); err != nil {
		t.Fatal(err)
	}
	r, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	img, err := png.Decode(r)
	if err != nil {
		t.Fatal(err)
	}
	// The first series has a bar of 0.3 and one of 20, half a decade and 2.3 decades high.
	var heights []int
	for x := range img.Bounds().Dx() {
		n := 0
		for y := range img.Bounds().Dy() {
			if img.At(x, y) == (color.RGBA{0xff, 0, 0, 0xff}) {
				n++
			}
		}
		if n > 0 && (len(heights) == 0 || heights[len(heights)-1] != n) {
			heights = append(heights, n)
		}
	}
	if len(heights) != 2 {
		t.Fatalf("red columns are %v pixels high, want two bars", heights)
	}
	// log(200) / log(3) = 4.8.
	if ratio := float64(heights[1]) / float64(heights[0]); ratio < 4.5 || ratio > 5.1 {
		t.Errorf("the bars are %v pixels high, want 4.8 times as high for 20 as for 0.3 above 0.1", heights)
	}
}

func TestRefusals(t *testing.T) {
	panel := func(series string) string {
		return `{"width": 8, "height": 6, "panels": [{"title": "p", ` + series + `}]}`
	}
	for _, tt := range []struct{ description, file, want string }{
		{sample, "figure.gif", ".svg or .png"},
		{"{", "a.svg", "not that of a figure"},
		{`{"colour": 1}`, "a.svg", `unknown field "colour"`},
		{`{"width": 8, "height": 6}`, "a.svg", "expected at least one"},
		{panel(`"series": [{"name": "s", "x": [1], "y": [1, 2]}]`), "a.svg", `panel 1, "p": series "s": 1 x for 2 y`},
		{panel(`"series": [{"name": "s", "x": [1], "y": [1], "color": "red"}]`), "a.svg", "such as #0072b2"},
		{panel(`"y": {"log": true}, "series": [{"name": "s", "x": [1], "y": [0]}]`), "a.svg", "only what is above 0"},
		{panel(`"y": {"log": true}, "series": [{"name": "s", "bars": true, "y": [1]}]`), "a.svg", "need its min"},
		{panel(`"y": {"log": true, "min": 5, "max": 2}, "series": [{"name": "s", "x": [1, 2], "y": [1, 2]}]`), "a.svg", "cannot be logarithmic"},
		{panel(`"series": [{"name": "s", "x": [], "y": []}]`), "a.svg", `series "s": no values`},
	} {
		file := filepath.Join(t.TempDir(), tt.file)
		if err := run(strings.NewReader(tt.description), file); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error with %q", tt.description, err, tt.want)
		}
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s: left a file behind", tt.description)
		}
	}
}
