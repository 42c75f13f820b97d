package rest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
)

// update takes feedback: Clipper's, with the input that it is about, or ours, with the id of a
// request; one, or several at once.
func (c *call) update() error {
	q, raw, err := c.readClipper(parameter.Feedback)
	arrived := time.Now()
	if err != nil {
		c.door.predict.Refused(err, arrived)
		return err
	}
	if q.Updates == nil && q.Batch == nil {
		reply, err := c.teach(&q, raw, arrived)
		if err == nil {
			c.respond(http.StatusOK, reply)
		}
		return err
	}
	updates, err := q.several()
	if err != nil {
		c.door.predict.Refused(err, arrived)
		return err
	}
	const atOnce = 16 // those of one user wait for each other in the store
	answers := make([]json.RawMessage, len(updates))
	places := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, raw := range updates {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			reply, err := c.tryTeach(&q, raw, arrived)
			if err != nil {
				reply, _ = json.Marshal(map[string]string{"error": gate.Text(err)}) // of texts: cannot fail
			}
			answers[i] = reply
		})
	}
	all.Wait()
	return c.write(http.StatusOK, map[string][]json.RawMessage{"updates": answers})
}

// several are the feedbacks of a body that has more than one, each as an object.
func (q *clipperQuestion) several() ([]json.RawMessage, error) {
	if q.Input != nil || q.ID != nil || q.Updates != nil && q.Batch != nil {
		return nil, invalid(`expected "updates", or "input_batch" with "labels", or one feedback; got more than one of these`)
	}
	if q.Updates != nil {
		return q.Updates, nil
	}
	if len(q.Labels) != len(q.Batch) {
		return nil, invalid(`labels: expected one for each of the %d inputs of "input_batch", got %d; "updates" takes losses and ids as well`, len(q.Batch), len(q.Labels))
	}
	updates := make([]json.RawMessage, len(q.Batch))
	for i, input := range q.Batch {
		updates[i] = fmt.Appendf(nil, `{"input":%s,"label":%s}`, input, q.Labels[i])
	}
	return updates, nil
}

// tryTeach is teach for one of several, with a net below it: on a goroutine of its own, a panic
// would be the end of the process. What it does not say itself, such as the user, it has from
// all.
func (c *call) tryTeach(all *clipperQuestion, raw json.RawMessage, arrived time.Time) (reply []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			c.door.log.Error("panic over one feedback of several", "path", c.r.URL.Path, "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", gate.ErrInternal, r)
		}
	}()
	one := clipperQuestion{values: all.values}
	if err = one.read(raw, parameter.Feedback); err == nil && (one.Updates != nil || one.Batch != nil) {
		err = invalid("updates do not nest")
	}
	if err != nil {
		c.door.predict.Refused(err, arrived)
		return nil, err
	}
	return c.teach(&one, raw, arrived)
}

// teach gives one feedback to the application.
func (c *call) teach(q *clipperQuestion, raw json.RawMessage, arrived time.Time) ([]byte, error) {
	question, err := c.question(q, q.Input, arrived)
	if err == nil && q.ID != nil && q.ID[0] != '"' && q.ID[0] != '-' && (q.ID[0] < '0' || q.ID[0] > '9') {
		err = invalid("id: expected a text or a number, got %.60s", q.ID)
	}
	if err != nil {
		c.door.predict.Refused(err, arrived)
		return nil, err
	}
	question.Parameters = raw
	reply, err := c.door.predict.Feedback(c.r.Context(), question, q.ID)
	return slices.Clone(reply), err
}
