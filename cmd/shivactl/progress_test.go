package main

import (
	"testing"
	"testing/synctest"
	"time"
)

// Without a terminal progress is a plain line now and then, and nothing for what is quick.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, one := range []struct {
			last time.Duration
			want string
		}{{8 * time.Second, ""}, {25 * time.Second, "start digits: 10 s, at most 1m0s\nstart digits: 20 s, at most 1m0s\n"}} {
			errs := new(record)
			c := &cli{stderr: printer{errs}, timeout: time.Minute}
			stop := c.waiting("start digits")
			time.Sleep(one.last)
			stop()
			if got := errs.String(); got != one.want {
				t.Errorf("after %v: %q", one.last, got)
			}
		}
	})
}
