package latest

import (
	"container/heap"
	"slices"
	"strings"
)

// A which is what a question tells of the streams that it may mean. A stream is found under each
// which that may mean it, so that a question costs what it finds: those of others, whose number
// nothing that the asker does bounds, are not looked at.
type which struct {
	identity string
	all      bool   // of all identities
	stream   string // "": any
	user     string // "": any
	own      bool   // of client alone
	client   string
}

// A group is the streams that one which may mean, and the polls that ask for it.
type group struct {
	sources []*source
	strays  []*Poll // wait for a stream that is not known yet
	settled []*Poll // wait for one of those known
}

// A position is where a stream is in a group.
type position struct {
	group *group
	at    int
}

// which is what a question tells.
func (n *Name) which(q *Question) which {
	w := which{identity: q.Identity, all: q.Any || n.settings.Shared, stream: q.Stream, user: q.User}
	if w.all {
		w.identity = ""
	}
	return w
}

// mostWhich is how many of them may mean a stream.
const mostWhich = 10

// means lists what may mean a stream, always in the same order. What tells the client is for
// questions that may mean several streams of a name, of which the asker's own is meant.
func (src *Source) means(list []which) []which {
	for _, w := range [...]which{{identity: src.Identity}, {all: true}} {
		list = w.andUser(list, src.User)
		if src.Stream != "" {
			w.stream = src.Stream
			list = w.andUser(list, src.User)
			w.own, w.client = true, src.Client
			list = append(list, w)
		}
	}
	return list
}

func (w which) andUser(list []which, user string) []which {
	list = append(list, w)
	if user != "" {
		w.user = user
		list = append(list, w)
	}
	return list
}

// group returns the group of w, a new one if there is none.
func (n *Name) group(w which) *group {
	g := n.groups[w]
	if g == nil {
		g = new(group)
		n.groups[w] = g
	}
	return g
}

// asked returns the group of a question, which may outlive the question and its strings.
func (n *Name) asked(q *Question) *group {
	w := n.which(q)
	if g := n.groups[w]; g != nil {
		return g
	}
	w.identity, w.stream, w.user = strings.Clone(w.identity), strings.Clone(w.stream), strings.Clone(w.user)
	return n.group(w)
}

// tidy forgets a group without streams and polls.
func (n *Name) tidy(w which, g *group) {
	if len(g.sources)+len(g.strays)+len(g.settled) == 0 {
		delete(n.groups, w)
	}
}

// enter makes a stream known to its groups.
func (n *Name) enter(src *source) {
	var buf [mostWhich]which
	list := src.means(buf[:0])
	src.places = make([]position, len(list))
	for i, w := range list {
		g := n.group(w)
		src.places[i] = position{g, len(g.sources)}
		g.sources = append(g.sources, src)
	}
}

// remove is the opposite of enter. Polls that wait for the stream wait for another one.
func (n *Name) remove(src *source) {
	polls := slices.Clone(src.waiters)
	for _, p := range polls {
		p.waitFor(nil)
	}
	var buf [mostWhich]which
	for i, w := range src.means(buf[:0]) {
		g, at := src.places[i].group, src.places[i].at
		last := len(g.sources) - 1
		moved := g.sources[last]
		for i := range moved.places {
			if moved.places[i].group == g {
				moved.places[i].at = at
			}
		}
		g.sources[at], g.sources[last] = moved, nil
		g.sources = g.sources[:last]
		n.tidy(w, g)
	}
	src.places = nil
	for _, p := range polls {
		n.decide(p)
	}
}

// decide has p wait for the stream that it means now.
func (n *Name) decide(p *Poll) {
	if src, err := n.find(&p.Question); err != nil {
		n.store.tell(p, nil, err)
	} else {
		p.waitFor(src)
	}
}

// polls returns the polls that wait.
func (n *Name) polls() []*Poll {
	list := make([]*Poll, 0, n.waiting)
	for _, g := range n.groups {
		list = append(append(list, g.strays...), g.settled...)
	}
	return list
}

// like returns the polls of g that wait for a stream that is known, or not.
func (g *group) like(known bool) *[]*Poll {
	if known {
		return &g.settled
	}
	return &g.strays
}

// enter has p wait in g for src; nil: for a stream that is not known.
func (p *Poll) enter(g *group, src *source) {
	list := g.like(src != nil)
	p.group, p.source, p.at = g, src, len(*list)
	*list = append(*list, p)
	if src != nil {
		heap.Push(&src.waiters, p)
	}
}

// remove is the opposite of enter.
func (p *Poll) remove() {
	list := p.group.like(p.source != nil)
	last := len(*list) - 1
	moved := (*list)[last]
	(*list)[p.at], moved.at = moved, p.at
	(*list)[last] = nil
	*list = (*list)[:last]
	if p.source != nil {
		heap.Remove(&p.source.waiters, p.nth)
	}
}

// waitFor changes the stream that p waits for.
func (p *Poll) waitFor(src *source) {
	if src != p.source {
		p.remove()
		p.enter(p.group, src)
	}
}

// waiters are the polls that wait for a stream, as a heap: those that have seen the oldest frame
// come first, and before them those that have seen none. So a frame is compared with those that it
// may concern, and not with those that wait for a later one.
type waiters []*Poll

func (w waiters) Len() int           { return len(w) }
func (w waiters) Less(i, j int) bool { return w[i].After < w[j].After }
func (w waiters) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].nth, w[j].nth = i, j
}

func (w *waiters) Push(p any) {
	p.(*Poll).nth = len(*w)
	*w = append(*w, p.(*Poll))
}

func (w *waiters) Pop() any {
	last := len(*w) - 1
	p := (*w)[last]
	(*w)[last] = nil
	*w = (*w)[:last]
	return p
}

// appendFrom appends the poll at i, and those below it in the heap, that a frame may concern. If it
// concerns one, it also concerns all that come before that one.
func (w waiters) appendFrom(i int, list []*Poll, concerns func(*Poll) bool) []*Poll {
	if i < len(w) && concerns(w[i]) {
		list = append(list, w[i])
		list = w.appendFrom(2*i+1, list, concerns)
		list = w.appendFrom(2*i+2, list, concerns)
	}
	return list
}
