package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/shivad/shivad/bench/internal/ratio"
)

// A soak in pieces is for a machine that is not free for hours. A leak ends with the server of its
// piece, so pieces do not replace a run of hours; but a leak per hour or per request shows in each
// piece, if only as noise, and many pieces reduce the noise: their growth is added, and the median
// of their drifts counts.

// readPieces returns the reports in a file; none if there is no such file, or no name.
func readPieces(file string) (list []*report, err error) {
	text, err := os.ReadFile(file)
	if file == "" || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for lines := json.NewDecoder(bytes.NewReader(text)); ; {
		r := new(report)
		switch err := lines.Decode(r); {
		case err == io.EOF:
			return list, nil
		case err != nil:
			return nil, fmt.Errorf("%s: piece %d: %w", file, len(list)+1, err)
		case r.Length < windows*time.Second || len(r.P99) != windows:
			return nil, fmt.Errorf("%s: piece %d: expected the report of %d windows, got %v with %d", file, len(list)+1, windows, r.Length, len(r.P99))
		}
		list = append(list, r)
	}
}

// add adds the report to a file of pieces.
func (r *report) add(file string) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// lengthOf is the total length of pieces.
func lengthOf(list []*report) (sum time.Duration) {
	for _, r := range list {
		sum += r.Length
	}
	return sum
}

// buildOf tells builds of a program apart.
func buildOf(program string) (string, error) {
	text, err := os.ReadFile(program)
	return fmt.Sprintf("%x", sha256.Sum256(text))[:12], err
}

// wholeFrom is the total length from which pieces are held to the promises for hours.
const wholeFrom = time.Hour

// judge prints a line for each piece and one for all of them, and returns the broken promises:
// those of each piece, and of all together.
func judge(list []*report, length time.Duration) (broken []string) {
	var drifts []float64
	var grown, hours float64 // of heap, in bytes, after the first window of each
	var answered, refused int64
	builds := make(map[string]bool)
	for i, r := range list {
		at, d := slope(r.filled()), r.drift()
		drifts = append(drifts, d)
		h := (r.Length - r.Length/windows).Hours()
		grown, hours = grown+at*h, hours+h
		answered, refused = answered+r.Answered, refused+r.Refused
		builds[r.Build] = true
		fmt.Printf("piece %d, %s, %v of build %s: %d answered, %d refused, %d lost; heap %.2f MiB, %.2f in the end, %+.2f MiB/h; p99 %v, %.2f times that in the end; %d goroutines and %d descriptors, %+d and %+d in the end\n",
			i+1, r.Began.UTC().Format(time.DateTime), r.Length, r.Build, r.Answered, r.Refused, r.Lost, float64(r.Before.Heap)/(1<<20), float64(r.After.Heap)/(1<<20), at/(1<<20),
			r.P99[0].Round(10*time.Microsecond), d, r.Before.Goroutines, r.Before.Descriptors, r.After.Goroutines-r.Before.Goroutines, r.After.Descriptors-r.Before.Descriptors)
		for _, b := range r.broken() {
			broken = append(broken, fmt.Sprintf("piece %d: %s", i+1, b))
		}
	}
	all := lengthOf(list)
	drift := ratio.Median(drifts)
	fmt.Printf("%v of %v in %d pieces of %d builds: %d answered, %d refused; the heap grew by %.2f MiB in %.2f h; p99 in the end %.2f times that of the start, by the median\n",
		all, length, len(list), len(builds), answered, refused, grown/(1<<20), hours, drift)
	if all < wholeFrom {
		return broken
	}
	if most := maxSlope * hours; grown > most {
		broken = append(broken, fmt.Sprintf("all pieces: the heap grows by %.2f MiB in %.2f h, want %.2f at most", grown/(1<<20), hours, most/(1<<20)))
	}
	if drift > maxDrift {
		broken = append(broken, fmt.Sprintf("all pieces: the p99 of the end is %.2f times that of the start by the median, want %g at most", drift, maxDrift))
	}
	return broken
}
