package state

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/shivad/shivad/shiva/backoff"
)

const (
	pollEvery   = 250 * time.Millisecond // how soon a flush is noticed
	missedAfter = time.Second            // after which a published message counts as lost
	pollTimeout = 2 * time.Second        // after which a silent Redis counts as unreachable
	pushEntries = 500                    // in one call of the restore script
	pushBytes   = 1 << 20
)

// attempts is the pace of attempts to connect. Most is well below Options.Settle, so that no server
// is late.
var attempts = backoff.Backoff{First: 50 * time.Millisecond, Most: 500 * time.Millisecond}

// errMissed ends a session that has missed the notification of a change.
var errMissed = errors.New("state: a notification from Redis did not come")

// follow keeps the mirror in sync with Redis, until Close: it reads everything, then applies
// notifications, and begins again when the connection breaks.
func (s *redisStore) follow() {
	var first sync.Once
	tried := func() { first.Do(func() { close(s.tried) }) }
	for failures := 0; ; {
		err := s.session(func() {
			failures = 0
			s.setHealth(nil)
			tried()
		})
		if s.ctx.Err() != nil {
			return
		}
		if err == errMissed {
			s.opts.Logger.Warn("a notification from Redis did not come; reading everything")
		} else {
			s.setHealth(err)
			tried()
		}
		failures++
		if !backoff.Wait(attempts.After(failures), s.ctx.Done()) {
			return
		}
	}
}

// session subscribes, reads everything, calls inSync, and applies changes until something breaks.
func (s *redisStore) session(inSync func()) error {
	ctx, cancel := context.WithCancel(s.ctx)
	// Subscribe sends a greeting, to which the server may not answer: both share one deadline with
	// the confirmation.
	confirm, done := context.WithTimeout(ctx, pollTimeout)
	defer done()
	subscription := s.client.Subscribe(confirm, s.channel)
	var receiver sync.WaitGroup
	defer receiver.Wait()
	defer subscription.Close()
	defer cancel()

	if _, err := subscription.Receive(confirm); err != nil {
		return s.broken(confirm, "subscribing", err)
	}
	messages, broken := make(chan string), make(chan error, 1)
	receiver.Go(func() {
		for {
			got, err := subscription.Receive(ctx)
			if err != nil {
				broken <- err
				return
			}
			if m, ok := got.(*redis.Message); ok {
				select {
				case messages <- m.Payload:
				case <-ctx.Done():
					return
				}
			}
		}
	})
	if err := s.readAll(ctx); err != nil {
		return err
	}
	inSync()

	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	var due uint64 // revision that must have been seen by dueAt plus missedAfter
	var dueAt time.Time
	for {
		var err error
		select {
		case m := <-messages:
			err = s.notified(ctx, m)
		case <-s.reread:
			err = s.readAll(ctx)
		case <-poll.C:
			var there uint64
			there, err = s.poll(ctx)
			if s.seen >= due {
				due, dueAt = there, time.Now()
			} else if time.Since(dueAt) > missedAfter {
				return errMissed
			}
		case err = <-broken:
			err = s.broken(ctx, "waiting for changes", err)
		case <-ctx.Done():
			return ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

// notified applies a message.
func (s *redisStore) notified(ctx context.Context, message string) error {
	c, err := decodeChange([]byte(message))
	if err != nil {
		return err
	}
	if c.reread || c.entry.Revision > s.seen+1 {
		return s.readAll(ctx)
	}
	if c.entry.Revision <= s.seen {
		return nil
	}
	s.seen = c.entry.Revision
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(c.entry)
	if c.hasID {
		s.applied.add(c.id, c.time)
	}
	return nil
}

// poll checks whether Redis is still in the life that was read, and returns the revision there.
func (s *redisStore) poll(ctx context.Context) (revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	m, err := s.client.HMGet(ctx, s.keys[0], "life", "revision", "format").Result()
	if err != nil {
		return 0, s.broken(ctx, "looking for changes", err)
	}
	if format, ok := m[2].(string); ok && format != redisFormat {
		return 0, s.broken(ctx, "looking for changes", otherFormat(format, redisFormat))
	}
	s.mu.Lock()
	same := m[0] == s.life
	s.mu.Unlock()
	if !same {
		return 0, s.readAll(ctx)
	}
	text, _ := m[1].(string)
	return number([]byte(text))
}

// stored is everything in a namespace, at one moment.
type stored struct {
	snapshot
	life    string
	applied map[idHash]uint64
}

// readAll makes the mirror equal to Redis. If Redis has begun another life than the mirror's, it
// first restores what only this server knows.
func (s *redisStore) readAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var restored string // the life that was sent all of this server's ids: it may keep fewer
	for {
		life, err := beginScript.Run(ctx, s.client, s.keys, s.channel, s.opts.Settle.Milliseconds()).Text()
		if err != nil {
			return s.broken(ctx, "preparing to read", err)
		}
		all, err := s.readStored(ctx)
		if err != nil {
			return s.broken(ctx, "reading everything", err)
		}
		if all.life != life {
			continue
		}
		if entries, ids, ok := s.adopt(all, restored); !ok {
			s.opts.Logger.Warn("Redis has lost data that this server has; restoring it",
				"entries", len(entries), "ids", len(ids))
			if err := s.restore(ctx, life, entries, ids); err != nil {
				return s.broken(ctx, "restoring lost data", err)
			}
			restored = life
			continue
		}
		s.seen = all.revision
		return nil
	}
}

// adopt makes the mirror equal to Redis. If not ok, Redis is in another life, and entries and ids
// have to be restored first. ids is empty if that life was sent them already.
func (s *redisStore) adopt(all stored, restored string) (entries []Entry, ids map[idHash]uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all.life != s.life || s.late {
		// From here on the mirror belongs to no life: an update that adds to it sets late, and the
		// comparison is repeated.
		idsToo := s.late || all.life != restored
		s.life, s.late = "", false
		ids = map[idHash]uint64{}
		for id, at := range s.applied.at {
			if _, there := all.applied[id]; idsToo && !there {
				ids[id] = at
			}
		}
		if entries = s.newer(all.snapshot); len(entries)+len(ids) > 0 {
			return entries, ids, false
		}
	}
	s.mirror.adopt(all.snapshot)
	for id, at := range all.applied {
		s.applied.add(id, at)
	}
	s.life = all.life
	s.signalLocked()
	return nil, nil, true
}

func (s *redisStore) readStored(ctx context.Context) (stored, error) {
	var meta, entries *redis.MapStringStringCmd
	var deleted, applied *redis.ZSliceCmd
	_, err := s.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		meta, entries = p.HGetAll(ctx, s.keys[0]), p.HGetAll(ctx, s.keys[1])
		deleted, applied = p.ZRangeWithScores(ctx, s.keys[2], 0, -1), p.ZRangeWithScores(ctx, s.keys[3], 0, -1)
		return nil
	})
	if err != nil {
		return stored{}, err
	}
	if format, ok := meta.Val()["format"]; ok && format != redisFormat {
		return stored{}, otherFormat(format, redisFormat)
	}
	all := stored{
		snapshot: snapshot{entries: map[string]Entry{}, deleted: map[string]uint64{}},
		life:     meta.Val()["life"],
		applied:  map[idHash]uint64{},
	}
	if all.revision, err = number([]byte(meta.Val()["revision"])); err != nil {
		return stored{}, fmt.Errorf("%w: revision: %w", ErrCorrupt, err)
	}
	if floor, ok := meta.Val()["floor"]; ok {
		if all.floor, err = number([]byte(floor)); err != nil {
			return stored{}, fmt.Errorf("%w: floor: %w", ErrCorrupt, err)
		}
	}
	for key, text := range entries.Val() {
		if all.entries[key], err = decodeStored(key, text); err != nil {
			return stored{}, err
		}
	}
	for _, z := range deleted.Val() {
		all.deleted[z.Member.(string)] = uint64(z.Score)
	}
	for _, z := range applied.Val() {
		if id := z.Member.(string); len(id) == len(idHash{}) {
			all.applied[idHash([]byte(id))] = uint64(z.Score)
		}
	}
	return all, nil
}

// restore sends what Redis has lost, in pieces small enough that it keeps answering other clients.
func (s *redisStore) restore(ctx context.Context, life string, entries []Entry, ids map[idHash]uint64) error {
	var args []any
	var bytes int
	var highest uint64
	push := func(channel string) error {
		head := []any{channel, life, s.opts.Settle.Milliseconds(), maxGone, s.opts.IDLifetime.Milliseconds(),
			s.opts.MaxIDs, highest, s.floor()}
		err := restoreScript.Run(ctx, s.client, s.keys, append(head, args...)...).Err()
		args, bytes = nil, 0
		return err
	}
	add := func(op, key string, n uint64, value []byte) error {
		args = append(args, op, key, strconv.FormatUint(n, 10), value)
		if bytes += len(key) + len(value); bytes < pushBytes && len(args) < 4*pushEntries {
			return nil
		}
		return push("")
	}
	for _, e := range entries {
		highest = max(highest, e.Revision)
		if err := add(operation(e.Value), e.Key, e.Revision, e.Value); err != nil {
			return err
		}
	}
	for id, at := range ids {
		if err := add("id", string(id[:]), at, nil); err != nil {
			return err
		}
	}
	return push(s.channel) // makes the other servers read it
}
