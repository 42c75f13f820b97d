package quota

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/shiva/tensor"
)

// An Account is what one payer has taken. It may be charged after it was forgotten: whoever holds
// something of it gives that back to it.
type Account struct {
	whose string    // as of Error.Whose
	began time.Time // the zero of its clocks: a bucket knows no other time
	pays  bool      // also where nothing is bounded, so that its figures are there to be seen

	limits atomic.Pointer[Limits] // nil: nothing is bounded

	requests, bytes flow                // those of Use
	rates           [2]bucket           // RequestsPerSecond, BytesPerSecond
	held            [Kinds]atomic.Int64 // UnreadBytes, GRPCStreams and Connections
	refused         [Kinds]atomic.Uint64
	all             *[Kinds]atomic.Uint64 // refused, of all of its sort; nil: nobody adds them up
	last            [Kinds]atomic.Int64   // when something was refused, since began
}

func newAccount(whose string, pays bool, l *Limits) *Account {
	a := &Account{whose: whose, pays: pays, began: time.Now()}
	a.limits.Store(l)
	return a
}

// limit makes other limits hold. What is taken stays taken. A rate that is another one begins
// anew, with a full bucket: a debt by the old one would be paid at the speed of the old one.
func (a *Account) limit(l *Limits) {
	old := a.limits.Swap(l)
	for k := range a.rates {
		if old == nil || l == nil || old.Of[k] != l.Of[k] {
			a.rates[k].paid.Store(0)
		}
	}
}

// A flow is what begins and ends.
type flow struct{ begun, ended atomic.Int64 }

// begin adds n, and returns what is in flight. The count of what has ended is read last, so that
// this is never more than what there is.
func (f *flow) begin(n int64) int64 { return f.begun.Add(n) - f.ended.Load() }

func (f *flow) end(n int64) {
	if ended := f.ended.Add(n); tensor.Invariants && ended > f.begun.Load() {
		panic(tensor.Violation(fmt.Sprintf("quota: %d have ended, and %d begun", ended, f.begun.Load())))
	}
}

// inFlight reads in the other order than begin: it may miss what has just begun, and is never
// negative.
func (f *flow) inFlight() int64 {
	ended := f.ended.Load()
	return f.begun.Load() - ended
}

// A bucket is a rate. It knows until when all that was taken is paid for.
type bucket struct{ paid atomic.Int64 } // ns since Account.began

// take takes n, at so much a second, unless what was taken before is paid for only in more than
// burst from now on.
func (b *bucket) take(n, rate int64, burst, now time.Duration) (again time.Duration, ok bool) {
	price := price(n, rate)
	for {
		paid := b.paid.Load()
		from := max(paid, int64(now))
		if over := time.Duration(from) - now - burst; over >= 0 {
			return over + 1, false
		}
		if b.paid.CompareAndSwap(paid, from+price) {
			return 0, true
		}
	}
}

// pay takes n without asking, of a request that was admitted.
func (b *bucket) pay(n, rate int64, now time.Duration) {
	price := price(n, rate)
	for {
		paid := b.paid.Load()
		if b.paid.CompareAndSwap(paid, max(paid, int64(now))+price) {
			return
		}
	}
}

// back gives back what was taken for a request that is refused.
func (b *bucket) back(n, rate int64) { b.paid.Add(-price(n, rate)) }

// price is how long n takes at a rate, in ns: up to some days, for the largest message at the least
// rate.
func price(n, rate int64) int64 { return int64(float64(n) / float64(rate) * float64(time.Second)) }

// refuse notes that something is over a quota.
func (a *Account) refuse(k Kind, limit, has int64, again, now time.Duration) error {
	a.refused[k].Add(1)
	if a.all != nil {
		a.all[k].Add(1)
	}
	a.last[k].Store(int64(max(now, 1)))
	return &Error{Whose: a.whose, Kind: k, Limit: limit, Has: has, Again: again}
}

// clock is the account's time.
func (a *Account) clock(now time.Time) time.Duration { return now.Sub(a.began) }

// begin charges a request of so many bytes.
func (a *Account) begin(bytes int64, l *Limits, now time.Duration) error {
	n := a.requests.begin(1)
	if l == nil {
		a.bytes.begin(bytes)
		return nil
	}
	if most := l.Of[RequestsInFlight]; most > 0 && n > most {
		a.requests.end(1)
		return a.refuse(RequestsInFlight, most, n-1, 0, now)
	}
	err := a.more(bytes, bytes, l, now)
	if rate := l.Of[RequestsPerSecond]; err == nil && rate > 0 {
		if again, ok := a.rates[RequestsPerSecond].take(1, rate, l.burst(), now); !ok {
			a.less(bytes, l)
			err = a.refuse(RequestsPerSecond, rate, 0, again, now)
		}
	}
	if err != nil {
		a.requests.end(1)
	}
	return err
}

// more charges bytes, of a request that has so many with them. The first ones decide whether it is
// within its rate. Those that follow, as of a body whose size nobody has announced, only pay: by
// then the request itself may have used up the rate.
func (a *Account) more(bytes, of int64, l *Limits, now time.Duration) error {
	n := a.bytes.begin(bytes)
	if l == nil {
		return nil
	}
	if most := l.Of[BytesInFlight]; most > 0 && n > most && n > of {
		a.bytes.end(bytes)
		return a.refuse(BytesInFlight, most, n-bytes, 0, now)
	}
	switch rate := l.Of[BytesPerSecond]; {
	case rate == 0 || bytes == 0:
	case bytes < of:
		a.rates[BytesPerSecond].pay(bytes, rate, now)
	default:
		if again, ok := a.rates[BytesPerSecond].take(bytes, rate, l.burst(), now); !ok {
			a.bytes.end(bytes)
			return a.refuse(BytesPerSecond, rate, 0, again, now)
		}
	}
	return nil
}

// less takes more back, of a request that is refused.
func (a *Account) less(bytes int64, l *Limits) {
	a.bytes.end(bytes)
	if l != nil && l.Of[BytesPerSecond] > 0 {
		a.rates[BytesPerSecond].back(bytes, l.Of[BytesPerSecond])
	}
}

// unbegin takes begin back, of a request that another payer is refused.
func (a *Account) unbegin(bytes int64, l *Limits) {
	a.less(bytes, l)
	a.requests.end(1)
	if l != nil && l.Of[RequestsPerSecond] > 0 {
		a.rates[RequestsPerSecond].back(1, l.Of[RequestsPerSecond])
	}
}

func (l *Limits) burst() time.Duration {
	if l.Burst == 0 {
		return DefaultBurst
	}
	return l.Burst
}

// hold takes n of what is held. One alone may be of any size.
func (a *Account) hold(k Kind, n int64) error {
	has := a.held[k].Add(n)
	if l := a.limits.Load(); l != nil && l.Of[k] > 0 && has > l.Of[k] && has > n {
		a.release(k, n)
		return a.refuse(k, l.Of[k], has-n, 0, a.clock(time.Now()))
	}
	return nil
}

func (a *Account) release(k Kind, n int64) {
	if left := a.held[k].Add(-n); tensor.Invariants && left < 0 {
		panic(tensor.Violation(fmt.Sprintf("quota: %d %v are held", left, k)))
	}
}

// idle reports whether nobody would notice if the account began anew.
func (a *Account) idle(now time.Time) bool {
	for k := range a.rates {
		if a.rates[k].paid.Load() > int64(a.clock(now)) {
			return false
		}
	}
	for k := range a.held {
		if a.held[k].Load() != 0 {
			return false
		}
	}
	return a.requests.inFlight() == 0 && a.bytes.inFlight() == 0
}

// Usage is an account as operators see it.
type Usage struct {
	Whose    string
	Limits   Limits
	Has      [Kinds]int64 // now; of a rate how many it may not ask for yet, beyond its burst none
	Requests int64        // so far, those that were refused among them
	Bytes    int64        // of these
	Refused  [Kinds]uint64
	Since    [Kinds]time.Duration // since the last one was refused; of none negative
}

// Lately reports whether something was refused by a kind of quota in the last minute.
func (u *Usage) Lately(k Kind) bool { return u.Since[k] >= 0 && u.Since[k] < time.Minute }

func (a *Account) usage(now time.Time) Usage {
	u := Usage{Whose: a.whose, Requests: a.requests.begun.Load(), Bytes: a.bytes.begun.Load()}
	if l := a.limits.Load(); l != nil {
		u.Limits = *l
	}
	for k := range Kind(Kinds) {
		u.Has[k], u.Refused[k], u.Since[k] = a.held[k].Load(), a.refused[k].Load(), -1
		if at := a.last[k].Load(); at > 0 {
			u.Since[k] = max(0, a.clock(now)-time.Duration(at))
		}
	}
	u.Has[RequestsInFlight], u.Has[BytesInFlight] = a.requests.inFlight(), a.bytes.inFlight()
	return u
}
