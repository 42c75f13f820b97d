package state

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
)

// The limits of one record.
const (
	MaxKeyBytes   = 1 << 10
	MaxValueBytes = 1 << 20
)

// The limits of one Write. Redis takes a million arguments and 1 GB in one command.
const (
	MaxWriteEntries = 1 << 18
	MaxWriteBytes   = 512 << 20
)

// callTimeout ends an update whose context has no deadline of its own.
const callTimeout = 5 * time.Second

// The errors for callers to branch on. Returned errors wrap these and say more.
var (
	// ErrUnavailable: the store cannot be reached. The Update may have been applied nonetheless, if
	// the connection was lost before the answer arrived. Give updates an id and repeat them.
	ErrUnavailable = errors.New("state: unavailable")

	// ErrFull: no room for this update on the disk or in Redis. Nothing was changed; reading still
	// works, and writing works again when there is room.
	ErrFull = errors.New("state: no room")

	// ErrConflict: another server changed the key during each try of this update. Nothing was
	// changed.
	ErrConflict = errors.New("state: too many changes of one key at once")

	// ErrApplied: an update of this key with this id was applied before. Nothing was changed.
	ErrApplied = errors.New("state: an update with this id was applied before")

	// ErrTooLarge: the key or the value is above its limit. Nothing was changed.
	ErrTooLarge = errors.New("state: too large")

	// ErrCorrupt: the stored data is not what this package has written.
	ErrCorrupt = errors.New("state: corrupt")

	// ErrClosed: the store has been closed.
	ErrClosed = errors.New("state: closed")
)

// An Entry is a key and its value.
type Entry struct {
	Key string

	// Value is nil if the key does not exist, and not nil but maybe empty if it does. The store and
	// all readers share it: never modify it.
	Value []byte

	// Revision differs after every change of the key, and is 0 if the key does not exist. A caller
	// that caches something computed from Value can compare Revision to see whether it still holds.
	// A Revision means nothing to another Store.
	Revision uint64
}

// seen returns the entry that an update returns: a deleted one has no revision.
func (e Entry) seen() Entry {
	if e.Value == nil {
		e.Revision = 0
	}
	return e
}

// Health reports how a store is doing.
type Health struct {
	// Err is why the state cannot be written: Redis cannot be reached, or the last write to the
	// file failed. Nil: it can be written.
	Err error

	// Since is when the state became, or ceased to be, writable.
	Since time.Time
}

// A Store stores records. See the package comment for what it promises.
type Store interface {
	// Get reads one key from memory, without waiting and without allocating. If there is no such
	// key, the entry has no value. ErrUnavailable means that Redis has not been read since this
	// server started.
	Get(key string) (Entry, error)

	// List reads all keys that begin with prefix, sorted, as they were at one moment. It is fast if
	// the prefix has the whole first segment ("apps/"); otherwise it examines all keys. It returns
	// the same errors as Get.
	List(prefix string) ([]Entry, error)

	// Update replaces the value of a key with the result of change, in one atomic step, and returns
	// the new entry. Change gets the newest value, nil if there is none, and returns the new one,
	// nil to delete the key. It must not modify its argument, and the store owns its result. It may
	// be called several times, from any goroutine, and must not use the store. If change returns an
	// error, Update changes nothing and returns that error unwrapped.
	//
	// If id is not empty, and an update of this key with this id was applied before (within the
	// limits of Options), Update changes nothing and returns ErrApplied with the current entry. The
	// id is remembered in the same atomic step.
	//
	// Update ends when ctx does, or after 5 s if ctx has no deadline, with an error that wraps
	// ErrUnavailable and the context's error.
	Update(ctx context.Context, key, id string, change func(old []byte) (value []byte, err error)) (Entry, error)

	// Write sets keys to values, nil to delete a key, whatever their old values: all in one atomic
	// step for every reader, or none. It takes no ids. Errors and the end of ctx are as for Update.
	// Above the limits of a Write, or if a key occurs twice, nothing is changed. The store owns the
	// values.
	Write(ctx context.Context, entries []Entry) error

	// Watch sends to changed whenever keys that begin with prefix have changed, also by other
	// servers, and once at the start. It never blocks: give changed a buffer of one. A receive
	// means that there is something new to read, not how many changes. One channel may serve
	// several watches. Nothing is sent after stop has returned.
	Watch(prefix string, changed chan<- struct{}) (stop func())

	// Health reports whether the state can be written, since when, and if not, why.
	Health() Health

	// Close ends the store's goroutines, waits for them, and releases file and connections. Calls
	// in progress and later calls return ErrClosed. A second Close does nothing.
	Close() error
}

// Options say how a store is opened. The zero value is valid.
type Options struct {
	// Namespace is the prefix of all keys in Redis, so that one Redis can serve several clusters.
	// Empty: "shivad". A file belongs to one server and has no namespace.
	Namespace string

	// IDLifetime is how long ids of updates are remembered. 0: 24 h.
	IDLifetime time.Duration

	// MaxIDs is how many ids of updates are remembered; beyond that the oldest are forgotten. 0:
	// 262,144, which take 55 MB in a file, 32 MB in Redis and 15 MB in each server's memory.
	MaxIDs int

	// Settle is how long updates wait when Redis has lost its data or was restarted, so that all
	// servers can restore what they know before any update builds on it. 0: 2 s. All servers of a
	// namespace must have the same.
	Settle time.Duration

	// Required makes Open fail if Redis cannot be read by the end of Open's context. False: Open
	// succeeds, the store's reads return ErrUnavailable until Redis has been read, and Health says
	// why it has not. A file that cannot be opened is an error either way.
	Required bool

	// Now is the wall clock for the lifetime of ids; nil: time.Now. It may jump.
	Now func() time.Time

	// Logger logs when the store becomes unavailable and available again. Nil: silent.
	Logger *slog.Logger
}

// withDefaults fills in the defaults, or returns all faults.
func (o Options) withDefaults() (Options, error) {
	o.Namespace = cmp.Or(o.Namespace, "shivad")
	o.IDLifetime = cmp.Or(o.IDLifetime, 24*time.Hour)
	o.MaxIDs = cmp.Or(o.MaxIDs, 1<<18)
	o.Settle = cmp.Or(o.Settle, 2*time.Second)
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	var fs setting.Faults
	fs.Check("namespace", CheckNamespace(o.Namespace))
	setting.Between(&fs, "id lifetime", o.IDLifetime, time.Millisecond, setting.MaxIdle)
	setting.Between(&fs, "ids", o.MaxIDs, 1, 1<<30)
	setting.Between(&fs, "settle", o.Settle, time.Millisecond, setting.MaxWait)
	if len(fs) > 0 {
		return o, fmt.Errorf("state: %w", fs)
	}
	return o, nil
}

// CheckNamespace returns what is wrong with Options.Namespace, or nil.
func CheckNamespace(name string) error {
	if name == "" || len(name) > 64 || strings.ContainsAny(name, " \t\r\n") {
		return fmt.Errorf("%q: expected 1 to 64 bytes without white space", name)
	}
	return nil
}

// CheckTarget returns what is wrong with the form of a target of [Open], or nil.
func CheckTarget(target string) error {
	scheme, _, isURL := strings.Cut(target, "://")
	if isURL && scheme != "redis" && scheme != "rediss" && scheme != "unix" {
		return fmt.Errorf("scheme %q: expected redis://host:port/db, rediss://, unix://path?db=n, or the path of a file",
			scheme)
	}
	return nil
}

// Open opens the store that target names: redis://[user:password@]host:port/db, rediss:// for the
// same with TLS, unix://path?db=n for the socket of a Redis, or the path of a file, which is
// created if it does not exist. Redis must be 7.0 or newer.
//
// A file that another process has open, or that this package did not write, is an error, and is
// left as it is. For a Redis, Open waits for the first attempt to read it, or until ctx ends;
// Options.Required says whether a failed attempt is an error. Errors suggest a remedy, and never
// show a password. Open does not use ctx after it returns.
func Open(ctx context.Context, target string, opts Options) (Store, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if target == "" {
		return nil, errors.New("state: no target: want the path of a file, or redis://host:port/db")
	}
	if err := CheckTarget(target); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if strings.Contains(target, "://") {
		return openRedis(ctx, target, opts)
	}
	return openFile(target, opts)
}

// An OpenError is why a store cannot be opened, and what mends it.
type OpenError struct {
	Err    error
	Remedy string
}

func (e *OpenError) Error() string { return fmt.Sprintf("%v; %s", e.Err, e.Remedy) }
func (e *OpenError) Unwrap() error { return e.Err }

// Key joins segments with slashes. It escapes special characters in segments, so that different
// segments never make the same key.
func Key(segments ...string) string {
	escaped := make([]string, len(segments))
	for i, s := range segments {
		escaped[i] = url.PathEscape(s)
	}
	return strings.Join(escaped, "/")
}

// Segments undoes Key.
func Segments(key string) ([]string, error) {
	segments := strings.Split(key, "/")
	for i, s := range segments {
		var err error
		if segments[i], err = url.PathUnescape(s); err != nil {
			return nil, fmt.Errorf("state: key %q: %w", key, err)
		}
	}
	return segments, nil
}

func checkKey(key string) error {
	if key == "" {
		return errors.New("state: empty key")
	}
	if len(key) > MaxKeyBytes {
		return fmt.Errorf("%w: key of %d bytes, limit is %d", ErrTooLarge, len(key), MaxKeyBytes)
	}
	return nil
}

func checkValue(key string, value []byte) error {
	if len(value) > MaxValueBytes {
		return fmt.Errorf("%w: value of %q has %d bytes, limit is %d", ErrTooLarge, key, len(value), MaxValueBytes)
	}
	return nil
}

// Check reports whether the entries are within the limits of one Write.
func Check(entries []Entry) error {
	if len(entries) > MaxWriteEntries {
		return fmt.Errorf("%w: %d entries at once, limit is %d", ErrTooLarge, len(entries), MaxWriteEntries)
	}
	keys, size := make(map[string]bool, len(entries)), 0
	for _, e := range entries {
		if err := checkKey(e.Key); err != nil {
			return err
		}
		if err := checkValue(e.Key, e.Value); err != nil {
			return err
		}
		if keys[e.Key] {
			return fmt.Errorf("state: key %q is there twice", e.Key)
		}
		keys[e.Key] = true
		size += len(e.Key) + len(e.Value)
	}
	if size > MaxWriteBytes {
		return fmt.Errorf("%w: %d bytes at once, limit is %d", ErrTooLarge, size, MaxWriteBytes)
	}
	return nil
}

// An idHash stands for a key and the id of an update of it, whatever their lengths.
type idHash [16]byte

func hashID(key, id string) idHash {
	sum := sha256.Sum256([]byte(key + "\x00" + id))
	return idHash(sum[:16])
}

// withCallTimeout gives ctx a deadline if it has none.
func withCallTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, callTimeout)
}

// ended returns the error of an update that its context ended.
func ended(ctx context.Context, doing string) error {
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, doing, context.Cause(ctx))
}
