package access

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
)

// Operators see what an account has in use, what it was refused, and how long ago.
func TestUsageIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := Limits{Of: [Quotas]int64{RequestsInFlight: 1, UnreadBytes: 100}}
		var ids identityAccounts
		a := ids.Replace(map[string]Limits{"ann": limits, "bob": {}})["ann"]
		var one, two Use
		if err := one.Begin(Payers{a}, 60, time.Now()); err != nil {
			t.Fatal(err)
		}
		if err := one.Promise(80); err != nil {
			t.Fatal(err)
		}
		streams, err := Payers{a}.Open(GRPCStreams)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := two.Begin(Payers{a}, 5, time.Now()); over(t, err) != RequestsInFlight {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		all := ids.Usage()
		want := Usage{Payer: `identity "ann"`, Limits: limits, Requests: 2, Bytes: 60}
		want.Has = [Quotas]int64{RequestsInFlight: 1, BytesInFlight: 60, UnreadBytes: 80, GRPCStreams: 1}
		want.Refused[RequestsInFlight] = 1
		for k := range want.Since {
			want.Since[k] = -1
		}
		want.Since[RequestsInFlight] = 10 * time.Second
		if got := all["ann"]; got != want {
			t.Errorf("it shows\n%+v, expected\n%+v", got, want)
		}
		bob := all["bob"]
		if ann := all["ann"]; !ann.Lately(RequestsInFlight) || ann.Lately(UnreadBytes) || bob.Lately(RequestsInFlight) {
			t.Errorf("refused lately: %+v, %+v", ann, bob)
		}
		time.Sleep(time.Minute)
		if later := ids.Usage()["ann"]; later.Lately(RequestsInFlight) {
			t.Errorf("refused lately: %+v", later)
		}
		streams.Close(GRPCStreams)
		one.End()
		if got := ids.Usage()["ann"].Has; got != [Quotas]int64{} {
			t.Errorf("in the end it has %v", got)
		}
	})
}

// If one of two payers refuses a request, the other is not charged for it. A missing payer refuses
// nothing.
func TestBothPayersOrNone(t *testing.T) {
	limits := Limits{Of: [Quotas]int64{BytesInFlight: 100, UnreadBytes: 100, GRPCStreams: 1}}
	rich, poor := payer(Limits{Of: [Quotas]int64{BytesInFlight: 1 << 20, UnreadBytes: 1 << 20, GRPCStreams: 100}}),
		payer(limits)
	now := time.Now()
	var holds Use
	if err := holds.Begin(Payers{nil, poor}, 60, now); err != nil {
		t.Fatal(err)
	}
	if err := holds.Promise(60); err != nil {
		t.Fatal(err)
	}
	stream, err := Payers{poor}.Open(GRPCStreams)
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []Payers{{rich, poor}, {nil, poor}} {
		var u Use
		if err := u.Begin(of, 20, now); err != nil {
			t.Fatal(err)
		}
		before := rich.usage(now).Has
		if err := u.More(0, now); err != nil {
			t.Error(err)
		}
		if err := u.More(60, now); over(t, err) != BytesInFlight {
			t.Error(err)
		}
		if err := u.Promise(0); err != nil {
			t.Error(err)
		}
		if err := u.Promise(60); over(t, err) != UnreadBytes {
			t.Error(err)
		}
		if taken, err := of.Open(GRPCStreams); over(t, err) != GRPCStreams || taken != (Payers{}) {
			t.Error(taken, err)
		}
		if after := rich.usage(now).Has; after != before {
			t.Errorf("charged to the other: %v, before %v", after, before)
		}
		u.End()
	}
	stream.Close(GRPCStreams)
	holds.End()
	if !rich.idle(now) || !poor.idle(now) {
		t.Errorf("what is left: %+v, %+v", rich.usage(now), poor.usage(now))
	}
}

// Nothing is too large where there is no quota, and an answer may change its size more than once.
func TestAnswersOfAnySize(t *testing.T) {
	var none *Use
	if !none.Fits(1<<40) || none.Promise(1<<40) != nil {
		t.Error("there is no quota, and no room")
	}
	none.Became(1)
	a := newAccount("payer", true, nil)
	for _, l := range []*Limits{nil, bound(only(RequestsPerSecond, 10))} {
		a.limit(l)
		var u Use
		if err := u.Begin(Payers{a}, 1, time.Now()); err != nil {
			t.Fatal(err)
		}
		if !u.Fits(1 << 40) {
			t.Errorf("%+v leaves no room for an answer", l)
		}
		if err := u.Promise(100); err != nil {
			t.Error(err)
		}
		for _, n := range []int{300, 20, 20} {
			u.Became(n)
			if has := a.held[UnreadBytes].Load(); has != int64(n) {
				t.Errorf("%d bytes are unread, expected %d", has, n)
			}
		}
		u.End()
		if !a.idle(time.Now().Add(time.Hour)) {
			t.Errorf("what is left: %+v", a.usage(time.Now()))
		}
	}
}

// An account that only waits for its rate, holds a stream, or has a request without bytes in flight
// is not idle: a new account in its place would have a full bucket, or get back amounts that it was
// never charged.
func TestIdle(t *testing.T) {
	now := time.Now().Add(time.Second) // by when the account's clock has begun
	for name, use := range map[string]func(a *Account) (end func()){
		"a request without bytes": func(a *Account) func() {
			var u Use
			_ = u.Begin(Payers{a}, 0, now)
			return u.End
		},
		"a stream": func(a *Account) func() {
			p, _ := Payers{a}.Open(GRPCStreams)
			return func() { p.Close(GRPCStreams) }
		},
	} {
		a := payer(Limits{})
		end := use(a)
		if a.idle(now) {
			t.Errorf("%s: the account is idle", name)
		}
		end()
		if !a.idle(now) {
			t.Errorf("%s, ended: the account is not idle", name)
		}
	}
}

// An address keeps its account while it has a connection, however many other addresses come.
// Refusals count for all addresses, also for forgotten ones.
func TestAddressesInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d Addresses
		d.Configure(only(GRPCStreams, 1), false)
		kept := d.Enter("192.0.2.1", false)
		if again := d.Enter("192.0.2.1", false); again != kept {
			t.Error("two accounts of one address")
		}
		d.Leave("192.0.2.1")
		for range 2 {
			_, _ = Payers{kept}.Open(GRPCStreams) // the second is refused
		}
		kept.release(GRPCStreams, 1)
		for i := range 10 * fewAddresses {
			name := strconv.Itoa(i)
			a := d.Enter(name, false)
			_ = a.hold(GRPCStreams, 1)
			d.Leave(name) // not idle yet; a later sweep finds it idle
			a.release(GRPCStreams, 1)
		}
		if d.all["192.0.2.1"] == nil || len(d.all) > 2*fewAddresses+1 {
			t.Errorf("%d addresses are left, that with a connection is %v", len(d.all), d.all["192.0.2.1"])
		}
		d.Enter("192.0.2.2", false)
		if d.Leave("192.0.2.2"); d.all["192.0.2.2"] != nil {
			t.Error("an idle address is kept after its last connection")
		}
		if n := d.Refused()[GRPCStreams]; n != 1 {
			t.Errorf("%d refusals of all addresses, expected 1", n)
		}
		// A refused client comes first, and a client on this machine has another name.
		d.Configure(only(GRPCStreams, 1), true)
		busy := d.Enter("uid=1000", true)
		var u Use
		_ = u.Begin(Payers{busy}, 1, time.Now())
		if top := d.Top(2); len(top) != 2 || top[0].Payer != "address 192.0.2.1" || top[1].Payer != "client uid=1000" {
			t.Errorf("those at the top are %+v", top)
		}
		time.Sleep(2 * time.Minute)
		if top := d.Top(1); len(top) != 1 || top[0].Payer != "client uid=1000" {
			t.Errorf("after two minutes, the one at the top is %+v", top)
		}
		u.End()
	})
}

// Addresses without a connection are kept while they owe, but not without bound.
func TestDebtsOfAddressesAreBounded(t *testing.T) {
	budgettest.OneGoroutine(t)
	synctest.Test(t, func(t *testing.T) {
		var d Addresses
		d.Configure(only(RequestsPerSecond, 1), false)
		for i := range 2*mostAddresses + 4<<10 {
			name := strconv.Itoa(i)
			var u Use
			if err := u.Begin(Payers{d.Enter(name, false)}, 1, time.Now()); err != nil {
				t.Fatal(err)
			}
			u.End()
			d.Leave(name)
		}
		if n := len(d.all); n < mostAddresses || n > mostAddresses+4<<10 {
			t.Errorf("%d addresses owe, expected %d and few more", n, mostAddresses)
		}
	})
}

// A connection is read in turns from its sixteenth refusal on, and waits for a part of the burst
// at most.
func TestTurnsBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := only(RequestsPerSecond, 1)
		l.Burst = 20 * time.Millisecond
		a := payer(l)
		var c Claims
		refused := 0
		for refused < manyRefused/refusal+1 {
			var u Use
			if err := c.Begin(&u, Payers{a}, 1, time.Now()); err != nil {
				refused++
			}
			u.End()
			switch pause := c.Pause(1); {
			case refused < 16 && pause != 0:
				t.Errorf("after %d refusals, it waits for %v", refused, pause)
			case refused >= 16 && pause != l.Burst/ofBurst:
				t.Errorf("after %d refusals, it waits for %v, expected %v", refused, pause, l.Burst/ofBurst)
			}
		}
	})
}
