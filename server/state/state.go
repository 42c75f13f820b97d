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

// What callers branch on; errors that are returned wrap these and say more.
var (
	// ErrUnavailable: the store cannot be reached. An Update that returned it may
	// have been applied nonetheless, if the connection was lost before the answer arrived. Give it
	// an id and repeat it.
	ErrUnavailable = errors.New("state: unavailable")

	// ErrFull: no room for this update on the disk or in Redis. Nothing was changed; reading goes
	// on, and so does writing when there is room again.
	ErrFull = errors.New("state: no room")

	// ErrConflict: others changed the key as often as this update was tried. Nothing was changed.
	ErrConflict = errors.New("state: too many changes of one key at once")

	// ErrApplied: an update of this key with this id was applied before. Nothing was changed.
	ErrApplied = errors.New("state: an update with this id was applied before")

	// ErrTooLarge: the key or the value is above its limit. Nothing was changed.
	ErrTooLarge = errors.New("state: too large")

	// ErrCorrupt: what is stored is not what this package has written.
	ErrCorrupt = errors.New("state: corrupt")

	// ErrClosed: the store has been closed.
	ErrClosed = errors.New("state: closed")
)

// An Entry is a key and its value.
type Entry struct {
	Key string

	// Value is nil if the key does not exist, and not nil but maybe empty if it does. It is
	// shared with the store and all other readers: it stays as it is for ever, and must not be
	// changed.
	Value []byte

	// Revision is another one after every change of the key, and 0 if the key does not exist. Who
	// keeps something that was computed from Value can tell by it whether that still holds. It
	// means nothing to another Store.
	Revision uint64
}

// seen is the entry that an update returns: one that was deleted has no revision.
func (e Entry) seen() Entry {
	if e.Value == nil {
		e.Revision = 0
	}
	return e
}

// Health reports how a store is doing.
type Health struct {
	// Err is why the state cannot be written: Redis cannot be reached, or the last write to the
	// file failed. Nil: it can.
	Err error

	// Since is when this began.
	Since time.Time
}

// A Store keeps records. See the package comment for what it promises.
type Store interface {
	// Get reads one key from memory, without waiting and without allocating. No such key: an
	// entry without value. ErrUnavailable: nothing was read yet, because Redis has not been
	// reached since this server started.
	Get(key string) (Entry, error)

	// List reads all keys that begin with prefix, in their order, as they were at one moment. It
	// is fast if the prefix has the whole first segment ("apps/"); else all keys are looked at.
	// Errors as Get.
	List(prefix string) ([]Entry, error)

	// Update replaces the value of a key by what change makes of it, in one atomic step, and
	// returns the entry as it is then. Change gets the newest value, nil if there is none, and
	// returns the new one, nil to delete the key. It must not change its argument; what it
	// returns is the store's from then on. It may be called several times, from any goroutine,
	// and must not use the store. An error of change ends the update, is returned as it is, and
	// nothing was changed.
	//
	// If id is not empty, and an update of this key with this id was applied before (within the
	// limits of Options), Update changes nothing and returns ErrApplied with the entry as it is.
	// The id is remembered in the same atomic step.
	//
	// Update ends when ctx does, or after 5 s if ctx has no deadline, with an error that wraps
	// ErrUnavailable and the context's error.
	Update(ctx context.Context, key, id string, change func(old []byte) (value []byte, err error)) (Entry, error)

	// Write gives keys their values, nil to delete one, whatever they were: all of them in one
	// atomic step for every reader, or none. It takes no ids. Errors and the end of ctx are as
	// Update's; above the limits of a Write, or with a key that is there twice, nothing was
	// changed. The values are the store's from then on.
	Write(ctx context.Context, entries []Entry) error

	// Watch has something sent to changed whenever keys that begin with prefix have changed, also
	// by other servers, and once at the start. It does not wait: who reads from changed, which
	// wants a buffer of one, is told that there is something new to read, not how often. One
	// channel may serve several watches. After stop has returned nothing more is sent.
	Watch(prefix string, changed chan<- struct{}) (stop func())

	// Health reports since when the state can be written, or since when and why not.
	Health() Health

	// Close ends the store's goroutines, waits for them, and releases file and connections.
	// Calls under way and later ones return ErrClosed. A second Close does nothing.
	Close() error
}

// Options say how a store is opened. The zero value is valid.
type Options struct {
	// Namespace begins the names of all keys in Redis, so that one Redis serves several clusters.
	// Empty: "shivad". A file belongs to one server and has none.
	Namespace string

	// IDLifetime is how long ids of updates are remembered. 0: 24 h.
	IDLifetime time.Duration

	// MaxIDs is how many ids of updates are remembered; above it the oldest go. 0: 262,144, which
	// are 55 MB in a file, 32 MB in Redis and 15 MB in each server's memory.
	MaxIDs int

	// Settle is how long updates wait when Redis has lost its data or was restarted, so that all
	// servers can bring what they know before anything is built upon it. 0: 2 s. The same for all
	// servers of a namespace.
	Settle time.Duration

	// Required has Open fail if Redis does not let itself be read by the end of Open's context.
	// False: Open succeeds, the store's reads return ErrUnavailable until Redis is there, and
	// Health says why it is not. A file that cannot be opened is an error either way.
	Required bool

	// Now is the wall clock, by which ids are remembered; nil: time.Now. It may jump.
	Now func() time.Time

	// Logger is told when Redis goes and comes back. Nil: silent.
	Logger *slog.Logger
}

// withDefaults fills in what was left out, or tells all that is wrong.
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

// CheckNamespace says what is wrong with Options.Namespace, or returns nil.
func CheckNamespace(name string) error {
	if name == "" || len(name) > 64 || strings.ContainsAny(name, " \t\r\n") {
		return fmt.Errorf("%q: expected 1 to 64 bytes without white space", name)
	}
	return nil
}

// CheckTarget says what is wrong with the form of a target of [Open], or returns nil.
func CheckTarget(target string) error {
	scheme, _, isURL := strings.Cut(target, "://")
	if isURL && scheme != "redis" && scheme != "rediss" && scheme != "unix" {
		return fmt.Errorf("scheme %q: expected redis://host:port/db, rediss://, unix://path?db=n, or the path of a file", scheme)
	}
	return nil
}

// Open opens the store that target names: redis://[user:password@]host:port/db, rediss:// with
// the same (TLS), unix://path?db=n for the socket of a Redis, else the path of a file, which is
// made if it is not there. Redis is 7.0 or newer.
//
// A file that another process has open, or that this package did not write, is an error, and is
// left as it is. For a Redis, Open waits for the first attempt, or until ctx ends;
// Options.Required says what a failed one means. Errors say what to do, and never show a
// password. Ctx does not outlast Open.
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

// Key joins segments with slashes. What would be taken for something else in a segment is
// escaped, so that different segments never make the same key.
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

// Check reports whether the entries can be written at once, as far as they themselves say.
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

// An idHash stands for the id of an update of a key, whatever their lengths.
type idHash [16]byte

func hashID(key, id string) idHash {
	sum := sha256.Sum256([]byte(key + "\x00" + id))
	return idHash(sum[:16])
}

// withCallTimeout bounds a call that its caller has not bounded.
func withCallTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, callTimeout)
}

// ended is the error of an update that its context ended.
func ended(ctx context.Context, doing string) error {
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, doing, context.Cause(ctx))
}
