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

// An unfit error ends the session of a container that must be started or configured otherwise.
type unfit struct {
	generation string // that it seems to speak
	text       string
}

func (u *unfit) Error() string { return u.text }

var (
	errComesBack = &unfit{"v1", "it answers before it registered; if it speaks RPC v1, it was connected before, and must be restarted to register again"}
	errSilentV1  = &unfit{"v1", "its ZeroMQ socket connected and it said nothing; if it speaks RPC v1, it registered with a server before this one, and must be restarted to register again"}
	errV2        = &unfit{"v2", "it speaks RPC v2 (registered without an RPC version), which needs an address of its own: set containers.listen_v2 (or listen_v2a, if it answers with floats) and connect it there; this one serves v3"}
	errMuteV2    = &unfit{"v2", "it beat as RPC v2 and v3 do, and did not register when it was asked in v3's words; if it speaks v2, set containers.listen_v2 (or listen_v2a, if it answers with floats), connect it there, and restart it"}
)

// unfitness returns why a container that has not registered never will, as far as its messages
// show; nil if unknown.
func (s *session) unfitness(reason error) *unfit {
	if u, ok := errors.AsType[*unfit](reason); ok {
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

// unserve stores the status of a session that ended before it registered.
func (l *Listener) unserve(i SessionInfo, u *unfit) {
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

// served drops the entries of a machine whose containers have registered.
func (l *Listener) served(i SessionInfo) {
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
	return slices.SortedFunc(maps.Values(l.unserved), func(a, b SessionInfo) int { return cmp.Compare(a.Number, b.Number) })
}

// StateUnserved is the state of containers that cannot be served as they are.
const StateUnserved = "unserved"

func hostOf(remote string) string {
	if host, _, err := net.SplitHostPort(remote); err == nil {
		return host
	}
	return remote
}
