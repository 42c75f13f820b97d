package clock

import (
	"testing"
	"time"
)

// TestClose: no timer fires any more, not even one set later, and the goroutine has ended.
func TestClose(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	fired := make(chan struct{}, 2)
	timer := c.AfterFunc(5*time.Millisecond, func() { fired <- struct{}{} })
	c.Close()
	<-c.done
	c.AfterFunc(0, func() { fired <- struct{}{} })
	timer.Reset(0)
	c.fire() // as if the alarm had gone off
	if len(fired) > 0 {
		t.Error("a timer fired after Close")
	}
	timer.Stop()
}
