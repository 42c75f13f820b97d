package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/shivad/shivad/server/internal/wake"
	"github.com/shivad/shivad/shiva/backoff"
)

const (
	maxTries    = 64                    // of an update that loses to other servers
	maxPause    = 32 * time.Millisecond // between two tries
	dialTimeout = 2 * time.Second
	readTimeout = 30 * time.Second // for the longest answer, everything; calls end with contexts
)

// redisStore is a Store in Redis, which other servers may share. Updates go to Redis, and are in
// the mirror when they return; one goroutine follows the changes of other servers (follow.go).
type redisStore struct {
	*mirror
	opts    Options
	client  *redis.Client
	keys    []string // of the scripts
	channel string
	locks   keyLocks

	ctx      context.Context // ended by Close
	cancel   context.CancelFunc
	follower sync.WaitGroup // follow
	reread   chan struct{}  // makes follow read everything again
	tried    chan struct{}  // closed when the first attempt to read has ended
	seen     uint64         // owned by follow: the revision up to which every change has been seen

	// Guarded by mu, which is taken before the mirror's.
	mu            sync.Mutex
	life          string        // of the data in the mirror; "" while it may hold what Redis lacks
	late          bool          // the mirror got a change of an earlier life that Redis may lack
	statusChanged chan struct{} // closed and replaced when life or health changes
	health        Health
	applied       recent[idHash] // ids by time in ms
}

func openRedis(ctx context.Context, target string, opts Options) (Store, error) {
	o, err := redis.ParseURL(target)
	if err != nil {
		// A *url.Error quotes the URL, and with it the password.
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return nil, fmt.Errorf("state: address of Redis: %w", err)
	}
	logging.Disable() // go-redis would also print the errors that it returns
	o.MaxRetries = -1 // an update that was sent twice would be applied twice
	o.DialerRetries = 1
	o.ContextTimeoutEnabled = true
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.DialTimeout = cmp.Or(o.DialTimeout, dialTimeout)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, readTimeout)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, readTimeout)
	s := &redisStore{
		mirror: newMirror(fmt.Errorf("%w: Redis at %s has not been read yet", ErrUnavailable, o.Addr)),
		opts:   opts, client: redis.NewClient(o),
		reread: make(chan struct{}, 1), tried: make(chan struct{}), statusChanged: make(chan struct{}),
		applied: newRecent[idHash](opts.MaxIDs),
	}
	s.health = Health{Err: s.unread, Since: time.Now()}
	for _, name := range []string{"meta", "entries", "deleted", "applied"} {
		s.keys = append(s.keys, opts.Namespace+":"+name)
	}
	s.channel = opts.Namespace + ":changes"
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.follower.Go(s.follow)
	select {
	case <-s.tried:
	case <-ctx.Done():
	}
	if err := s.Health().Err; err != nil && opts.Required {
		_ = s.Close()
		return nil, &OpenError{err, redisRemedy(err)}
	}
	return s, nil
}

func (s *redisStore) Update(ctx context.Context, key, id string, change func([]byte) ([]byte, error)) (Entry, error) {
	if err := checkKey(key); err != nil {
		return Entry{}, err
	}
	// One update of a key at a time from this server: then only other servers compete.
	ctx, end, err := s.locks.begin(ctx, key)
	if err != nil {
		return Entry{}, err
	}
	defer end()
	life, err := s.ready(ctx, "")
	if err != nil {
		return Entry{}, err
	}
	// The mirror may be behind. Then the commit fails, and returns the current entry.
	old, err := s.Get(key)
	if err != nil {
		return Entry{}, err
	}
	for try := 0; try < maxTries; {
		value, refused := change(old.Value)
		if refused == nil {
			refused = checkValue(key, value)
		}
		doing := operation(value)
		if refused != nil { // the refusal, too, may rest on an outdated value
			doing, value = "look", nil
		}
		r, err := s.commit(ctx, life, old, id, doing, value)
		if err != nil {
			return Entry{}, s.broken(ctx, "changing "+key, err)
		}
		switch r.outcome {
		case "done":
			s.committed(life, r, id)
			return r.entry.seen(), nil
		case "applied":
			return r.entry, ErrApplied
		case "changed":
			if refused != nil && r.entry.Revision == old.Revision {
				return Entry{}, refused
			}
			// Try again at once with the entry just returned. After a pause it is outdated, and the
			// next try loses to any server that has not paused: a server that always pauses may
			// never win.
			old = r.entry
			if try++; try%2 == 0 {
				err = pause(ctx, rand.N(min(time.Millisecond<<min(try, 10), maxPause)))
			}
		case "hold":
			err = pause(ctx, r.wait)
		case "life":
			s.askReread()
			life, err = s.ready(ctx, life)
		}
		if err != nil {
			return Entry{}, err
		}
	}
	return Entry{}, fmt.Errorf("%w: %s, %d times", ErrConflict, key, maxTries)
}

func (s *redisStore) Write(ctx context.Context, entries []Entry) error {
	if err := Check(entries); err != nil || len(entries) == 0 {
		return err
	}
	ctx, end, err := s.locks.begin(ctx, keysOf(entries)...)
	if err != nil {
		return err
	}
	defer end()
	life, err := s.ready(ctx, "")
	for err == nil {
		args := []any{s.channel, life, maxGone}
		for _, e := range entries {
			args = append(args, e.Key, operation(e.Value), e.Value)
		}
		var reply []any
		if reply, err = writeScript.Run(ctx, s.client, s.keys, args...).Slice(); err != nil {
			return s.broken(ctx, "writing", err)
		}
		var r commitReply
		if r, err = decodeCommitReply("", nil, reply); err != nil {
			return s.broken(ctx, "writing", err)
		}
		switch r.outcome {
		case "done":
			before := r.entry.Revision - uint64(len(entries))
			s.mu.Lock()
			defer s.mu.Unlock()
			s.acknowledgedLocked(life, numbered(entries, &before)...)
			return nil
		case "hold":
			err = pause(ctx, r.wait)
		case "life":
			s.askReread()
			life, err = s.ready(ctx, life)
		default:
			err = fmt.Errorf("%w: answer %.80q of the write script", ErrCorrupt, reply)
		}
	}
	return err
}

// operation returns the scripts' name for setting a key to this value.
func operation(value []byte) string {
	if value == nil {
		return "delete"
	}
	return "set"
}

// A commitReply is the reply of the commit script or the write script.
type commitReply struct {
	outcome string        // the script's word
	entry   Entry         // done: the new entry; applied, changed: the entry in Redis
	time    uint64        // done: ms since 1970
	wait    time.Duration // hold
}

// commit runs the commit script, doing "set", "delete" or "look".
func (s *redisStore) commit(ctx context.Context, life string, old Entry, id, doing string, value []byte) (commitReply,
	error) {
	var hash []byte
	if id != "" {
		h := hashID(old.Key, id)
		hash = h[:]
	}
	reply, err := commitScript.Run(ctx, s.client, s.keys, s.channel, life, old.Key, old.Revision, doing, value, hash,
		s.opts.IDLifetime.Milliseconds(), s.opts.MaxIDs, maxGone).Slice()
	if err != nil {
		return commitReply{}, err
	}
	return decodeCommitReply(old.Key, value, reply)
}

func decodeCommitReply(key string, value []byte, reply []any) (commitReply, error) {
	var r commitReply
	at := func(i int) any {
		if i < len(reply) {
			return reply[i]
		}
		return nil
	}
	r.outcome, _ = at(0).(string)
	r.entry = Entry{Key: key}
	switch r.outcome {
	case "life":
		return r, nil
	case "hold":
		if ms, ok := at(1).(int64); ok {
			r.wait = time.Duration(ms) * time.Millisecond
			return r, nil
		}
	case "done":
		revision, ok := at(1).(int64)
		now, ok2 := at(2).(int64)
		if ok && ok2 {
			r.entry.Value, r.entry.Revision, r.time = value, uint64(revision), uint64(now)
			return r, nil
		}
	case "applied", "changed":
		stored, ok := at(1).(string)
		if !ok {
			return r, nil
		}
		var err error
		r.entry, err = decodeStored(key, stored)
		return r, err
	}
	return r, fmt.Errorf("%w: answer %.80q of the commit script", ErrCorrupt, reply)
}

// committed puts an update that Redis has acknowledged into the mirror, before Update returns.
func (s *redisStore) committed(life string, r commitReply, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id != "" {
		s.applied.add(hashID(r.entry.Key, id), r.time)
	}
	s.acknowledgedLocked(life, r.entry)
}

// acknowledgedLocked puts entries into the mirror that Redis has acknowledged in that life.
func (s *redisStore) acknowledgedLocked(life string, entries ...Entry) {
	s.set(entries...)
	if s.life != life {
		// Redis lost its data since its answer. These entries have to be restored, too.
		s.late = true
		s.askReread()
	}
}

// askReread makes follow read everything again. It does not wait.
func (s *redisStore) askReread() {
	wake.Up(s.reread)
}

// ready waits until the mirror is in sync with Redis, in another life than not, and returns that
// life. It does not wait for an unreachable Redis.
func (s *redisStore) ready(ctx context.Context, not string) (string, error) {
	for {
		s.mu.Lock()
		life, health, changed := s.life, s.health, s.statusChanged
		s.mu.Unlock()
		switch {
		case s.ctx.Err() != nil:
			return "", ErrClosed
		case health.Err != nil:
			return "", fmt.Errorf("since %s: %w", health.Since.Format(time.RFC3339), health.Err)
		case life != "" && life != not:
			return life, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", ended(ctx, "waiting for all to be read again from Redis")
		case <-s.ctx.Done():
			return "", ErrClosed
		}
	}
}

// broken converts an error of Redis, or of the connection to it, to one of this package.
func (s *redisStore) broken(ctx context.Context, doing string, err error) error {
	at := "Redis at " + s.client.Options().Addr
	if format, ok := strings.CutPrefix(err.Error(), "FORMAT "); ok { // from the scripts
		err = otherFormat(format, redisFormat)
	}
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		<-ctx.Done() // the connection has the same deadline, and may time out a moment earlier
	}
	switch {
	case s.ctx.Err() != nil:
		return ErrClosed
	case errors.Is(err, ErrCorrupt):
		return fmt.Errorf("%s: %s: %w", at, doing, err)
	case strings.HasPrefix(err.Error(), "OOM "):
		return fmt.Errorf("%w: %s: %s: %w", ErrFull, at, doing, err)
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ended(ctx, at+": "+doing), err)
	}
	return fmt.Errorf("%w: %s: %s: %w", ErrUnavailable, at, doing, err)
}

func pause(ctx context.Context, d time.Duration) error {
	if !backoff.Wait(d, ctx.Done()) {
		return ended(ctx, "waiting to try again")
	}
	return nil
}

func (s *redisStore) setHealth(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	log := s.opts.Logger.With(slog.String("redis", s.client.Options().Addr))
	switch was := s.health; {
	case err == nil && was.Err != nil:
		log.Info("state can be reached", "away", time.Since(was.Since).Round(time.Millisecond))
		s.health.Since = time.Now()
	case err != nil && was.Err == nil:
		log.Error("state cannot be reached; serving continues with the state in memory", "error", err)
		s.health.Since = time.Now()
	}
	s.health.Err = err
	s.signalLocked()
}

// signalLocked wakes the goroutines that wait for life or health to change.
func (s *redisStore) signalLocked() {
	close(s.statusChanged)
	s.statusChanged = make(chan struct{})
}

func (s *redisStore) Health() Health {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.health
}

func (s *redisStore) Close() error {
	if !s.mirror.close() {
		return nil
	}
	s.cancel()
	err := s.client.Close()
	s.follower.Wait()
	s.mu.Lock()
	s.health = Health{Err: ErrClosed, Since: time.Now()} // not a fault, so not logged
	s.signalLocked()
	s.mu.Unlock()
	return err
}
