package main

import (
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/bench/load"
)

// Turns are compared within a round, and each comparison is held to its own limit.
func TestEffectRatios(t *testing.T) {
	turns := func(millis ...time.Duration) (list []effectTurn) {
		for i, m := range millis {
			list = append(list, effectTurn{p99: m * time.Millisecond, whole: time.Duration(i+1) * time.Second})
		}
		return list
	}
	const whole = ", the same of whole turns 1.00 - 1.00..1.00 reported"
	e := effect{usual: turns(10, 100, 10), attacked: turns(12, 120, 40), burnt: turns(10, 60, 40)}
	for _, c := range []struct {
		toUsual, toBurnt float64
		want             string
	}{
		{1.5, 1.1, "without it 1.20 <= 1.5 1.20..4.00 pass" + whole + ", as much CPU burnt 1.20 <= 1.1 1.00..2.00 FAIL" + whole},
		{1.1, 1.5, "without it 1.20 <= 1.1 1.20..4.00 FAIL" + whole + ", as much CPU burnt 1.20 <= 1.5 1.00..2.00 pass" + whole},
		{0, 0, "without it 1.20 - 1.20..4.00 reported" + whole + ", as much CPU burnt 1.20 - 1.00..2.00 reported" + whole},
	} {
		var got []string
		for _, r := range e.ratios("an attack", c.toUsual, c.toBurnt) {
			got = append(got, strings.TrimPrefix(strings.TrimPrefix(strings.Join(r.Cells(), " "), "p99 beside an attack / "), "beside "))
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("got %s\nwant %s", text, c.want)
		}
	}
	if r := (&effect{}).ratios("an attack", 1.5, 0)[0]; r.Holds() {
		t.Error("an effect that was not measured passes")
	}
}

// The majority of its pieces decides about a turn: not the piece in which the machine stood still,
// and not a piece without requests.
func TestP99OfPieces(t *testing.T) {
	r := &load.Result{Pieces: make([]load.Histogram, 5)}
	for i := range r.Pieces[:4] {
		for range 98 {
			r.Pieces[i].Add(time.Millisecond)
		}
		for range 2 {
			r.Pieces[i].Add(time.Duration(2+i) * time.Millisecond)
		}
	}
	r.Pieces[3].Add(time.Second)
	if p99 := p99Of(r); p99.Round(time.Millisecond) != 3*time.Millisecond {
		t.Errorf("got %v, expected the middle of 0, 2, 3, 4 and 5 ms", p99)
	}
}

// Rates are compared within a round and held to 0.7; processor time is only reported.
func TestEncryptedRatios(t *testing.T) {
	turns := func(rate ...float64) (all []sample) {
		for _, r := range rate {
			all = append(all, sample{rate: r, cpuPerRequest: time.Duration(1e9 / r)})
		}
		return all
	}
	all := samples{
		echoOfTLS: {turns(1000, 100, 1000), turns(10, 1, 10)},
		doorOfTLS: {turns(700, 70, 500), turns(6, 0.6, 10)},
	}
	var verdicts []string
	for _, r := range all.encryptedRatios() {
		verdicts = append(verdicts, strings.Join(r.Cells()[1:], " "))
	}
	if got, want := strings.Join(verdicts, ", "), "0.70 >= 0.7 0.50..0.70 pass, 1.43 - 1.43..2.00 reported, 0.60 >= 0.7 0.60..1.00 FAIL, 1.67 - 1.00..1.67 reported"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
