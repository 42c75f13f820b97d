// Package quota bounds what one identity, or one address, asks for in a second and holds at a time,
// so that others do not notice it.
//
//	Account                what one payer has taken, and its Limits
//	Use                    what one request takes of its Payers, until End
//	Claims                 for whom a connection counts, until End
//	Identities, Addresses  the accounts that there are; both outlive a reload
//
// A request is refused or admitted as a whole, with an [*Error] that names the quota. It is never
// made to wait: whoever may ask again is told when. Only for unread answers waiting can end by what
// the client does on the same connection, and there gate.Outbox waits.
//
// A rate is a bucket that a request may overdraw: it is admitted while the bucket has anything, and
// then pays in full. A bucket that had to hold all of a request would refuse for ever what is
// larger than itself. Likewise a payer that has nothing in flight may have one request of any size,
// and one answer.
//
// Counting takes no lock and allocates nothing. What is in flight is the difference of two counts
// that only rise, what has begun and what has ended, which are the totals for metrics as well.
//
// Concurrency: everything may be called from any goroutine, but for a Use, which one at a time has.
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

// A Kind is what a quota bounds.
type Kind uint8

// The kinds there are. An address has no quota of Connections: each door has one for it.
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

// words are the kinds as people read them.
var words = [Kinds]struct {
	key         string // in the file, in status and as a label
	bytes       bool   // it is a size
	least, most int64  // where it is not 0
	over        string // what a payer that is over it has, and what to do about it; "": see Again
}{
	RequestsPerSecond: {"requests_per_second", false, 1, 10_000_000, ""},
	BytesPerSecond:    {"bytes_per_second", true, 1 << 10, int64(setting.MaxBytes), ""},
	RequestsInFlight:  {"requests_in_flight", false, 1, 1 << 24, "%s are in flight; wait for answers before asking more"},
	BytesInFlight:     {"bytes_in_flight", true, 1 << 10, int64(setting.MaxBytes), "requests of %s are in flight; wait for answers before asking more"},
	UnreadBytes:       {"unread_bytes", true, 1 << 10, int64(setting.MaxBytes), "answers of %s wait for it, with those that it is about to get; read answers before asking more"},
	GRPCStreams:       {"grpc_streams", false, 1, 1 << 24, "%s are open; end one before the next"},
	Connections:       {"connections", false, 1, 1 << 24, "%s are open; close one before the next"},
}

// String is the kind's key in the file.
func (k Kind) String() string { return words[k].key }

// Show is an amount of the kind, for people.
func (k Kind) Show(n int64) string {
	if words[k].bytes {
		return setting.Bytes(n).String()
	}
	return fmt.Sprint(n)
}

// Limits are the quotas of one payer, by Kind; 0: there is none.
type Limits struct {
	Of    [Kinds]int64
	Burst time.Duration // for how long a rate may be saved up; 0: DefaultBurst
}

// DefaultBurst is how much of a rate may come at once.
const DefaultBurst = time.Second

// none reports whether nothing is bounded.
func (l *Limits) none() bool { return l.Of == [Kinds]int64{} }

// Faults is what is wrong with the limits, by the names of the file.
func (l *Limits) Faults() (fs setting.Faults) {
	for k := range Kind(Kinds) {
		if n := l.Of[k]; n == 0 {
			continue
		} else if words[k].bytes {
			setting.Between(&fs, k.String(), setting.Bytes(n), setting.Bytes(words[k].least), setting.Bytes(words[k].most))
		} else {
			setting.Between(&fs, k.String(), int(n), int(words[k].least), int(words[k].most))
		}
	}
	if l.Burst != 0 {
		setting.Between(&fs, "burst", l.Burst, time.Millisecond, time.Minute)
	}
	return fs
}

// An Error refuses what is over a quota. It is a [scheduler.ErrOverloaded].
type Error struct {
	Whose string // `identity "cam"`, or "address 192.0.2.1"
	Kind  Kind
	Limit int64
	Has   int64         // what the payer has; of a rate 0
	Again time.Duration // when it is worth trying again; 0: when something has ended
}

func (e *Error) Error() string {
	hint := "; try again in " + max(e.Again.Round(time.Millisecond), time.Millisecond).String()
	if over := words[e.Kind].over; over != "" {
		hint = ": " + fmt.Sprintf(over, e.Kind.Show(e.Has))
	}
	return fmt.Sprintf("%v: %s is over its quota, %s = %s%s", scheduler.ErrOverloaded, e.Whose, e.Kind, e.Kind.Show(e.Limit), hint)
}

// Unwrap makes the error a [scheduler.ErrOverloaded].
func (e *Error) Unwrap() error { return scheduler.ErrOverloaded }
