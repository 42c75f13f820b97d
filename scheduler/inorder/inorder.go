// Package inorder delivers the answers of a stream in the order of its requests, although they
// become complete in any order: one rule for the frames of a model and for those of an application,
// whose models each keep their own order.
//
//   - An error leaves at once.
//   - An answer with outputs is held until every older request has left.
//   - The answers that leave at a time are those that one goroutine delivers, one after the other.
//     If the next one were delivered before the owner of the one before has returned, another
//     goroutine could overtake this one.
//   - When more answers are held than may wait, the requests in front of them are overdue, and the
//     caller supersedes them: otherwise one slow request would stall the stream.
//
// The package has no lock, no clock, and calls nobody.
package inorder

// A Line is the unanswered requests of one stream. The zero Line is empty. The caller guards it.
type Line[T any] struct {
	Oldest, Newest *Node[T]
	Keep           int // how many answers may be held; 0: any number
	Held           int // answers that are held
	Leaving        int // answers being delivered, before which no other answer may leave
}

// A Node is a request in a Line. It is part of what the caller knows of the request.
type Node[T any] struct {
	Of           T // the request
	Older, Newer *Node[T]
	Held         bool // its answer is complete and waits for older requests
}

// Request returns what the node is of; the zero value for nil.
func (n *Node[T]) Request() (of T) {
	if n != nil {
		of = n.Of
	}
	return of
}

// Join makes n the newest request.
func (l *Line[T]) Join(n *Node[T]) {
	n.Older, n.Newer, n.Held = l.Newest, nil, false
	if l.Newest != nil {
		l.Newest.Newer = n
	} else {
		l.Oldest = n
	}
	l.Newest = n
}

// Remove removes a request whose answer leaves, or is an error.
func (l *Line[T]) Remove(n *Node[T]) {
	if n.Older != nil {
		n.Older.Newer = n.Newer
	} else {
		l.Oldest = n.Newer
	}
	if n.Newer != nil {
		n.Newer.Older = n.Older
	} else {
		l.Newest = n.Older
	}
	n.Older, n.Newer = nil, nil
	if n.Held {
		n.Held = false
		l.Held--
	}
}

// MayLeave reports whether the answer of n, with outputs, may leave.
func (l *Line[T]) MayLeave(n *Node[T]) bool { return l.Oldest == n && l.Leaving == 0 }

// Hold makes a complete answer wait. Afterwards requests may be Overdue.
func (l *Line[T]) Hold(n *Node[T]) {
	n.Held = true
	l.Held++
}

// Leave removes a request whose answer, with outputs, is being delivered; Left follows.
func (l *Line[T]) Leave(n *Node[T]) {
	l.Leaving++
	l.Remove(n)
}

// Left records that an answer with outputs has been delivered.
func (l *Line[T]) Left() { l.Leaving-- }

// Next returns the request whose held answer may leave now; nil: none.
func (l *Line[T]) Next() *Node[T] {
	if n := l.Oldest; n != nil && n.Held && l.MayLeave(n) {
		return n
	}
	return nil
}

// Overdue returns the oldest request if it holds up more answers than may be held; else nil. The
// same holds for those behind it, up to the first that is held.
func (l *Line[T]) Overdue() *Node[T] {
	if l.Keep == 0 || l.Held <= l.Keep || l.Oldest.Held {
		return nil
	}
	return l.Oldest
}

// NewestHeld returns the newest request whose answer is held. There must be one.
func (l *Line[T]) NewestHeld() *Node[T] {
	n := l.Newest
	for !n.Held {
		n = n.Older
	}
	return n
}

// Idle reports whether nothing is unanswered, and no answer is being delivered.
func (l *Line[T]) Idle() bool { return l.Oldest == nil && l.Leaving == 0 }
