package access

import (
	"testing"
	"testing/synctest"
	"time"
)

// A connection that sends ten times its rate is soon read only as often as the rate admits a
// request, and the connections of one client are counted together. A client that keeps to the rate,
// or is one of several on a connection, or is over another quota, does not wait.
func TestPace(t *testing.T) {
	at := func(k Quota, n int64) *Account {
		l := only(k, n)
		l.Burst = time.Second
		return payer(l)
	}
	ask := func(c *Claims, a *Account) {
		var u Use
		_ = c.Begin(&u, Payers{a}, 100, time.Now())
		u.End()
	}
	for _, c := range []struct {
		name   string
		a      *Account
		others int           // identities on the connection
		parts  int           // of a turn
		every  time.Duration // interval between its requests
		want   time.Duration // interval between two reads, for each of two connections
	}{
		{"ten times its requests", at(RequestsPerSecond, 100), 0, 1, time.Millisecond, 20 * time.Millisecond},
		{"ten times its bytes", at(BytesPerSecond, 10_000), 0, 1, time.Millisecond, 20 * time.Millisecond},
		{"the same in four parts", at(RequestsPerSecond, 100), 0, 4, time.Millisecond, 5 * time.Millisecond},
		{"a low rate", at(RequestsPerSecond, 1), 0, 1, time.Millisecond, longestTurn},
		{"its rate", at(RequestsPerSecond, 1000), 0, 1, 2 * time.Millisecond, 0},
		{"somewhat more", at(RequestsPerSecond, 900), 0, 1, 2 * time.Millisecond, 0},
		{"a proxy's", at(RequestsPerSecond, 100), 1, 1, time.Millisecond, 0},
		{"what is in flight", at(RequestsInFlight, 1), 0, 1, time.Millisecond, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.a.began = time.Now()
				var held Use
				if c.a.limits.Load().Of[RequestsInFlight] > 0 {
					_ = held.Begin(Payers{c.a}, 1, time.Now())
				}
				var conns [2]Claims
				for i := range conns {
					_ = conns[i].Add(c.a)
					for range c.others {
						_ = conns[i].Add(payer(Limits{}))
					}
				}
				for range 5000 {
					ask(&conns[0], c.a)
					ask(&conns[1], c.a)
					time.Sleep(c.every)
				}
				for range 10 {
					conns[0].noted.Store(true) // without another request
					conns[1].noted.Store(true)
					first := conns[0].Pause(c.parts)
					second := conns[1].Pause(c.parts)
					if second != c.want {
						t.Fatalf("it is read after %v, and another connection of it after %v, want %v", first, second,
							c.want)
					}
					time.Sleep(second)
				}
				// When the quota is removed no connection waits, whatever happened before.
				c.a.limit(nil)
				if d := conns[0].Pause(1); d != 0 {
					t.Errorf("without a quota it is read after %v", d)
				}
				for range mostRefused {
					ask(&conns[0], c.a)
				}
				if n := conns[0].balance.Load(); n != 0 {
					t.Errorf("%d refusals are still held against it", n)
				}
			})
		})
	}
}

// A client on many connections is refused no more often before it is read in turns than a client on
// a single connection, plus once on each. A connection without a refusal is not held back.
func TestPaceOfManyConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := only(RequestsPerSecond, 100)
		l.Burst = time.Second
		a := payer(l)
		a.began = time.Now()
		var conns [64]Claims
		refused := 0
		ask := func(c *Claims) {
			var u Use
			if c.Begin(&u, Payers{a}, 100, time.Now()) != nil {
				refused++
			}
			u.End()
		}
		for range 100 { // the burst
			ask(&conns[0])
		}
		var until [len(conns)]time.Time // ends of their pauses
		for range 100 {
			for i := range conns[1:] {
				c := &conns[1+i]
				if d := c.Pause(1); d > 0 {
					until[i] = time.Now().Add(d)
				}
				if !time.Now().Before(until[i]) {
					ask(c)
				}
			}
		}
		if most := manyRefused/refusal + len(conns); refused > most {
			t.Errorf("it is refused %d times on %d connections before it is read in turns, want %d at most", refused,
				len(conns), most)
		}
		if d := conns[0].Pause(1); d != 0 {
			t.Errorf("a connection without a refusal is read after %v", d)
		}
	})
}

// A client that is read in turns gets as much as it would otherwise, even with a short burst. A
// client that waits for each answer is refused little more often than it is admitted, and much less
// often if turns need not be shorter than its rate.
func TestPaceCostsNoRate(t *testing.T) {
	for burst, most := range map[time.Duration]int{0: 1000, 100 * time.Millisecond: 1000, 10 * time.Millisecond: 2250} {
		synctest.Test(t, func(t *testing.T) {
			l := only(RequestsPerSecond, 200)
			l.Burst = burst
			a := payer(l)
			var c Claims
			_ = c.Add(a)
			got, refused := 0, 0
			end := time.Now().Add(10 * time.Second)
			for time.Now().Before(end) { // one at a time, as fast as it is answered
				var u Use
				if c.Begin(&u, Payers{a}, 100, time.Now()) == nil {
					got++
				} else {
					refused++
				}
				u.End()
				time.Sleep(max(c.Pause(1), 100*time.Microsecond))
			}
			if got < 1950 || got > 2250 || refused > most {
				t.Errorf("burst %v: %d admitted in 10 s, %d refused; want 2,000, and %d at most", burst, got, refused,
					most)
			}
		})
	}
}

// A request is refused before it is read only while nothing is left of the rate that the last
// refused request on the connection exceeded.
func TestAgain(t *testing.T) {
	for _, k := range []Quota{RequestsPerSecond, BytesPerSecond} {
		synctest.Test(t, func(t *testing.T) {
			const bytes = 2000
			l := only(k, map[Quota]int64{RequestsPerSecond: 1, BytesPerSecond: bytes}[k])
			l.Burst = time.Second / 4
			a, other := payer(l), payer(l)
			a.began = time.Now()
			var c Claims
			asked := 0
			again := func(of ...*Account) *QuotaError {
				return c.Again(func() Payers { asked++; return Payers(append(of, nil)[:2]) }, time.Now())
			}
			begin := func() error {
				var u Use
				defer u.End()
				return c.Begin(&u, Payers{nil, a}, bytes, time.Now())
			}
			if err := begin(); err != nil {
				t.Fatal(err)
			}
			if err := again(nil, a); err != nil || asked > 0 {
				t.Errorf("%v: before one is refused: %v, and %d times it was asked who pays", k, err, asked)
			}
			if err := begin(); err == nil {
				t.Fatalf("%v: the second is not refused", k)
			}
			time.Sleep(time.Second / 2)
			before := a.usage(time.Now())
			e := again(nil, a)
			if e == nil || e.Kind != k || e.Limit != l.Of[k] || e.Again.Round(time.Millisecond) != time.Second/4 {
				t.Fatalf("%v: the third: %+v", k, e)
			}
			if after := a.usage(time.Now()); after.Requests != before.Requests+1 ||
				after.Refused[k] != before.Refused[k]+1 || after.Has[RequestsInFlight] != 0 ||
				a.balance.Load() != 2*refusal || c.balance.Load() != 2*refusal {
				t.Errorf("%v: it is not counted: %+v, balances %d and %d", k, after, a.balance.Load(), c.balance.Load())
			}
			if err := again(other); err != nil {
				t.Errorf("%v: another's: %v", k, err)
			}
			time.Sleep(time.Second)
			for turn, charged := range []bool{true, false, true} {
				if err := again(nil, a); err != nil {
					t.Errorf("%v: when the debt is paid, turn %d: %v", k, turn, err)
				}
				if err := again(nil, a); err == nil && k == RequestsPerSecond {
					t.Errorf("%v: one is being read, and another is let through, turn %d", k, turn)
				}
				if charged {
					if err := begin(); err != nil {
						t.Errorf("%v: when the debt is paid, turn %d: %v", k, turn, err)
					}
				}
				if err := again(a); err == nil && (charged || k == RequestsPerSecond) {
					t.Errorf("%v: in the next debt it is not refused, turn %d", k, turn)
				}
				time.Sleep(time.Second)
			}
			a.limit(nil)
			if err := again(a); err != nil {
				t.Errorf("%v: without a quota: %v", k, err)
			}
		})
	}
}

// The rest of a message is read without pauses, however long it is.
func TestNoPauseWithinAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := payer(only(RequestsPerSecond, 1))
		var c Claims
		ask := func() {
			var u Use
			defer u.End()
			_ = c.Begin(&u, Payers{a}, 1, time.Now())
		}
		for range manyRefused {
			ask()
		}
		for range 3 {
			if d := c.Pause(1); d == 0 {
				t.Error("after a request there is no pause")
			}
			for range 10 {
				if d := c.Pause(1); d > 0 {
					t.Errorf("within a message there is a pause of %v", d)
				}
			}
			ask()
		}
	})
}

// However large the last message was that a byte rate refused, small ones get the rate once its
// debt is paid.
func TestAgainAfterALargeMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, small = 1 << 10, 16
		a := payer(only(BytesPerSecond, rate))
		var c Claims
		ask := func(bytes int64) bool {
			var u Use
			defer u.End()
			return c.Again(func() Payers { return Payers{a} }, time.Now()) == nil &&
				c.Begin(&u, Payers{a}, bytes, time.Now()) == nil
		}
		ask(10 * rate)
		if ask(1 << 30) {
			t.Fatal("the second is not refused")
		}
		time.Sleep(20 * time.Second)
		for i := range 10 * rate / small {
			if !ask(small) {
				t.Fatalf("small message %d is refused, at the rate", i)
			}
			time.Sleep(time.Second * small / rate)
		}
	})
}
