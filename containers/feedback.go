package containers

import (
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
)

// What may wait of feedback to be written to one container: less than would ever fill the
// connection's queue, whose other places are the batches', or keep a batch waiting for long.
// What is larger than the bytes goes only if none waits.
const (
	maxLessons     = 16
	maxLessonBytes = 1 << 20
)

// teach sends feedback to the container, or drops and counts it when the container has not
// taken what came before: it is worth no request's time. It is given to the scheduler as
// [scheduler.ReplicaOptions].Feedback.
func (s *session) teach(f *scheduler.Feedback) {
	o := new(zmtp.Outgoing)
	if !s.serves() || !s.codec.feedback(o, f) {
		return
	}
	size := o.Size()
	s.mu.Lock()
	full := s.lessons > 0 && (s.lessons >= maxLessons || s.unread+size > maxLessonBytes)
	if full {
		s.info.FeedbackDropped++
	} else {
		s.info.Feedback++
		s.lessons++
		s.unread += size
	}
	s.mu.Unlock()
	if full {
		return
	}
	o.Done = func(error) { s.taught(size) }
	if err := s.conn.Send(o); err != nil { // its queue is full, or it has ended
		s.mu.Lock()
		s.info.Feedback--
		s.info.FeedbackDropped++
		s.mu.Unlock()
		s.taught(size)
	}
}

// serves reports whether the container has been welcomed, and has not been told to go.
func (s *session) serves() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.hold && s.replica != nil && s.machine.phase == serving
}

// taught makes room for more.
func (s *session) taught(size int) {
	s.mu.Lock()
	s.lessons--
	s.unread -= size
	s.mu.Unlock()
}
