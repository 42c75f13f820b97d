// Package quota limits the rate and the resources in use of one identity or one address, so that
// no client can crowd out the others.
//
//	Account                what one payer has used, and its Limits
//	Use                    what one request charges to its Payers, until End
//	Claims                 the accounts that a connection counts for, until End
//	Identities, Addresses  all accounts; both survive a reload
//
// A request is admitted or refused as a whole; the refusal is an [*Error] that names the quota and,
// for a rate, when to try again. A request never waits for quota, with one exception: unread
// answers shrink as the client reads its own connection, so gate.Outbox waits for those.
//
// A rate is a token bucket that a request may overdraw: it is admitted while the bucket is not
// empty, and then pays in full. A bucket that had to cover the whole request would refuse a request
// larger than the bucket forever. For the same reason a payer with nothing in flight may have one
// request, and one answer, of any size.
//
// Counting takes no lock and allocates nothing. The amount in flight is the difference of two
// counters that only grow, begun and ended, which also serve as totals for metrics.
//
// Concurrency: everything is safe for any goroutine, except that a Use belongs to one goroutine at
// a time.
//
// Sources: GCRA (ATM Forum TM 4.0, as in Envoy's and redis-cell's limits) for the buckets, and
// nats-server's accounts, whose limits follow a reload under open connections.
package quota

import (
	"fmt"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
)

// A Kind is what a quota limits.
type Kind uint8

// All kinds. Addresses have no quota of Connections: each door has its own limit for them.
const (
	RequestsPerSecond Kind = iota
	BytesPerSecond
	RequestsInFlight
	BytesInFlight
	UnreadBytes
	GRPCStreams
	Connections
	Kinds = iota
)

// kindInfo holds the names, ranges and error texts of the kinds.
var kindInfo = [Kinds]struct {
	key         string // in the file, in status and as a label
	bytes       bool   // the amount is a size in bytes
	least, most int64  // range of a limit other than 0
	over        string // amount in use and what to do about it; "": Again says when to try again
}{
	RequestsPerSecond: {"requests_per_second", false, 1, 10_000_000, ""},
	BytesPerSecond:    {"bytes_per_second", true, 1 << 10, int64(setting.MaxBytes), ""},
	RequestsInFlight:  {"requests_in_flight", false, 1, 1 << 24, "%s are in flight; wait for answers before sending more requests"},
	BytesInFlight:     {"bytes_in_flight", true, 1 << 10, int64(setting.MaxBytes), "requests of %s are in flight; wait for answers before sending more requests"},
	UnreadBytes:       {"unread_bytes", true, 1 << 10, int64(setting.MaxBytes), "answers of %s are unread, including those about to be sent; read answers before sending more requests"},
	GRPCStreams:       {"grpc_streams", false, 1, 1 << 24, "%s are open; end one before the next"},
	Connections:       {"connections", false, 1, 1 << 24, "%s are open; close one before the next"},
}

// String is the kind's key in the file.
func (k Kind) String() string { return kindInfo[k].key }

// Show formats an amount of the kind for people.
func (k Kind) Show(n int64) string {
	if kindInfo[k].bytes {
		return setting.Bytes(n).String()
	}
	return fmt.Sprint(n)
}

// Limits are the quotas of one payer, by Kind; 0 means unlimited.
type Limits struct {
	Of    [Kinds]int64
	Burst time.Duration // how long unused rate accumulates; 0: DefaultBurst
}

// DefaultBurst is how long unused rate accumulates unless the configuration says otherwise.
const DefaultBurst = time.Second

// none reports whether nothing is limited.
func (l *Limits) none() bool { return l.Of == [Kinds]int64{} }

// Faults lists what is wrong with the limits, by the names of the file.
func (l *Limits) Faults() (fs setting.Faults) {
	for k := range Kind(Kinds) {
		if n := l.Of[k]; n == 0 {
			continue
		} else if kindInfo[k].bytes {
			setting.Between(&fs, k.String(), setting.Bytes(n), setting.Bytes(kindInfo[k].least), setting.Bytes(kindInfo[k].most))
		} else {
			setting.Between(&fs, k.String(), int(n), int(kindInfo[k].least), int(kindInfo[k].most))
		}
	}
	if l.Burst != 0 {
		setting.Between(&fs, "burst", l.Burst, time.Millisecond, time.Minute)
	}
	return fs
}

// An Error refuses a request that is over a quota. It is a [scheduler.ErrOverloaded].
type Error struct {
	Payer string // `identity "cam"`, or "address 192.0.2.1"
	Kind  Kind
	Limit int64
	Has   int64         // what the payer uses now; 0 for a rate
	Again time.Duration // when to try again; 0: when something in use has ended

	excess *excess // if a rate refused it; nil: another quota
}

func (e *Error) Error() string {
	hint := "; try again in " + e.again().String()
	if over := kindInfo[e.Kind].over; over != "" {
		hint = ": " + fmt.Sprintf(over, e.Kind.Show(e.Has))
	}
	return fmt.Sprintf("%v: %s is over its quota, %s = %s%s", scheduler.ErrOverloaded, e.Payer, e.Kind, e.Kind.Show(e.Limit), hint)
}

// Words returns the error without the fields that its text does not show: errors with the same text
// have equal Words.
func (e *Error) Words() Error {
	return Error{Payer: e.Payer, Kind: e.Kind, Limit: e.Limit, Has: e.Has, Again: e.again()}
}

// RetryAfter returns when to try again; 0: when something in use has ended.
func (e *Error) RetryAfter() time.Duration { return e.Again }

// again is when to try again, as the text shows it.
func (e *Error) again() time.Duration { return max(e.Again.Round(time.Millisecond), time.Millisecond) }

// Unwrap makes the error a [scheduler.ErrOverloaded].
func (e *Error) Unwrap() error { return scheduler.ErrOverloaded }
