// Package subset chooses with which of the servers behind a name a container has sessions, where
// there are too many for all of them.
//
// The order is by rendezvous: a hash of the container's key and the server's address. So each
// container has its own servers, a server that comes takes the place of one other in few
// containers, and one that goes is replaced in those that had it. Alone that leaves the servers of
// a fleet uneven, as throwing dice would: of 500 servers that 100 containers choose 16 of, 4 %
// would have no container, and the fullest 10, where 3.2 is the mean. Containers do not know one
// another, but servers say how many sessions of the model they have. So from time to time a
// container tries the next server of its order, too, and leaves the one with most sessions of all:
// it goes to the end of the order, as does the server that was tried if it has not fewer.
package subset

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"time"
)

// Default is how many servers a container has sessions with where nothing says otherwise.
const Default = 16

// The time between two tries. It doubles while they are in vain.
const (
	firstTry = 5 * time.Second
	lastTry  = 2 * time.Minute
)

// A Choice is the servers of one container: as many as it has been made for, the first of an order
// that is its own. It has no clock and no goroutine, and one goroutine uses it at a time.
type Choice struct {
	key    string // the container's, different from all others
	size   int
	order  []string
	trying string // "": none is tried

	wait time.Duration // from one try to the next
	next time.Time     // zero: there is nothing to try
}

// New returns a choice of size servers, at least one, for the container with a key that no other
// one has.
func New(key string, size int) *Choice { return &Choice{key: key, size: size} }

// Size is how many servers are chosen, if there are as many.
func (s *Choice) Size() int { return s.size }

// Servers is how many servers there are to choose from.
func (s *Choice) Servers() int { return len(s.order) }

// Trying is the server that is tried; "": none is.
func (s *Choice) Trying() string { return s.trying }

// rendezvous is the order of servers for a key: by the first 8 bytes of the SHA-256 of the key, a
// zero byte and the address, the largest number first.
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

// List says which servers there are. Those of before keep their places; a new one gets the place
// that it has by rendezvous if that is among the first, and else the last.
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

// Chosen are the servers to have sessions with: the first that are not away, and those before them
// that are, since they may return, at most twice as many; and the one that is tried.
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

// Try begins to try the next server that is not chosen, if it is time.
func (s *Choice) Try(chosen []string, now time.Time) {
	if s.trying != "" || s.next.IsZero() || now.Before(s.next) {
		return
	}
	if i := slices.IndexFunc(s.order, func(a string) bool { return !slices.Contains(chosen, a) }); i >= 0 {
		s.trying = s.order[i]
	}
}

// Judge ends a try. sessions says how many sessions of the model a server has, this container's
// among them; 0: it is not known. Of the chosen ones that with most is left: not the one that is
// tried, if both have as many.
func (s *Choice) Judge(chosen []string, sessions func(server string) int, now time.Time) {
	left := s.trying
	if most := sessions(left); most > 0 {
		for _, a := range chosen {
			// One that is listed no more is left anyway, and may still have sessions.
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
