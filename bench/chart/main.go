// Command chart draws a figure, described as JSON on its standard input (package figure), into a
// file:
//
//	go run -C bench/chart . -o /tmp/figure.svg < figure.json
//
// The extension of the file's name selects its kind, .svg or .png. A relative name is relative to
// this directory.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/shivad/shivad/bench/internal/figure"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("chart: ")
	file := flag.String("o", "", "`file` to draw into, .svg or .png")
	flag.Parse()
	if flag.NArg() > 0 || *file == "" {
		log.Fatal("usage: chart -o FILE.svg|FILE.png < DESCRIPTION")
	}
	if err := run(os.Stdin, *file); err != nil {
		log.Fatal(err)
	}
}

func run(description io.Reader, file string) error {
	var f figure.Figure
	d := json.NewDecoder(description)
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return fmt.Errorf("the description is not that of a figure: %w", err)
	}
	image, err := drawFigure(&f, filepath.Ext(file))
	if err != nil {
		return err
	}
	w, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := image.WriteTo(w); err != nil {
		w.Close()
		return err
	}
	return w.Close()
}
