package rest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva/plural"
)

// update takes feedback: on an input, as Clipper's, or on the request with an id; one or several at
// once.
func (c *call) update() error {
	q, raw, err := c.readClipper(parameter.Feedback)
	arrived := time.Now()
	if err != nil {
		return c.countRefusal(err, arrived)
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
		return c.countRefusal(err, arrived)
	}
	const atOnce = 16 // the store serializes the feedback of one user
	answers := each(c, updates, atOnce, func(raw json.RawMessage) (json.RawMessage, error) {
		// Missing members, such as the user, default to those of the body.
		one := clipperBody{values: q.values}
		err := one.read(raw, parameter.Feedback)
		if err == nil && (one.Updates != nil || one.Batch != nil) {
			err = fault.Invalid(`an item of "updates" cannot have "updates" or "input_batch"`)
		}
		if err != nil {
			return nil, c.countRefusal(err, arrived)
		}
		return c.teach(&one, raw, arrived)
	}, func(err error) json.RawMessage { return errorBody(err) })
	return c.answer(map[string][]json.RawMessage{"updates": answers}, nil)
}

// several splits a body with several items of feedback into one object for each.
func (q *clipperBody) several() ([]json.RawMessage, error) {
	if q.Input != nil || q.ID != nil || q.Updates != nil && q.Batch != nil {
		return nil, fault.Invalid(`expected "updates", or "input_batch" with "labels", or one feedback; got more than one of these`)
	}
	if q.Updates != nil {
		return q.Updates, nil
	}
	if len(q.Labels) != len(q.Batch) {
		return nil, fault.Invalid(`labels: expected one for each of the %s of "input_batch", got %d; "updates" also allows losses and ids`,
			plural.Of(len(q.Batch), "input"), len(q.Labels))
	}
	updates := make([]json.RawMessage, len(q.Batch))
	for i, input := range q.Batch {
		updates[i] = fmt.Appendf(nil, `{"input":%s,"label":%s}`, input, q.Labels[i])
	}
	return updates, nil
}

// teach gives one item of feedback to the application.
func (c *call) teach(q *clipperBody, raw json.RawMessage, arrived time.Time) ([]byte, error) {
	r, err := c.request(q, q.Input, arrived)
	if err == nil && q.ID != nil {
		err = textOrNumber("id", q.ID)
	}
	if err != nil {
		return nil, c.countRefusal(err, arrived)
	}
	r.Parameters, r.ID = raw, q.ID
	reply, err := c.door.predict.Feedback(c.r.Context(), r, nil)
	if err != nil {
		return nil, err
	}
	return reply.JSON(), nil
}
