package access

import (
	"fmt"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
)

// A Quota is a kind of limit for one payer.
type Quota uint8

// All kinds. Addresses have no quota of Connections: each door has its own limit for them.
const (
	RequestsPerSecond Quota = iota
	BytesPerSecond
	RequestsInFlight
	BytesInFlight
	UnreadBytes
	GRPCStreams
	Connections
	Quotas = iota
)

// kindInfo holds the names, ranges and error texts of the kinds.
var kindInfo = [Quotas]struct {
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
func (k Quota) String() string { return kindInfo[k].key }

// Show formats an amount of the kind for people.
func (k Quota) Show(n int64) string {
	if kindInfo[k].bytes {
		return setting.Bytes(n).String()
	}
	return fmt.Sprint(n)
}

// Limits are the quotas of one payer, by Quota; 0 means unlimited.
type Limits struct {
	Of    [Quotas]int64
	Burst time.Duration // how long unused rate accumulates; 0: DefaultBurst
}

// DefaultBurst is how long unused rate accumulates unless the configuration says otherwise.
const DefaultBurst = time.Second

// none reports whether nothing is limited.
func (l *Limits) none() bool { return l.Of == [Quotas]int64{} }

// Faults lists what is wrong with the limits, by the names of the file.
func (l *Limits) Faults() (fs setting.Faults) {
	for k := range Quota(Quotas) {
		if n := l.Of[k]; n == 0 {
			continue
		} else if kindInfo[k].bytes {
			setting.Between(&fs, k.String(), setting.Bytes(n), setting.Bytes(kindInfo[k].least),
				setting.Bytes(kindInfo[k].most))
		} else {
			setting.Between(&fs, k.String(), int(n), int(kindInfo[k].least), int(kindInfo[k].most))
		}
	}
	if l.Burst != 0 {
		setting.Between(&fs, "burst", l.Burst, time.Millisecond, time.Minute)
	}
	return fs
}

// A QuotaError refuses a request that is over a quota. It is a [scheduler.ErrOverloaded].
type QuotaError struct {
	Payer string // `identity "cam"`, or "address 192.0.2.1"
	Kind  Quota
	Limit int64
	Has   int64         // what the payer uses now; 0 for a rate
	Again time.Duration // when to try again; 0: when something in use has ended

	excess *excess // if a rate refused it; nil: another quota
}

func (e *QuotaError) Error() string {
	hint := "; try again in " + e.again().String()
	if over := kindInfo[e.Kind].over; over != "" {
		hint = ": " + fmt.Sprintf(over, e.Kind.Show(e.Has))
	}
	return fmt.Sprintf("%v: %s is over its quota, %s = %s%s", scheduler.ErrOverloaded, e.Payer, e.Kind,
		e.Kind.Show(e.Limit), hint)
}

// Words returns the error without the fields that its text does not show: errors with the same text
// have equal Words.
func (e *QuotaError) Words() QuotaError {
	return QuotaError{Payer: e.Payer, Kind: e.Kind, Limit: e.Limit, Has: e.Has, Again: e.again()}
}

// RetryAfter returns when to try again; 0: when something in use has ended.
func (e *QuotaError) RetryAfter() time.Duration { return e.Again }

// again is when to try again, as the text shows it.
func (e *QuotaError) again() time.Duration {
	return max(e.Again.Round(time.Millisecond), time.Millisecond)
}

// Unwrap makes the error a [scheduler.ErrOverloaded].
func (e *QuotaError) Unwrap() error { return scheduler.ErrOverloaded }
