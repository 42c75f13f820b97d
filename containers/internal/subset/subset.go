// Package subset chooses the servers with which a container has sessions, where a name has too many
// servers for all of them.
//
// The order is by rendezvous: a hash of the container's key and the server's address. So each
// container has its own servers, a new server takes the place of another one in few containers, and
// a removed one is replaced only in the containers that had it. That alone leaves the servers of a
// fleet uneven, like throws of dice: of 500 servers of which 100 containers choose 16 each, 4 %
// would have no container, and the fullest 10, where the mean is 3.2. Containers do not know one
// another, but servers say how many sessions of the model they have. So from time to time a
// container also tries the next server of its order, and leaves the server with the most sessions
// of all: that one goes to the end of the order. So does the tried server, unless it has fewer.
package subset

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"time"
)

// Default is the number of servers with which a container has sessions where no setting says
// otherwise.
const Default = 16

// The time between two trials. It doubles while they change nothing.
const (
	firstTry = 5 * time.Second
	lastTry  = 2 * time.Minute
)

// A Choice holds the servers of one container: the first of an order that is its own, as many as
// its size. It has no clock and no goroutine, and only one goroutine at a time may use it.
type Choice struct {
	key    string // the container's, different from all others
	size   int
	order  []string
	trying string // "": none is tried

	wait time.Duration // from one trial to the next
	next time.Time     // zero: there is nothing to try
}

// New returns a choice of size servers, at least one, for the container with a key that no other
// container has.
func New(key string, size int) *Choice { return &Choice{key: key, size: size} }

// Size returns how many servers are chosen, if there are as many.
func (s *Choice) Size() int { return s.size }

// Servers returns how many servers there are to choose from.
func (s *Choice) Servers() int { return len(s.order) }

// Trying returns the server under trial; "": none.
func (s *Choice) Trying() string { return s.trying }

// rendezvous returns the order of servers for a key: by the first 8 bytes of the SHA-256 of the
// key, a zero byte and the address, the largest number first.
func rendezvous(key string, servers []string) []string {
	score := make(map[string]uint64, len(servers))
	for _, s := range servers {
		sum := sha256.Sum256([]byte(key + "\x00" + s))
		score[s] = binary.BigEndian.Uint64(sum[:])
	}
	order := slices.Clone(servers)
	slices.SortFunc(order, func(a, b string) int { return cmp.Or(cmp.Compare(score[b], score[a]), cmp.Compare(a, b)) })
	return slices.Compact(order)
}

// List sets the servers to choose from. Known ones keep their places; a new one gets its place by
// rendezvous if that is among the first, or else the last place.
func (s *Choice) List(servers []string, now time.Time) {
	known, listed := set(s.order), set(servers)
	if maps.Equal(known, listed) {
		return
	}
	first := slices.Clone(s.order[:min(s.size, len(s.order))])
	s.order = slices.DeleteFunc(s.order, func(a string) bool { return !listed[a] })
	for i, a := range rendezvous(s.key, servers) {
		if known[a] {
			continue
		}
		if i < s.size {
			s.order = slices.Insert(s.order, min(i, len(s.order)), a)
		} else {
			s.order = append(s.order, a)
		}
	}
	if !listed[s.trying] {
		s.trying = ""
	}
	if changed := !slices.Equal(first, s.order[:min(s.size, len(s.order))]); changed {
		s.wait = firstTry
		s.schedule(now)
	} else if s.next.IsZero() || len(s.order) <= s.size {
		s.schedule(now)
	}
}

func set(list []string) map[string]bool {
	m := make(map[string]bool, len(list))
	for _, a := range list {
		m[a] = true
	}
	return m
}

func (s *Choice) schedule(now time.Time) {
	if s.next = now.Add(s.wait); len(s.order) <= s.size {
		s.next = time.Time{}
	}
}

// Chosen returns the servers to have sessions with: the first ones that are not away, those before
// them that are, since they may return, at most twice the size in all; and the one under trial.
func (s *Choice) Chosen(away func(server string) bool) (list []string) {
	here := 0
	for _, a := range s.order {
		if here == s.size || len(list) == 2*s.size {
			break
		}
		if list = append(list, a); !away(a) {
			here++
		}
	}
	if s.trying != "" && !slices.Contains(list, s.trying) {
		list = append(list, s.trying)
	}
	return list
}

// Try starts the trial of the next server that is not chosen, if it is time.
func (s *Choice) Try(chosen []string, now time.Time) {
	if s.trying != "" || s.next.IsZero() || now.Before(s.next) {
		return
	}
	if i := slices.IndexFunc(s.order, func(a string) bool { return !slices.Contains(chosen, a) }); i >= 0 {
		s.trying = s.order[i]
	}
}

// Judge ends a trial. sessions returns how many sessions of the model a server has, including this
// container's; 0: unknown. The container leaves the server with the most sessions, chosen or tried;
// the tried one, if none has more.
func (s *Choice) Judge(chosen []string, sessions func(server string) int, now time.Time) {
	left := s.trying
	if most := sessions(left); most > 0 {
		for _, a := range chosen {
			// A server that is no longer listed is left anyway, and may still have sessions.
			if n := sessions(a); n > most && slices.Contains(s.order, a) {
				left, most = a, n
			}
		}
	}
	if s.wait = min(2*s.wait, lastTry); left != s.trying {
		s.wait = firstTry
	}
	i := slices.Index(s.order, left)
	s.order = append(slices.Delete(s.order, i, i+1), left)
	s.trying = ""
	s.schedule(now)
}
