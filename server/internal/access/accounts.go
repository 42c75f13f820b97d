package access

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// identityAccounts holds the accounts of the declared identities, by name. The zero value is empty.
type identityAccounts struct {
	mu  sync.Mutex
	all map[string]*Account
}

// Replace sets the limits, by identity name, and returns the accounts. An identity that was
// declared before keeps its account and what is in flight. One that is no longer declared is
// forgotten once its account is idle.
func (i *identityAccounts) Replace(limits map[string]Limits) map[string]*Account {
	i.mu.Lock()
	defer i.mu.Unlock()
	declared := make(map[string]*Account, len(limits))
	all := make(map[string]*Account, len(limits))
	now := time.Now()
	for name, a := range i.all {
		if _, still := limits[name]; !still && !a.idle(now) {
			a.limit(nil)
			all[name] = a // it may be declared again before its requests have ended
		}
	}
	for name, l := range limits {
		a := i.all[name]
		if a == nil {
			a = newAccount(fmt.Sprintf("identity %q", name), true, bound(l))
		} else {
			a.limit(bound(l))
		}
		declared[name], all[name] = a, a
	}
	i.all = all
	return declared
}

// bound is &l if l limits anything, and nil otherwise.
func bound(l Limits) *Limits {
	if l.none() {
		return nil
	}
	return &l
}

// Usage returns the figures of all accounts, by name.
func (i *identityAccounts) Usage() map[string]Usage {
	i.mu.Lock()
	defer i.mu.Unlock()
	out := make(map[string]Usage, len(i.all))
	now := time.Now()
	for name, a := range i.all {
		out[name] = a.usage(now)
	}
	return out
}

// Addresses holds the accounts of client addresses. An account is forgotten when its last
// connection has ended and its rates are paid. The zero value is empty and unlimited.
type Addresses struct {
	mu       sync.Mutex
	all      map[string]*address
	declared Limits
	limits   *Limits // declared, or nil if declared limits nothing
	loopback bool
	sweep    int // number of addresses that triggers the next sweep
	refused  [Quotas]atomic.Uint64
}

type address struct {
	Account
	local       bool // on this machine
	connections int
}

// Bounds of the accounts of addresses without a connection.
const (
	fewAddresses  = 64      // not worth sweeping
	mostAddresses = 1 << 16 // with a debt that is not yet paid
)

// Configure sets the limits of all addresses. Those on this machine are limited only with loopback.
func (d *Addresses) Configure(l Limits, loopback bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.declared, d.limits, d.loopback = l, bound(l), loopback
	for _, a := range d.all {
		a.limit(d.limitsOf(a.local))
	}
}

// Settings returns what Configure has set.
func (d *Addresses) Settings() (l Limits, loopback bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.declared, d.loopback
}

func (d *Addresses) limitsOf(local bool) *Limits {
	if local && !d.loopback {
		return nil
	}
	return d.limits
}

// Enter counts one more connection of an address, such as "192.0.2.1" or "uid=1000", and returns
// its account. Leave undoes it.
func (d *Addresses) Enter(name string, local bool) *Account {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.all[name]
	if a == nil {
		if len(d.all) >= max(d.sweep, fewAddresses) {
			d.sweepLocked()
		}
		payer := "address " + name
		if local {
			payer = "client " + name
		}
		a = &address{local: local}
		a.payer, a.began, a.all = payer, time.Now(), &d.refused
		a.limits.Store(d.limitsOf(local))
		if d.all == nil {
			d.all = make(map[string]*address)
		}
		d.all[name] = a
	}
	a.connections++
	return &a.Account
}

// Leave removes a connection of an address.
func (d *Addresses) Leave(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.all[name]
	if a.connections--; a.connections == 0 && a.idle(time.Now()) {
		delete(d.all, name)
	}
}

// sweepLocked forgets idle addresses without a connection, and if there are too many without a
// connection, others of these as well. It runs when the number of addresses has doubled since the
// last sweep, so its cost for each new address is constant.
func (d *Addresses) sweepLocked() {
	now := time.Now()
	owing := 0
	for name, a := range d.all {
		if a.connections > 0 {
			continue
		}
		if owing < mostAddresses && !a.idle(now) {
			owing++
		} else {
			delete(d.all, name)
		}
	}
	d.sweep = 2 * len(d.all)
}

// Refused returns how many refusals addresses had, by kind of quota.
func (d *Addresses) Refused() (all [Quotas]uint64) {
	for k := range all {
		all[k] = d.refused[k].Load()
	}
	return all
}

// Top returns up to most of the limited addresses: first those refused most, if refused lately,
// then those with the most requests in flight.
func (d *Addresses) Top(most int) []Usage {
	d.mu.Lock()
	var list []Usage
	now := time.Now()
	for _, a := range d.all {
		if a.limits.Load() != nil {
			list = append(list, a.usage(now))
		}
	}
	d.mu.Unlock()
	slices.SortFunc(list, func(a, b Usage) int {
		return cmp.Or(cmp.Compare(b.refusedLately(), a.refusedLately()),
			cmp.Compare(b.Has[RequestsInFlight], a.Has[RequestsInFlight]), cmp.Compare(a.Payer, b.Payer))
	})
	return list[:min(most, len(list))]
}

// refusedLately sums the refusals of the kinds that have refused something in the last minute.
func (u *Usage) refusedLately() (n uint64) {
	for k := range Quota(Quotas) {
		if u.Lately(k) {
			n += u.Refused[k]
		}
	}
	return n
}
