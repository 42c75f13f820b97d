package state

import (
	"context"
	"sync"
	"time"
)

// memory is a Store that forgets everything when the process ends.
type memory struct {
	*mirror
	opts  Options
	since time.Time

	locks keyLocks // one update of a key at a time

	// Guarded by mu.
	mu       sync.Mutex
	revision uint64
	applied  recent[idHash]
}

// NewMemory returns a store whose contents end with the process: for tests, and for servers that
// are configured completely at their start.
func NewMemory(opts Options) (Store, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return &memory{mirror: newMirror(nil), opts: opts, since: time.Now(), applied: newRecent[idHash](opts.MaxIDs)}, nil
}

func (m *memory) Update(ctx context.Context, key, id string, change func([]byte) ([]byte, error)) (Entry, error) {
	if err := checkKey(key); err != nil {
		return Entry{}, err
	}
	_, end, err := m.locks.begin(ctx, key)
	if err != nil {
		return Entry{}, err
	}
	defer end()
	old, err := m.Get(key)
	if err != nil {
		return Entry{}, err
	}
	now, hash := uint64(m.opts.Now().UnixMilli()), hashID(key, id)
	m.mu.Lock()
	at, applied := m.applied.at[hash]
	m.mu.Unlock()
	// The difference is below 0 if the clock was set back.
	if applied && id != "" && int64(now-at) < m.opts.IDLifetime.Milliseconds() {
		return old, ErrApplied
	}
	value, err := change(old.Value)
	if err == nil {
		err = checkValue(key, value)
	}
	if err != nil {
		return Entry{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if id != "" {
		m.applied.add(hash, now)
	}
	m.revision++
	e := Entry{Key: key, Value: value, Revision: m.revision}
	m.set(e)
	return e.seen(), nil
}

func (m *memory) Write(ctx context.Context, entries []Entry) error {
	if err := Check(entries); err != nil {
		return err
	}
	_, end, err := m.locks.begin(ctx, keysOf(entries)...)
	if err != nil {
		return err
	}
	defer end()
	if _, err := m.Get(""); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set(numbered(entries, &m.revision)...)
	return nil
}

func keysOf(entries []Entry) []string {
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = e.Key
	}
	return keys
}

// numbered returns entries with the revisions after last, and advances last.
func numbered(entries []Entry, last *uint64) []Entry {
	out := make([]Entry, len(entries))
	for i, e := range entries {
		*last++
		out[i] = Entry{Key: e.Key, Value: e.Value, Revision: *last}
	}
	return out
}

func (m *memory) Health() Health {
	_, err := m.Get("")
	return Health{Err: err, Since: m.since}
}

func (m *memory) Close() error {
	m.close()
	return nil
}
