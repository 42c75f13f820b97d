package state

import (
	"encoding/binary"
	"slices"
	"time"

	"go.etcd.io/bbolt"
)

// A fileWrite is one transaction that applies a group of updates.
type fileWrite struct {
	lifetime time.Duration // of ids
	maxIDs   int
	now      time.Time

	ids     int     // number of remembered ids
	changed []Entry // for the mirror, once the transaction is committed
}

// apply applies all updates. If one of them is refused, its err says why; a returned error undoes
// all of them.
func (w *fileWrite) apply(tx *bbolt.Tx, group []*fileUpdate) error {
	for _, u := range group {
		if err := w.update(tx, u); err != nil {
			return err
		}
	}
	if len(w.changed) == 0 {
		return errReadOnly
	}
	return w.forget(tx)
}

func (w *fileWrite) update(tx *bbolt.Tx, u *fileUpdate) error {
	if u.ctx.Err() != nil {
		u.err = ended(u.ctx, "waiting to change "+u.key)
		return nil
	}
	entries := tx.Bucket(bucketEntries)
	for _, e := range u.entries {
		if _, err := w.put(entries, e.Key, e.Value); err != nil {
			return err
		}
	}
	if u.entries != nil {
		return nil
	}
	old := Entry{Key: u.key}
	if b := entries.Get([]byte(u.key)); b != nil {
		var err error
		if old, err = decodeRecord(u.key, b); err != nil {
			return err
		}
	}
	hash := hashID(u.key, u.id)
	if u.id != "" && w.applied(tx, hash) {
		u.entry, u.err = old, ErrApplied
		return nil
	}
	value := u.call(old.Value)
	if u.err != nil || u.panicked != nil {
		return nil
	}
	e, err := w.put(entries, u.key, value)
	if err == nil && u.id != "" {
		err = w.remember(tx, hash)
	}
	u.entry = e.seen()
	return err
}

// put sets the value of a key, or deletes the key if value is nil.
func (w *fileWrite) put(entries *bbolt.Bucket, key string, value []byte) (Entry, error) {
	revision, err := entries.NextSequence()
	if err != nil {
		return Entry{}, err
	}
	e := Entry{Key: key, Value: value, Revision: revision}
	if value == nil {
		err = entries.Delete([]byte(key))
	} else {
		err = entries.Put([]byte(key), appendRecord(nil, e))
	}
	w.changed = append(w.changed, e)
	return e, err
}

// call computes the new value with the caller's function. That runs on the store's goroutine, so a
// panic is passed back to the caller.
func (u *fileUpdate) call(old []byte) (value []byte) {
	defer func() { u.panicked = recover() }()
	if value, u.err = u.change(old); u.err == nil {
		u.err = checkValue(u.key, value)
	}
	return value
}

func (w *fileWrite) expired(at []byte) bool {
	return w.now.UnixMilli()-int64(binary.BigEndian.Uint64(at)) >= w.lifetime.Milliseconds()
}

func (w *fileWrite) applied(tx *bbolt.Tx, hash idHash) bool {
	at := tx.Bucket(bucketApplied).Get(hash[:])
	return len(at) == 8 && !w.expired(at)
}

// remember stores the id of an update, again if it had expired.
func (w *fileWrite) remember(tx *bbolt.Tx, hash idHash) error {
	applied, byTime := tx.Bucket(bucketApplied), tx.Bucket(bucketByTime)
	if before := applied.Get(hash[:]); before == nil {
		w.ids++
	} else if err := byTime.Delete(slices.Concat(before, hash[:])); err != nil {
		return err
	}
	at := binary.BigEndian.AppendUint64(nil, uint64(w.now.UnixMilli()))
	if err := applied.Put(hash[:], at); err != nil {
		return err
	}
	return byTime.Put(slices.Concat(at, hash[:]), nil)
}

// forget drops the ids that are too old or too many, up to a number per transaction: more than a
// transaction adds.
func (w *fileWrite) forget(tx *bbolt.Tx) error {
	applied := tx.Bucket(bucketApplied)
	oldest := tx.Bucket(bucketByTime).Cursor()
	for range 2 * maxGroup {
		k, _ := oldest.First()
		if len(k) != 8+len(idHash{}) || (w.ids <= w.maxIDs && !w.expired(k[:8])) {
			return nil
		}
		if err := applied.Delete(k[8:]); err != nil {
			return err
		}
		if err := oldest.Delete(); err != nil {
			return err
		}
		w.ids--
	}
	return nil
}
