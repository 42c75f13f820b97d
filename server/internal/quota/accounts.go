package quota

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Identities are the accounts of those that the configuration declares, by name. The zero
// Identities are none.
type Identities struct {
	mu  sync.Mutex
	all map[string]*Account
}

// Replace makes these limits hold, by the names of identities, and returns their accounts. One that
// was declared before goes on with what it has in flight. Others are forgotten once they have
// nothing.
func (i *Identities) Replace(limits map[string]Limits) map[string]*Account {
	i.mu.Lock()
	defer i.mu.Unlock()
	declared := make(map[string]*Account, len(limits))
	all := make(map[string]*Account, len(limits))
	now := time.Now()
	for name, a := range i.all {
		if _, still := limits[name]; !still && !a.idle(now) {
			a.limit(nil)
			all[name] = a // it may be declared again before this has ended
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

// bound is l where it bounds something.
func bound(l Limits) *Limits {
	if l.none() {
		return nil
	}
	return &l
}

// Usage are the accounts by name.
func (i *Identities) Usage() map[string]Usage {
	i.mu.Lock()
	defer i.mu.Unlock()
	out := make(map[string]Usage, len(i.all))
	now := time.Now()
	for name, a := range i.all {
		out[name] = a.usage(now)
	}
	return out
}

// Addresses are the accounts of those from which clients have connected. They are forgotten when
// their connections have ended and nothing is owed. The zero Addresses are none, without a limit.
type Addresses struct {
	mu       sync.Mutex
	all      map[string]*address
	declared Limits
	limits   *Limits // these, where they bound something
	loopback bool
	sweep    int // when there are so many, those that are idle are looked for
	refused  [Kinds]atomic.Uint64
}

type address struct {
	Account
	local       bool // it is on this machine
	connections int
}

// Bounds of what is remembered of addresses without a connection.
const (
	fewAddresses  = 64      // for which it is not worth while to look
	mostAddresses = 1 << 16 // that owe something
)

// Configure makes limits hold for all addresses; for those on this machine only with loopback.
func (d *Addresses) Configure(l Limits, loopback bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.declared, d.limits, d.loopback = l, bound(l), loopback
	for _, a := range d.all {
		a.limit(d.limitsOf(a.local))
	}
}

// Settings are those that hold.
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

// Enter returns the account of an address, "192.0.2.1" or "uid=1000", for one more connection.
// Leave ends it.
func (d *Addresses) Enter(name string, local bool) *Account {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.all[name]
	if a == nil {
		if len(d.all) >= max(d.sweep, fewAddresses) {
			d.sweepLocked()
		}
		whose := "address " + name
		if local {
			whose = "client " + name
		}
		a = &address{local: local}
		a.whose, a.began, a.all = whose, time.Now(), &d.refused
		a.limits.Store(d.limitsOf(local))
		if d.all == nil {
			d.all = make(map[string]*address)
		}
		d.all[name] = a
	}
	a.connections++
	return &a.Account
}

// Leave ends a connection of an address.
func (d *Addresses) Leave(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.all[name]
	if a.connections--; a.connections == 0 && a.idle(time.Now()) {
		delete(d.all, name)
	}
}

// sweepLocked forgets the addresses that owe nothing, and others if there are too many. Looked for
// only when as many have come as were left, that costs each newcomer little.
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

// Refused is how often something was refused to addresses, by kind of quota.
func (d *Addresses) Refused() (all [Kinds]uint64) {
	for k := range all {
		all[k] = d.refused[k].Load()
	}
	return all
}

// Top are the addresses to which most was refused in the last minute, and then those that have most
// requests in flight: at most that many, of those with a limit.
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
		return cmp.Or(cmp.Compare(b.refusedLately(), a.refusedLately()), cmp.Compare(b.Has[RequestsInFlight], a.Has[RequestsInFlight]), cmp.Compare(a.Whose, b.Whose))
	})
	return list[:min(most, len(list))]
}

// refusedLately is what was refused by the kinds of which something was in the last minute.
func (u *Usage) refusedLately() (n uint64) {
	for k := range Kind(Kinds) {
		if u.Lately(k) {
			n += u.Refused[k]
		}
	}
	return n
}
