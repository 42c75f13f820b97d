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
