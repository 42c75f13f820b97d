package access

import "time"

// Over Shiva a message is admitted or refused once it is complete. A client that ignores refusals
// could make the server read any number of bytes. So a second bucket of each payer holds the bytes
// that were read and not admitted: those of messages that are refused, for whatever reason, and of
// messages that are not complete. It drains at the payer's BytesPerSecond, and while it holds more
// than a burst, the payer's connections are read only as fast as it drains. At most twice the rate
// is read: what is admitted, and as much again.
//
// An unfinished message does not count against itself while the rates have something left, since it
// will be admitted: however large it is, it is read at full speed. So a client within its rates
// does not wait. Otherwise a burst of it does not count. Of several connections the one that has
// read most of its message comes first, as the others' bytes count against each and its own do not:
// if all were read alike, all messages would become complete together, and all but one be refused.
const (
	// A pause below shortPause is not worth its wake-up: the next bytes are paid for afterwards.
	shortPause = time.Millisecond
	// After longestPause at most a reader asks again: a message of another connection may have been
	// admitted meanwhile, whose bytes counted against this one.
	longestPause = time.Second
)

// Read charges bytes that were read on one connection, less those of requests that were admitted,
// and returns how long the next read must wait; usually 0. A reader that has waited asks again,
// with 0 bytes. unfinished is the number of bytes of a message that may still be admitted.
func (p Payers) Read(bytes, unfinished int64, now time.Time) (pause time.Duration) {
	for _, a := range p {
		if l, _ := a.due(); l != nil && l.Of[BytesPerSecond] > 0 {
			pause = max(pause, a.read(bytes, unfinished, l, a.clock(now)))
		}
	}
	if pause < shortPause {
		return 0
	}
	return min(pause, longestPause)
}

func (a *Account) read(bytes, unfinished int64, l *Limits, now time.Duration) time.Duration {
	a.reading.pay(bytes, l.Of[BytesPerSecond], now)
	free := price(unfinished, l.Of[BytesPerSecond])
	if a.exhausted(l, now) {
		free = min(free, l.burst())
	}
	return wait(a.reading.paid.Load(), l.burst()+free, now)
}

// exhausted reports whether a request that is complete now would be refused because of a rate.
func (a *Account) exhausted(l *Limits, now time.Duration) bool {
	for k := range a.rates {
		if l.Of[k] > 0 && wait(a.rates[k].paid.Load(), l.burst(), now) > 0 {
			return true
		}
	}
	return false
}
