package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/shivad/shivad/server/internal/wake"
)

// The buckets of a file. Times are milliseconds since 1970, uint64, big-endian.
var (
	bucketMeta    = []byte("shivad state")    // "format" → "1"
	bucketEntries = []byte("entries")         // key → record; its sequence is the last revision
	bucketApplied = []byte("applied")         // hash of key and id → time
	bucketByTime  = []byte("applied by time") // time and hash → nothing
)

const (
	fileFormat  = "1"
	lockTimeout = time.Second // while another process has the file
	maxGroup    = 64          // updates in one transaction
)

// file is a Store in a bbolt file. One goroutine writes: it applies all waiting updates in one
// transaction, so that they share one sync of the disk, and a single update does not wait for more.
type file struct {
	*mirror
	opts Options
	path string
	db   *bbolt.DB

	queue  chan *fileUpdate
	closed chan struct{}  // closed by Close
	writer sync.WaitGroup // run

	// Owned by run.
	ids int // number of remembered ids

	// Guarded by healthMu.
	healthMu sync.Mutex
	health   Health
}

// A fileUpdate is a call of Update or Write that the writer processes.
type fileUpdate struct {
	ctx     context.Context
	key, id string
	change  func([]byte) ([]byte, error)
	entries []Entry // of Write, which sets neither id nor change

	// Written by run before done is closed.
	done     chan struct{}
	entry    Entry
	err      error
	panicked any // what change panicked with
}

func openFile(path string, opts Options) (Store, error) {
	info, statErr := os.Stat(path)
	if statErr == nil && !info.Mode().IsRegular() {
		return nil, &OpenError{fmt.Errorf("state: file %s: %w", path, errIrregular), fileRemedy(path, errIrregular)}
	}
	s := &file{
		mirror: newMirror(nil), opts: opts, path: path,
		queue: make(chan *fileUpdate), closed: make(chan struct{}),
		health: Health{Since: time.Now()},
	}
	var f *os.File // bbolt keeps it and its lock when it panics
	err := s.guard(func() (err error) {
		s.db, err = bbolt.Open(path, 0o600, &bbolt.Options{
			Timeout: lockTimeout, FreelistType: bbolt.FreelistMapType, NoStatistics: true,
			OpenFile: func(name string, flag int, perm os.FileMode) (_ *os.File, err error) {
				f, err = os.OpenFile(name, flag, perm)
				return f, err
			},
		})
		return err
	})
	if err == nil {
		err = s.guard(s.load)
	}
	if err == nil && errors.Is(statErr, os.ErrNotExist) {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		if s.db != nil {
			_ = s.guard(s.db.Close)
		}
		if f != nil {
			// A mapping left behind would hold the lock, too.
			_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
			_ = f.Close()
		}
		if errors.Is(statErr, os.ErrNotExist) && f != nil && !errors.Is(err, bbolterrors.ErrTimeout) {
			// Half of a new file would be taken for a damaged one at the next start.
			_ = os.Remove(path)
		}
		return nil, &OpenError{fmt.Errorf("state: file %s: %w", path, fileError(err)), fileRemedy(path, err)}
	}
	s.writer.Go(s.run)
	return s, nil
}

// load creates the buckets of a new file, or reads those of an old one into the mirror.
func (s *file) load() error {
	err := s.db.Update(func(tx *bbolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		if meta == nil {
			if first, _ := tx.Cursor().First(); first != nil {
				return fmt.Errorf("%w: a bbolt file of something else, it has a bucket %q", ErrCorrupt, first)
			}
			for _, b := range [][]byte{bucketEntries, bucketApplied, bucketByTime} {
				if _, err := tx.CreateBucket(b); err != nil {
					return err
				}
			}
			meta, err := tx.CreateBucket(bucketMeta)
			if err != nil {
				return err
			}
			return meta.Put([]byte("format"), []byte(fileFormat))
		}
		if format := string(meta.Get([]byte("format"))); format != fileFormat {
			return otherFormat(format, fileFormat)
		}
		for _, b := range [][]byte{bucketEntries, bucketApplied, bucketByTime} {
			if tx.Bucket(b) == nil {
				return fmt.Errorf("%w: no bucket %q", ErrCorrupt, b)
			}
		}
		return errReadOnly
	})
	if err != nil && err != errReadOnly {
		return err
	}
	return s.db.View(func(tx *bbolt.Tx) error {
		err := tx.Bucket(bucketEntries).ForEach(func(k, v []byte) error {
			e, err := decodeRecord(string(k), v)
			s.set(e)
			return err
		})
		if err != nil {
			return err
		}
		return tx.Bucket(bucketByTime).ForEach(func(_, _ []byte) error { s.ids++; return nil })
	})
}

// errInUse: another process holds the lock of the file.
var errInUse = errors.New("in use by another process")

// errIrregular: the path is a directory, a pipe or a device.
var errIrregular = errors.New("not a regular file")

// errReadOnly makes bbolt roll back a transaction that changed nothing.
var errReadOnly = errors.New("nothing to write")

func (s *file) Update(ctx context.Context, key, id string, change func([]byte) ([]byte, error)) (Entry, error) {
	if err := checkKey(key); err != nil {
		return Entry{}, err
	}
	ctx, cancel := withCallTimeout(ctx)
	defer cancel()
	u := &fileUpdate{ctx: ctx, key: key, id: id, change: change, done: make(chan struct{})}
	err := s.do(u)
	return u.entry, err
}

func (s *file) Write(ctx context.Context, entries []Entry) error {
	if err := Check(entries); err != nil || len(entries) == 0 {
		return err
	}
	ctx, cancel := withCallTimeout(ctx)
	defer cancel()
	return s.do(&fileUpdate{ctx: ctx, key: entries[0].Key, entries: entries, done: make(chan struct{})})
}

// do waits for an update. Until it is done, the writer owns its fields.
func (s *file) do(u *fileUpdate) error {
	select {
	case s.queue <- u:
	case <-u.ctx.Done():
		return ended(u.ctx, "waiting to change "+u.key)
	case <-s.closed:
		return ErrClosed
	}
	select {
	case <-u.done:
	case <-u.ctx.Done():
		return ended(u.ctx, "writing "+u.key)
	}
	if u.panicked != nil {
		panic(u.panicked)
	}
	return u.err
}

// run writes what is in the queue, until Close.
func (s *file) run() {
	for u := range wake.Each(s.queue, s.closed) {
		s.write(s.gather(u))
	}
}

// gather takes all waiting updates, without blocking.
func (s *file) gather(first *fileUpdate) []*fileUpdate {
	group := []*fileUpdate{first}
	for len(group) < maxGroup {
		select {
		case u := <-s.queue:
			group = append(group, u)
		default:
			return group
		}
	}
	return group
}

// write applies a group of updates in one transaction, and answers them.
func (s *file) write(group []*fileUpdate) {
	w := fileWrite{lifetime: s.opts.IDLifetime, maxIDs: s.opts.MaxIDs, now: s.opts.Now(), ids: s.ids}
	err := s.guard(func() error {
		return s.db.Update(func(tx *bbolt.Tx) error { return w.apply(tx, group) })
	})
	switch {
	case err == nil:
		s.ids = w.ids
		s.set(w.changed...)
		s.setHealth(nil)
	case err != errReadOnly:
		// Nothing of the group was written. The result of one update may rest on another, so all
		// fail.
		err = fmt.Errorf("state: file %s: %w", s.path, fileError(err))
		for _, u := range group {
			u.entry, u.err = Entry{}, err
		}
		s.setHealth(err)
	}
	for _, u := range group {
		close(u.done)
	}
}

func (s *file) setHealth(err error) {
	s.healthMu.Lock()
	defer s.healthMu.Unlock()
	if (err == nil) != (s.health.Err == nil) {
		s.health.Since = time.Now()
		if err != nil {
			s.opts.Logger.Error("state cannot be written", "file", s.path, "error", err)
		} else {
			s.opts.Logger.Info("state can be written again", "file", s.path)
		}
	}
	s.health.Err = err
}

func (s *file) Health() Health {
	s.healthMu.Lock()
	defer s.healthMu.Unlock()
	return s.health
}

func (s *file) Close() error {
	if !s.mirror.close() {
		return nil
	}
	close(s.closed)
	s.writer.Wait()
	s.healthMu.Lock()
	s.health = Health{Err: ErrClosed, Since: time.Now()} // not a fault, so not logged
	s.healthMu.Unlock()
	return s.guard(s.db.Close)
}

// guard calls f, and turns bbolt's reactions to a damaged file into errors: it panics, or reads
// beyond the end of its mapping.
func (s *file) guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrCorrupt, p)
		}
	}()
	return f()
}

// fileError converts the errors of bbolt and of the system to those of this package.
func fileError(err error) error {
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return errInUse
	case errors.Is(err, bbolterrors.ErrInvalid), errors.Is(err, bbolterrors.ErrVersionMismatch),
		errors.Is(err, bbolterrors.ErrChecksum):
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	for _, full := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
		// When bbolt fails to grow its file, it keeps only the text of the error.
		if errors.Is(err, full) || strings.HasSuffix(err.Error(), full.Error()) {
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
	}
	return err
}

// syncDir makes the directory entry of a new file survive a power failure.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
