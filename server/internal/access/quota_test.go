package access

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
)

// only returns limits with one quota.
func only(k Quota, n int64) Limits {
	var l Limits
	l.Of[k] = n
	return l
}

func payer(l Limits) *Account { return newAccount("payer", true, bound(l)) }

// over returns the kind of quota that refuses; Quotas: none.
func over(t *testing.T, err error) Quota {
	t.Helper()
	if err == nil {
		return Quotas
	}
	e, ok := errors.AsType[*QuotaError](err)
	if !ok || !errors.Is(err, scheduler.ErrOverloaded) ||
		!strings.Contains(err.Error(), e.Kind.String()+" = "+e.Kind.Show(e.Limit)) {
		t.Fatalf("no refusal by a quota that names it: %v", err)
	}
	return e.Kind
}

// Each quota has bounds, and is named by its key in the file. An unset quota is no fault.
func TestFaults(t *testing.T) {
	for k := range Quota(Quotas) {
		for n, wrong := range map[int64]bool{-1: true, kindInfo[k].least - 1: kindInfo[k].least > 1,
			kindInfo[k].least: false, kindInfo[k].most: false, kindInfo[k].most + 1: true} {
			l := only(k, n)
			fs := l.Faults()
			if text := fmt.Sprint(fs.Err()); len(fs) > 0 != wrong ||
				wrong && !(strings.Contains(text, k.String()) && strings.Contains(text, k.Show(kindInfo[k].most))) {
				t.Errorf("%v = %d: %s", k, n, text)
			}
		}
	}
	for burst, wrong := range map[time.Duration]bool{0: false, time.Microsecond: true, time.Millisecond: false,
		time.Minute: false, time.Minute + 1: true} {
		l := Limits{Burst: burst}
		if fs := l.Faults(); len(fs) > 0 != wrong || wrong && !strings.Contains(fs.Err().Error(), "burst") {
			t.Errorf("burst = %v: %v", burst, fs.Err())
		}
	}
}

// A rate admits its burst at once, then its amount per second, and says when the next request may
// come.
func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := only(RequestsPerSecond, 100)
		l.Burst = 100 * time.Millisecond
		a := payer(l)
		ask := func() error {
			var u Use
			defer u.End()
			return u.Begin(Payers{a}, 0, time.Now())
		}
		passed := func(d time.Duration) (n int) {
			for end := time.Now().Add(d); ; {
				err := ask()
				if err == nil {
					n++
					continue
				}
				e, _ := errors.AsType[*QuotaError](err)
				if e == nil || e.Again <= 0 || e.Again > 10*time.Millisecond {
					t.Fatalf("again in %v: %v", e.Again, err)
				}
				if time.Now().Add(e.Again).After(end) {
					return n
				}
				time.Sleep(e.Again - 1)
				if ask() == nil {
					t.Fatal("before it was time")
				}
				time.Sleep(time.Nanosecond)
			}
		}
		if n := passed(0); n != 10 {
			t.Errorf("%d at once, want a burst of 10", n)
		}
		if n := passed(time.Second); n < 99 || n > 101 {
			t.Errorf("%d in a second, want 100", n)
		}
		time.Sleep(time.Hour)
		if n := passed(0); n != 10 {
			t.Errorf("%d after a pause, want 10", n)
		}
	})
}

// Nothing that is taken concurrently is lost.
func TestConcurrentRates(t *testing.T) {
	const each = 50_000
	var taken, paid bucket
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range each {
				taken.take(1, int64(time.Second), time.Hour, 0)
				paid.pay(2, int64(time.Second), 0)
			}
		})
	}
	all.Wait()
	if taken.paid.Load() != 4*each || paid.paid.Load() != 8*each {
		t.Errorf("%d and %d ns are owed, want %d and %d", taken.paid.Load(), paid.paid.Load(), 4*each, 8*each)
	}
}

// A request that is larger than the burst passes and pays in full.
func TestOverdraft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := payer(only(BytesPerSecond, 1<<10))
		ask := func(n int64) error {
			var u Use
			defer u.End()
			return u.Begin(Payers{a}, n, time.Now())
		}
		if err := ask(1 << 20); err != nil {
			t.Fatal(err)
		}
		err := ask(1)
		if over(t, err) != BytesPerSecond {
			t.Fatalf("the debt is not held against it: %v", err)
		}
		e, _ := errors.AsType[*QuotaError](err)
		if want := 1023 * time.Second; e.Again < want || e.Again > want+time.Second {
			t.Errorf("again in %v, want %v", e.Again, want)
		}
		time.Sleep(e.Again)
		if err := ask(1); err != nil {
			t.Error(err)
		}
	})
}

// A request that one payer or one quota refuses is charged to none.
func TestAllOrNothing(t *testing.T) {
	for k := range Quota(GRPCStreams) {
		if k == UnreadBytes {
			continue
		}
		first, second := payer(Limits{Of: [Quotas]int64{1000, 1 << 20, 1000, 1 << 20}}), payer(only(k, 1))
		now := time.Now()
		var holds Use
		if err := holds.Begin(Payers{second}, 8, now); err != nil {
			t.Fatal(err)
		}
		var u Use
		if got := over(t, u.Begin(Payers{first, second}, 8, now)); got != k {
			t.Errorf("%v: refused by %v", k, got)
		}
		if u != (Use{}) || !first.idle(now) {
			t.Errorf("%v: %+v is left, and %+v", k, u, first.usage(now))
		}
		holds.End()
		if n := second.requests.inFlight() + second.bytes.inFlight(); n != 0 {
			t.Errorf("%v: %d in flight", k, n)
		}
	}
}

// Bytes that arrive later, and answers, are charged to a payer as well; a payer with nothing else
// may have one answer of any size.
func TestBytes(t *testing.T) {
	a := payer(Limits{Of: [Quotas]int64{BytesInFlight: 100, UnreadBytes: 100}})
	var one, two Use
	now := time.Now()
	if err := errors.Join(one.Begin(Payers{a}, 60, now), one.More(60, now), one.Promise(500)); err != nil {
		t.Fatal(err)
	}
	if err := two.Begin(Payers{a}, 1, now); over(t, err) != BytesInFlight {
		t.Error(err)
	}
	one.Answered()
	if err := two.Begin(Payers{a}, 60, now); err != nil {
		t.Error(err)
	}
	if two.Fits(1) {
		t.Error("there is no room for the answer")
	}
	if err := two.Promise(1); over(t, err) != UnreadBytes {
		t.Error(err)
	}
	one.Became(99)
	if err := two.Promise(1); !two.Fits(0) || err != nil {
		t.Error(err)
	}
	one.End()
	one.End()
	two.End()
	if !a.idle(now) {
		t.Errorf("%+v", a.usage(now))
	}
}

// New limits apply at once, and count what is in flight.
func TestLimitsChange(t *testing.T) {
	var ids identityAccounts
	declare := func(n int64) *Account {
		return ids.Replace(map[string]Limits{"cam": only(RequestsInFlight, n)})["cam"]
	}
	now := time.Now()
	a := declare(0)
	uses := make([]Use, 3)
	for i := range uses {
		if err := uses[i].Begin(Payers{a}, 1, now); err != nil {
			t.Fatal(err)
		}
	}
	if declare(3) != a {
		t.Fatal("another account")
	}
	var u Use
	if err := u.Begin(Payers{a}, 1, now); over(t, err) != RequestsInFlight {
		t.Error(err)
	}
	// Removed and declared again, the identity still has what it had.
	ids.Replace(nil)
	if declare(3) != a {
		t.Fatal("another account after a pause")
	}
	if err := u.Begin(Payers{a}, 1, now); over(t, err) != RequestsInFlight {
		t.Error(err)
	}
	for i := range uses {
		uses[i].End()
	}
	if ids.Replace(nil); len(ids.Replace(nil)) != 0 || len(ids.Usage()) != 0 {
		t.Error("an account without anything is remembered")
	}
}

// A debt to a changed rate is forgiven, since it was a time at the old rate; a debt to another rate
// is not.
func TestRateChanges(t *testing.T) {
	for _, c := range []struct {
		to   func(*Limits)
		owes bool
	}{
		{func(*Limits) {}, true},
		{func(l *Limits) { l.Of[BytesInFlight] = 1 << 30 }, true},
		{func(l *Limits) { l.Of[RequestsPerSecond] = 5 }, true},
		{func(l *Limits) { l.Of[BytesPerSecond] = 1 << 20 }, false},
		{func(l *Limits) { l.Of[BytesPerSecond] = 1 << 10 }, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := only(BytesPerSecond, 2<<10)
			a := payer(l)
			ask := func() error {
				var u Use
				defer u.End()
				return u.Begin(Payers{a}, 1<<20, time.Now())
			}
			if err := ask(); err != nil {
				t.Fatal(err)
			}
			c.to(&l)
			a.limit(bound(l))
			if err := ask(); err != nil != c.owes {
				t.Errorf("with %v: %v", l.Of, err)
			}
		})
	}
	a := payer(only(RequestsPerSecond, 1))
	ask := func() error {
		var u Use
		defer u.End()
		return u.Begin(Payers{a}, 0, a.began)
	}
	_ = ask()
	a.limit(nil)
	a.limit(bound(only(RequestsPerSecond, 1)))
	if err := ask(); err != nil {
		t.Errorf("after a time without limits: %v", err)
	}
}

// An address is forgotten only when it has nothing and owes nothing.
func TestAddressesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d Addresses
		d.Configure(only(BytesPerSecond, 1<<10), false)
		ask := func(name string, n int64) error {
			a := d.Enter(name, false)
			defer d.Leave(name)
			var u Use
			defer u.End()
			return u.Begin(Payers{a}, n, time.Now())
		}
		if err := ask("10.0.0.1", 1<<20); err != nil {
			t.Fatal(err)
		}
		if err := ask("10.0.0.1", 1); over(t, err) != BytesPerSecond {
			t.Errorf("by another connection the debt is forgotten: %v", err)
		}
		if top := d.Top(8); len(top) != 1 || top[0].Payer != "address 10.0.0.1" || top[0].Refused[BytesPerSecond] != 1 {
			t.Errorf("%+v", top)
		}
		for i := range 10 * fewAddresses {
			if err := ask(strings.Repeat("x", i+1), 1<<11); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := len(d.all); n > 2*fewAddresses {
			t.Errorf("%d are remembered", n)
		}
		time.Sleep(time.Hour)
		if err := ask("10.0.0.1", 1); err != nil {
			t.Error(err)
		}
		// Clients on this machine have no limits unless configured.
		for _, loopback := range []bool{false, true} {
			d.Configure(only(BytesPerSecond, 1<<10), loopback)
			if _, pays := d.Enter("127.0.0.1", true).due(); pays != loopback {
				t.Errorf("loopback %v: pays %v", loopback, pays)
			}
		}
	})
}

// A connection counts once for each identity, until it ends.
func TestClaims(t *testing.T) {
	a, b := payer(only(Connections, 1)), payer(Limits{})
	var one, two Claims
	for range 2 {
		if err := errors.Join(one.Add(a), one.Add(b), one.Add(nil)); err != nil {
			t.Fatal(err)
		}
	}
	if err := two.Add(a); over(t, err) != Connections {
		t.Error(err)
	}
	one.End()
	one.End()
	if err := errors.Join(two.Add(a), one.Add(b)); err != nil {
		t.Error(err)
	}
	two.End()
	if a.held[Connections].Load() != 0 || b.held[Connections].Load() != 0 {
		t.Errorf("%d and %d are left", a.held[Connections].Load(), b.held[Connections].Load())
	}
}

// Many concurrent uses: never more than the limit, and nothing is left at the end.
func TestConcurrentUses(t *testing.T) {
	const most, clients = 4, 16
	a := payer(Limits{Of: [Quotas]int64{RequestsInFlight: most, UnreadBytes: 1 << 10}})
	var all sync.WaitGroup
	var mu sync.Mutex
	has, worst, passed := 0, 0, 0
	for range clients {
		all.Go(func() {
			for range 500 {
				var u Use
				if u.Begin(Payers{a}, 8, time.Now()) != nil {
					continue
				}
				mu.Lock()
				has++
				passed++
				worst = max(worst, has)
				mu.Unlock()
				_ = u.Promise(8)
				mu.Lock()
				has--
				mu.Unlock()
				u.End()
			}
		})
	}
	all.Wait()
	if worst > most || passed == 0 || !a.idle(time.Now()) {
		t.Errorf("%d at once, %d passed, left %+v", worst, passed, a.usage(time.Now()))
	}
}

// Counting allocates nothing, even with every quota set.
func TestAllocations(t *testing.T) {
	l := Limits{}
	for k := range l.Of {
		l.Of[k] = 1 << 40
	}
	of := Payers{payer(l), payer(l)}
	now := time.Now()
	if n := testing.AllocsPerRun(1000, func() {
		var u Use
		if err := errors.Join(u.Begin(of, 100, now), u.More(1, now), u.Promise(10)); err != nil {
			t.Fatal(err)
		}
		u.Became(9)
		u.Answered()
		u.End()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkUse(b *testing.B) {
	l := Limits{}
	for k := range l.Of {
		l.Of[k] = 1 << 40
	}
	of := Payers{payer(l)}
	now := time.Now()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			var u Use
			_ = u.Begin(of, 100, now)
			_ = u.Promise(10)
			u.Answered()
			u.End()
		}
	})
}

// For a request of unannounced size the first bytes decide, and all bytes are paid for: it may be
// larger than the rate allows.
func TestBytesThatComeLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := payer(only(BytesPerSecond, 1<<10))
		ask := func(pieces ...int64) error {
			var u Use
			defer u.End()
			err := u.Begin(Payers{a}, 0, time.Now())
			for _, n := range pieces {
				if err == nil {
					err = u.More(n, time.Now())
				}
			}
			return err
		}
		if err := ask(1<<10, 1<<10, 1<<20); err != nil {
			t.Fatal(err)
		}
		err := ask(1)
		if over(t, err) != BytesPerSecond {
			t.Fatalf("the debt is not held against it: %v", err)
		}
		e, _ := errors.AsType[*QuotaError](err)
		if want := 1025 * time.Second; e.Again < want || e.Again > want+time.Second {
			t.Errorf("again in %v, want %v", e.Again, want)
		}
		time.Sleep(e.Again)
		if err := ask(1); err != nil {
			t.Error(err)
		}
	})
}

// A refusal says whose quota it is, its setting, and what to do.
func TestRefusalsSay(t *testing.T) {
	for _, c := range []struct {
		e    QuotaError
		want string
	}{
		{QuotaError{`identity "cam"`, RequestsPerSecond, 5, 0, 199 * time.Millisecond, nil}, `scheduler: overloaded: identity "cam" is over its quota, requests_per_second = 5; try again in 199ms`},
		{QuotaError{"address 192.0.2.1", BytesPerSecond, 1 << 20, 0, time.Microsecond, nil}, `scheduler: overloaded: address 192.0.2.1 is over its quota, bytes_per_second = 1MiB; try again in 1ms`},
		{QuotaError{`identity "cam"`, RequestsInFlight, 8, 8, 0, nil}, `scheduler: overloaded: identity "cam" is over its quota, requests_in_flight = 8: 8 are in flight; wait for answers before sending more requests`},
		{QuotaError{`identity "cam"`, BytesInFlight, 1 << 20, 1 << 10, 0, nil}, `scheduler: overloaded: identity "cam" is over its quota, bytes_in_flight = 1MiB: requests of 1KiB are in flight; wait for answers before sending more requests`},
		{QuotaError{`identity "cam"`, Connections, 2, 2, 0, nil}, `scheduler: overloaded: identity "cam" is over its quota, connections = 2: 2 are open; close one before the next`},
	} {
		if got := c.e.Error(); got != c.want {
			t.Errorf("%s\nwant %s", got, c.want)
		}
	}
}
