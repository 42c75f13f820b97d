package containers

import (
	"cmp"
	"errors"
	"maps"
	"net"
	"slices"
	"time"
)

// Containers that connected but cannot be served as they are stay in the status for a while, with a
// remedy: their own logs do not show it, and their connections are short.

const (
	unservedFor  = 10 * time.Minute // since the last connection
	mostUnserved = 32               // entries; further ones are in the log only
)

// unservedKey is a machine and the generation that its containers seem to speak.
type unservedKey struct{ host, generation string }

// An mismatch error ends the session of a container that must be started or configured otherwise.
type mismatch struct {
	generation string // that it seems to speak
	text       string
}

func (u *mismatch) Error() string { return u.text }

var (
	errComesBack = &mismatch{"v1",
		"it sent an answer before it registered; if it speaks RPC v1, it registered with an earlier server process and must be restarted to register again"}
	errSilentV1 = &mismatch{"v1",
		"its ZeroMQ socket connected, but it sent no message; if it speaks RPC v1, it registered with an earlier server process and must be restarted to register again"}
	errV2 = &mismatch{"v2",
		"it speaks RPC v2 (registered without an RPC version), which needs an address of its own: set containers.listen_v2 (or listen_v2a, if it answers with floats) and connect it there; this one serves v3"}
	errMuteV2 = &mismatch{"v2",
		"it sent heartbeats as RPC v2 and v3 do, but did not answer the request of v3 to register; if it speaks v2, set containers.listen_v2 (or listen_v2a, if it answers with floats), connect it there, and restart it"}
)

// mismatch returns why a container that has not registered never will, as far as its messages
// show; nil if unknown.
func (s *session) mismatch(reason error) *mismatch {
	if u, ok := errors.AsType[*mismatch](reason); ok {
		return u
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return nil // it is no ZeroMQ socket
	}
	late := errors.Is(reason, errNotRegistered)
	switch _, beats := s.codec.(*v3); {
	case s.codec == nil && late:
		return errSilentV1
	case beats && s.beat3 && s.info.Model.Name == "":
		return errMuteV2 // some containers of v2 fall silent, others crash
	}
	return nil
}

// recordUnserved stores the status of a session that ended before it registered.
func (l *Listener) recordUnserved(i SessionInfo, u *mismatch) {
	key := unservedKey{hostOf(i.Remote), u.generation}
	i.State, i.RPC, i.Reason = StateUnserved, u.generation, u.text
	i.LastSeen = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expireLocked()
	if old, ok := l.unserved[key]; ok {
		i.Since = old.Since
	} else if len(l.unserved) >= mostUnserved {
		return
	}
	if l.unserved == nil {
		l.unserved = make(map[unservedKey]SessionInfo)
	}
	l.unserved[key] = i
}

// expireLocked drops entries that were not renewed for unservedFor.
func (l *Listener) expireLocked() {
	maps.DeleteFunc(l.unserved, func(_ unservedKey, i SessionInfo) bool { return time.Since(i.LastSeen) > unservedFor })
}

// clearUnserved drops the entries of a machine whose containers have registered.
func (l *Listener) clearUnserved(i SessionInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	host := hostOf(i.Remote)
	maps.DeleteFunc(l.unserved, func(k unservedKey, _ SessionInfo) bool {
		return k.host == host && i.RPC[:2] == k.generation
	})
}

// Unserved returns the containers that connected in the last ten minutes but cannot be served as
// they are, unless they have registered since. Their State is StateUnserved, and Reason says what
// to do.
func (l *Listener) Unserved() []SessionInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expireLocked()
	return slices.SortedFunc(maps.Values(l.unserved),
		func(a, b SessionInfo) int { return cmp.Compare(a.Number, b.Number) })
}

// StateUnserved is the state of containers that cannot be served as they are.
const StateUnserved = "unserved"

func hostOf(remote string) string {
	if host, _, err := net.SplitHostPort(remote); err == nil {
		return host
	}
	return remote
}
