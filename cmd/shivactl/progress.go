package main

import (
	"fmt"
	"os"
	"time"
	"unicode/utf8"
)

const (
	quickly     = 2 * time.Second  // what takes less shows no progress
	betweenTold = 10 * time.Second // lines of progress without a terminal
)

// progress tells on standard error how far something has come that takes more than two seconds,
// until stop: on a terminal by a line that changes each second, otherwise by a line now and then.
// Nobody else may write there meanwhile.
func (c *cli) progress(text func(elapsed time.Duration) string) (stop func()) {
	if c.every > 0 { // the output says what is going on
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	terminal, width := terminalOf(c.stderr)
	go func() { // stop joins it
		defer close(ended)
		c.tell(done, terminal, width, text)
	}()
	return func() {
		close(done)
		<-ended
	}
}

func (c *cli) tell(done <-chan struct{}, terminal *os.File, width int, text func(time.Duration) string) {
	began, tick, told := time.Now(), time.NewTicker(time.Second), time.Now()
	defer tick.Stop()
	for {
		select {
		case <-done:
			if terminal != nil {
				fmt.Fprint(terminal, "\r\x1b[K")
			}
			return
		case now := <-tick.C:
			switch {
			case now.Sub(began) < quickly:
			case terminal != nil: // a wrapped line could not be erased
				fmt.Fprintf(terminal, "\r\x1b[K%s", cut(string(plain([]byte(text(now.Sub(began))))), width-1))
			case now.Sub(told) >= betweenTold:
				told = now
				fmt.Fprintln(c.stderr, text(now.Sub(began)))
			}
		}
	}
}

// cut returns at most a number of characters of a text.
func cut(text string, columns int) string {
	for i := range text {
		if utf8.RuneCountInString(text[:i]) >= columns {
			return text[:i]
		}
	}
	return text
}

// waiting is the progress of what only the server knows about.
func (c *cli) waiting(what string) (stop func()) {
	return c.progress(func(elapsed time.Duration) string {
		return fmt.Sprintf("%s: %.0f s, at most %v", what, elapsed.Seconds(), c.timeout)
	})
}
