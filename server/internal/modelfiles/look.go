package modelfiles

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/shivad/shivad/server/config"
)

// A slot is what is known about one container.
type slot struct {
	found found     // of the last look
	gone  bool      // the last look has not found it
	stamp string    // of found
	since time.Time // of stamp
	other time.Time // since when stamp is not done

	done  string    // the stamp that was taken or tried last
	tried time.Time // when that began
	gap   time.Duration
	put   bool  // it is a guest of the fleet
	err   error // why what was tried last does not serve
	retry time.Time
	pause time.Duration

	// What serves.
	key, content, version string
	process               config.Process

	cancel context.CancelCauseFunc // of what is being taken or retired; nil: nothing
}

// A scan is what a look has found.
type scan struct {
	list     []found
	stamps   []string // of each of list
	unknown  []string // folders of which nothing is known
	dirs     []string
	troubles []string
	ignored  []string // in sentences
}

// scan looks at all files. Only one may be under way.
func (m *Manager) scan() (s scan) {
	m.mu.Lock()
	files, folders := m.files, m.folders
	m.mu.Unlock()
	m.listings.begin()
	for _, one := range files {
		s.list = append(s.list, fileOf(one))
		s.dirs = append(s.dirs, filepath.Dir(one.Path))
	}
	for _, one := range folders {
		list, untrusted, err := m.listings.scanFolder(one)
		if err != nil {
			s.unknown = append(s.unknown, one.Path)
			s.troubles = append(s.troubles, fmt.Sprintf("the models of a folder stay as they are, as it cannot be read: %v", err))
		}
		if untrusted != nil {
			s.ignored = append(s.ignored, fmt.Sprintf("%s: ignored, because reading them executes code: %s; "+
				"if you know where they come from, allow that by --trust or trust = true", one.Path, names(untrusted)))
		}
		s.list = append(s.list, list...)
	}
	for dir := range m.listings.seen {
		s.dirs = append(s.dirs, dir)
	}
	m.listings.end()
	for _, f := range s.list {
		s.stamps = append(s.stamps, f.stamp())
	}
	return s
}

// stamp identifies the state of a model's files and settings, without reading large files.
func (f *found) stamp() string {
	text := stampOf(f.files) + fmt.Sprintf("%q %q %+v", f.arguments(), f.version, f.process)
	if f.fault != nil {
		text += f.fault.Error()
	}
	return text
}

// never is when a server without model files and folders looks again.
const never = time.Duration(math.MaxInt64)

// merge compares what a look has found with what serves, begins what is to be done, and returns
// when to look again.
func (m *Manager) merge(s scan) (next time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, first := m.now(), m.looks == 0
	m.looks++
	before := slices.Concat(m.troubles, m.ignored)
	m.troubles, m.ignored = s.troubles, s.ignored
	here, unclear := map[string]string{}, map[string]bool{}
	for i, f := range s.list {
		switch other, taken := here[f.container]; {
		case m.reserved[f.container]:
			m.troubles = append(m.troubles,
				fmt.Sprintf("%s is not served: %q is the name of a [[container]]", f.path, f.container))
			continue
		case taken:
			m.troubles = append(m.troubles,
				fmt.Sprintf("%s is not served: %s has the same name, %q", f.path, other, f.container))
			continue
		}
		here[f.container] = f.path
		unclear[f.model] = unclear[f.model] || f.fault != nil // which versions there are
		m.see(f, s.stamps[i], now, first)
	}
	for _, why := range slices.Concat(m.troubles, m.ignored) {
		if !slices.Contains(before, why) {
			m.cfg.Log.Warn("not every model file is served", "why", why)
		}
	}
	if len(m.files)+len(m.folders)+len(m.slots) == 0 {
		return never // Configure wakes
	}
	next = lookEvery
	for name, one := range m.slots {
		_, there := here[name]
		unknown := unclear[one.found.model] || slices.Contains(s.unknown, one.found.root)
		if !there && !unknown && !one.gone {
			one.gone, one.since = true, now
		}
		next = min(next, m.act(name, one, now))
	}
	return next
}

// see records that a model was found.
func (m *Manager) see(f found, stamp string, now time.Time, first bool) {
	one := m.slots[f.container]
	if one == nil {
		one = &slot{since: now, other: now}
		m.slots[f.container] = one
		if first { // it was there before us
			one.since = now.Add(-settleTime)
		}
		if f.ignored != nil {
			m.cfg.Log.Info("keys of config.pbtxt have no meaning here", "model", f.model, "keys", f.ignored)
		}
	} else if one.stamp != stamp || one.gone {
		one.since = now
		if one.stamp == one.done {
			one.other = now
		}
	}
	one.found, one.stamp, one.gone = f, stamp, false
}

// act begins what is to be done about a model, and returns when to look at it again.
func (m *Manager) act(name string, one *slot, now time.Time) (next time.Duration) {
	settled := one.since.Add(settleTime).Sub(now)
	asked, hurry := m.hurried[one.found.model]
	if hurry {
		settled = 0
	}
	changed := one.stamp != one.done || one.gone
	switch {
	case changed && settled > 0:
		return settled
	case one.cancel != nil:
		if changed {
			one.cancel(errChanged)
		}
		return lookEvery
	case one.gone:
		m.retire(name, one)
		return lookEvery
	case changed:
		wait := one.tried.Add(one.gap).Sub(now)
		if wait > 0 && !hurry {
			return wait
		}
		if one.gap = min(restless, max(time.Second, 2*one.gap)); now.Sub(one.tried) > 2*restless {
			one.gap = 0
		}
	case one.err == nil || one.found.fault != nil:
		return lookEvery
	case hurry && one.tried.Before(asked) || now.After(one.retry): // what has failed may work now
	default:
		return lookEvery
	}
	one.done, one.tried = one.stamp, now
	if one.found.fault != nil {
		m.failed(name, one, one.found.fault)
		return lookEvery
	}
	m.take(name, one)
	return lookEvery
}

// failed records that what was tried does not serve; the caller holds mu.
func (m *Manager) failed(name string, one *slot, err error) {
	if one.err == nil || one.err.Error() != err.Error() {
		m.cfg.Log.Warn("a model file cannot be served", "model", one.found.model, "file", one.found.path, "error", err)
		one.pause = 0
		if one.put {
			m.counts.Kept++
		}
	}
	one.err = err
	one.pause = min(retryMax, max(retryMin, 2*one.pause))
	one.retry = m.now().Add(one.pause)
}
