package containers_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers/containertest"
)

// TestLogFlood: containers that register and leave again and again neither flood the log nor hide
// another model's lines. The first lines are logged, and the number of dropped ones.
func TestLogFlood(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		const loops = 300
		flood := echo(nil)
		flood.Name = "flood"
		for range loops { // all at one moment of the fake clock
			r.start(t, flood).Kill()
			synctest.Wait()
		}
		r.start(t, echo(nil))
		count := func(words ...string) (n int) {
			for line := range strings.Lines(r.log.String()) {
				all := true
				for _, w := range words {
					all = all && strings.Contains(line, w)
				}
				if all {
					n++
				}
			}
			return n
		}
		if up, down := count("registered", "model=flood/1"),
			count("gone", "model=flood/1", "reason="); up != 10 || down != 10 {
			t.Errorf("%d registrations and %d ends are logged, expected the first 10 of each", up, down)
		}
		if count("registered", "model=echo/1") != 1 {
			t.Error("another model's line is missing")
		}
		if count("were dropped") != 0 {
			t.Error("logged the dropped lines before the second was over")
		}
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		want := fmt.Sprintf("lines=%d most_about=flood/1", 2*loops-20)
		if count("were dropped", want) != 1 {
			t.Errorf("expected one line with %q", want)
		}
		r.start(t, flood)
		if count("registered", "model=flood/1") != 11 {
			t.Error("a second later nothing was logged")
		}
	})
}

// TestLogFloodOfNames: any number of models share a bound, lines dropped when the listener closes
// are counted, and unregistered peers have lines of their own.
func TestLogFloodOfNames(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		for i := range 150 {
			m := echo(nil)
			m.Name = fmt.Sprint("m", i)
			r.start(t, m)
		}
		mine, theirs := containertest.Pipe()
		if err := r.Add(theirs); err != nil {
			t.Fatal(err)
		}
		mine.Close()
		synctest.Wait()
		if n := strings.Count(r.log.String(), "container registered"); n != 100 {
			t.Errorf("%d registrations are logged, expected 100", n)
		}
		if n := strings.Count(r.log.String(), "ended before it registered"); n != 1 {
			t.Errorf("%d lines about the stranger", n)
		}
		r.Close()
		// 50 arrivals, 150 departures.
		if want := "lines=200"; !strings.Contains(r.log.String(), want) {
			t.Errorf("expected %q", want)
		}
	})
}
