package wake_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/server/internal/wake"
)

// Two signals that no goroutine takes are one, and neither waits.
func TestUpStandsForAllThatWereNotTaken(t *testing.T) {
	c := make(chan struct{}, 1)
	wake.Up(c)
	wake.Up(c)
	<-c
	select {
	case <-c:
		t.Fatal("a second signal was kept, expected one")
	default:
	}
}

func TestAfterEndsWithItsTimeOrBefore(t *testing.T) {
	for _, c := range []struct {
		name    string
		d, over time.Duration // over 0: never
		want    bool
		took    time.Duration
	}{
		{"the time passes", time.Second, 0, true, time.Second},
		{"all is over before", time.Minute, time.Second, false, time.Second},
		{"all is over later", time.Second, time.Minute, true, time.Second},
		{"no time", 0, 0, true, 0},
		{"less than none", -time.Second, time.Second, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				over := make(chan struct{})
				if c.over > 0 {
					time.AfterFunc(c.over, func() { close(over) })
				}
				began := time.Now()
				got := wake.After(c.d, over)
				if took := time.Since(began); got != c.want || took != c.took {
					t.Errorf("After(%v) = %t in %v, expected %t in %v", c.d, got, took, c.want, c.took)
				}
				time.Sleep(2 * time.Minute) // no goroutine of a case outlives it
			})
		})
	}
}

func TestEveryYieldsUntilAllIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		time.AfterFunc(3500*time.Millisecond, func() { close(over) })
		began, at := time.Now(), []time.Duration(nil)
		for now := range wake.Every(time.Second, over) {
			at = append(at, now.Sub(began))
		}
		if want := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}; !slices.Equal(at, want) {
			t.Errorf("it yielded at %v, expected %v", at, want)
		}
		if took := time.Since(began); took != 3500*time.Millisecond {
			t.Errorf("it ended after %v, expected as soon as all was over", took)
		}
	})
}

// A caller that leaves the loop gets no more values: the rest stays in the channel.
func TestEachEndsWithItsLoop(t *testing.T) {
	c, over := make(chan int, 3), make(chan struct{})
	c <- 1
	c <- 2
	c <- 3
	var got []int
	for v := range wake.Each(c, over) {
		if got = append(got, v); v == 2 {
			break
		}
	}
	if want := []int{1, 2}; !slices.Equal(got, want) || len(c) != 1 {
		t.Errorf("it yielded %v and left %d, expected %v and 1", got, len(c), want)
	}
}
