package access

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/shiva/tensor"
)

// An Account is what one payer has used. It stays valid after its identity or address has been
// forgotten: holders of requests and connections still return to it what they have charged.
type Account struct {
	payer string    // see QuotaError.Payer
	began time.Time // the zero of its clocks; buckets count from here
	pays  bool      // charged even without limits, so that operators see its usage

	limits atomic.Pointer[Limits] // nil: unlimited

	requests, bytes flow                 // charged by Use
	rates           [2]bucket            // RequestsPerSecond, BytesPerSecond
	expected        bucket               // RequestsPerSecond, including those being read
	reading         bucket               // BytesPerSecond, of what is not admitted
	arriving        atomic.Int64         // bytes for requests that are not complete, see Arrival
	held            [Quotas]atomic.Int64 // UnreadBytes, GRPCStreams, Connections
	refused         [Quotas]atomic.Uint64
	// all is the sum of refused over a group of accounts; nil: no group.
	all     *[Quotas]atomic.Uint64
	last    [Quotas]atomic.Int64 // time of the last refusal, since began
	turns   atomic.Int64         // time of the last turn given out, since began
	balance balance              // of requests that exceeded a rate, see pace.go
}

func newAccount(payer string, pays bool, l *Limits) *Account {
	a := &Account{payer: payer, pays: pays, began: time.Now()}
	a.limits.Store(l)
	return a
}

// limit replaces the limits; what is in use stays charged. A changed rate starts with a full
// bucket, since a debt is a time, computed with the old rate.
func (a *Account) limit(l *Limits) {
	old := a.limits.Swap(l)
	for k := range a.rates {
		if old == nil || l == nil || old.Of[k] != l.Of[k] {
			a.rates[k].paid.Store(0)
		}
	}
	a.expected.paid.Store(0)
	a.reading.paid.Store(0)
}

// A flow counts amounts that have begun and amounts that have ended.
type flow struct{ begun, ended atomic.Int64 }

// begin adds n and returns the amount in flight. It reads ended last, so the result never exceeds
// the real amount.
func (f *flow) begin(n int64) int64 { return f.begun.Add(n) - f.ended.Load() }

func (f *flow) end(n int64) {
	if ended := f.ended.Add(n); tensor.Invariants && ended > f.begun.Load() {
		panic(tensor.Violation(fmt.Sprintf("quota: %d have ended, and %d begun", ended, f.begun.Load())))
	}
}

// inFlight reads the counters in the opposite order to begin: it may miss an amount that has just
// begun, but is never negative.
func (f *flow) inFlight() int64 {
	ended := f.ended.Load()
	return f.begun.Load() - ended
}

// A bucket enforces a rate (GCRA). Its state is the time until which everything taken is paid for.
type bucket struct{ paid atomic.Int64 } // ns since Account.began

// take takes n at rate per second. It refuses while the debt of earlier takes is longer than burst;
// again is then the time until a retry is worthwhile.
func (b *bucket) take(n, rate int64, burst, now time.Duration) (again time.Duration, ok bool) {
	price := price(n, rate)
	for {
		paid := b.paid.Load()
		if again := wait(paid, burst, now); again > 0 {
			return again, false
		}
		if b.paid.CompareAndSwap(paid, int64(max(time.Duration(paid), now)+price)) {
			return 0, true
		}
	}
}

// wait returns how long until a debt is shorter than burst.
func wait(paid int64, burst, now time.Duration) time.Duration {
	return max(time.Duration(paid)-now-burst+1, 0)
}

// pay takes n unconditionally, for a request that has already been admitted.
func (b *bucket) pay(n, rate int64, now time.Duration) {
	price := price(n, rate)
	for {
		paid := b.paid.Load()
		if b.paid.CompareAndSwap(paid, int64(max(time.Duration(paid), now)+price)) {
			return
		}
	}
}

// refund returns the amount taken for a request that is then refused.
func (b *bucket) refund(n, rate int64) { b.paid.Add(-int64(price(n, rate))) }

// price is how long n takes at a rate: several days for the largest message at the lowest rate.
func price(n, rate int64) time.Duration {
	return time.Duration(float64(n) / float64(rate) * float64(time.Second))
}

// refuse counts a refusal and returns its error.
func (a *Account) refuse(k Quota, limit, has int64, now time.Duration) *QuotaError {
	a.refused[k].Add(1)
	if a.all != nil {
		a.all[k].Add(1)
	}
	a.last[k].Store(int64(max(now, 1)))
	return &QuotaError{Payer: a.payer, Kind: k, Limit: limit, Has: has}
}

// decline is refuse for a request over a rate.
func (a *Account) decline(d *excess, rate int64, again, now time.Duration) *QuotaError {
	a.balance.refused()
	e := a.refuse(d.kind, rate, 0, now)
	e.Again, e.excess = again, d
	return e
}

// clock converts a time to the account's clock.
func (a *Account) clock(now time.Time) time.Duration { return now.Sub(a.began) }

// begin charges a request of that many bytes.
func (a *Account) begin(bytes int64, l *Limits, now time.Duration) error {
	n := a.requests.begin(1)
	if l == nil {
		a.bytes.begin(bytes)
		return nil
	}
	if most := l.Of[RequestsInFlight]; most > 0 && n > most {
		a.requests.end(1)
		return a.refuse(RequestsInFlight, most, n-1, now)
	}
	err := a.addBytes(bytes, bytes, l, now)
	if rate := l.Of[RequestsPerSecond]; err == nil && rate > 0 {
		if again, ok := a.rates[RequestsPerSecond].take(1, rate, l.burst(), now); !ok {
			a.returnBytes(bytes, l)
			err = a.decline(&excess{a, RequestsPerSecond, price(1, rate)}, rate, again, now)
		}
	}
	if err != nil {
		a.requests.end(1)
	}
	return err
}

// addBytes charges bytes to a request, whose total is then of. The first bytes of a request decide
// whether it is within its rate. Later bytes, as of a chunked body, only pay: by then the request
// itself may have used up the rate.
func (a *Account) addBytes(bytes, of int64, l *Limits, now time.Duration) error {
	n := a.bytes.begin(bytes) + a.arriving.Load()
	if l == nil {
		return nil
	}
	if most := l.Of[BytesInFlight]; most > 0 && n > most && n > of {
		a.bytes.end(bytes)
		return a.refuse(BytesInFlight, most, n-bytes, now)
	}
	switch rate := l.Of[BytesPerSecond]; {
	case rate == 0 || bytes == 0:
	case bytes < of:
		a.rates[BytesPerSecond].pay(bytes, rate, now)
	default:
		if again, ok := a.rates[BytesPerSecond].take(bytes, rate, l.burst(), now); !ok {
			a.bytes.end(bytes)
			return a.decline(&excess{a, BytesPerSecond, price(bytes, rate)}, rate, again, now)
		}
	}
	return nil
}

// returnBytes undoes addBytes, for a request that is then refused.
func (a *Account) returnBytes(bytes int64, l *Limits) {
	a.bytes.end(bytes)
	if l != nil && l.Of[BytesPerSecond] > 0 {
		a.rates[BytesPerSecond].refund(bytes, l.Of[BytesPerSecond])
	}
}

// undo undoes begin, for a request that another of its payers cannot afford.
func (a *Account) undo(bytes int64, l *Limits) {
	a.returnBytes(bytes, l)
	a.requests.end(1)
	if l != nil && l.Of[RequestsPerSecond] > 0 {
		a.rates[RequestsPerSecond].refund(1, l.Of[RequestsPerSecond])
	}
}

func (l *Limits) burst() time.Duration { return cmp.Or(l.Burst, DefaultBurst) }

// hold charges n of a kind that is held until release. A single holding may have any size.
func (a *Account) hold(k Quota, n int64) error {
	has := a.held[k].Add(n)
	if l := a.limits.Load(); l != nil && l.Of[k] > 0 && has > l.Of[k] && has > n {
		a.release(k, n)
		return a.refuse(k, l.Of[k], has-n, a.clock(time.Now()))
	}
	return nil
}

func (a *Account) release(k Quota, n int64) {
	if left := a.held[k].Add(-n); tensor.Invariants && left < 0 {
		panic(tensor.Violation(fmt.Sprintf("quota: %d %v are held", left, k)))
	}
}

// idle reports whether replacing the account with a new one would have no visible effect.
func (a *Account) idle(now time.Time) bool {
	for _, b := range []*bucket{&a.rates[RequestsPerSecond], &a.rates[BytesPerSecond], &a.reading} {
		if b.paid.Load() > int64(a.clock(now)) {
			return false
		}
	}
	for k := range a.held {
		if a.held[k].Load() != 0 {
			return false
		}
	}
	return a.requests.inFlight() == 0 && a.bytes.inFlight() == 0 && a.arriving.Load() == 0
}

// Payer names the account's owner: `identity "cam"`, or "address 192.0.2.1". A nil account is
// that of an unknown client.
func (a *Account) Payer() string {
	if a == nil {
		return "an unknown client"
	}
	return a.payer
}

// Usage is an account as operators see it.
type Usage struct {
	Payer    string
	Limits   Limits
	Has      [Quotas]int64 // in use now; 0 for rates
	Requests int64         // so far, including refused ones
	Bytes    int64         // of these requests
	Refused  [Quotas]uint64
	Since    [Quotas]time.Duration // time since the last refusal; negative: none so far
}

// Lately reports whether this kind of quota has refused something in the last minute.
func (u *Usage) Lately(k Quota) bool { return u.Since[k] >= 0 && u.Since[k] < time.Minute }

func (a *Account) usage(now time.Time) Usage {
	u := Usage{Payer: a.payer, Requests: a.requests.begun.Load(), Bytes: a.bytes.begun.Load()}
	if l := a.limits.Load(); l != nil {
		u.Limits = *l
	}
	for k := range Quota(Quotas) {
		u.Has[k], u.Refused[k], u.Since[k] = a.held[k].Load(), a.refused[k].Load(), -1
		if at := a.last[k].Load(); at > 0 {
			u.Since[k] = max(0, a.clock(now)-time.Duration(at))
		}
	}
	u.Has[RequestsInFlight], u.Has[BytesInFlight] = a.requests.inFlight(), a.bytes.inFlight()+a.arriving.Load()
	return u
}
