package containers

import (
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
)

// Bounds on the feedback that waits to be written to one container, so that it neither fills the
// connection's queue, which batches share, nor delays a batch for long. Feedback larger than
// maxLessonBytes is sent only if no other feedback waits.
const (
	maxLessons     = 16
	maxLessonBytes = 1 << 20
)

// sendFeedback sends feedback to the container. It drops and counts it if the container has not
// read earlier feedback, since feedback must not delay requests. It is the
// [scheduler.ReplicaOptions].Feedback of the replica.
func (s *session) sendFeedback(f *scheduler.Feedback) {
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
	o.Done = func(error) { s.feedbackWritten(size) }
	if err := s.conn.Send(o); err != nil { // its queue is full, or it is closed
		s.mu.Lock()
		s.info.Feedback--
		s.info.FeedbackDropped++
		s.mu.Unlock()
		s.feedbackWritten(size)
	}
}

// serves reports whether the container has registered and has not been dismissed.
func (s *session) serves() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.hold && s.replica != nil && s.machine.phase == serving
}

// feedbackWritten frees the room of feedback that was written.
func (s *session) feedbackWritten(size int) {
	s.mu.Lock()
	s.lessons--
	s.unread -= size
	s.mu.Unlock()
}
