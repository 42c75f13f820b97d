package rest

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/parameter"
)

// latest answers a question for the newest answer of a stream. Its parameters are in the query, or,
// with POST, in the body, which is that of an inference without inputs.
func (c *call) latest() error {
	return c.run(&request{call: c, keys: parameter.Latest.Keys()}, (*request).readLatest)
}

func (q *request) readLatest() error {
	c := q.call
	q.AskNewest()
	if err := c.service().CheckAsked(c.model, c.version); err != nil {
		return err
	}
	if c.r.Method == http.MethodPost {
		b, err := c.open()
		if err != nil {
			return err
		}
		defer b.close()
		q.body = b
		buf, all, err := b.all()
		if err != nil {
			return err
		}
		defer buf.Release()
		if len(all) > 0 {
			if err := q.parse(q.text(all)); err != nil {
				return err
			}
		}
		if len(q.inputs) > 0 {
			return fault.Invalid("a question for the newest answer of a stream brings no inputs, got %d", len(q.inputs))
		}
	}
	q.Arrived = time.Now()
	if q.pass != nil {
		return q.unknown(string(q.pass.end()))
	}
	return q.query()
}

// query reads the parameters in the query of the URL. Their values are as in JSON; what is no other
// value is a text.
func (q *request) query() error {
	for name, values := range q.call.r.URL.Query() {
		key, text := q.keys[name], values[len(values)-1]
		switch {
		case name == "version":
			q.call.version = text
			continue
		case key == nil:
			return q.unknown(name)
		}
		read := text != "null" && json.Valid([]byte(text)) && key.Read(&q.Values, parameter.JSON([]byte(text))) == nil
		if quoted, _ := json.Marshal(text); !read {
			if err := key.Read(&q.Values, parameter.JSON(quoted)); err != nil {
				return err
			}
		}
	}
	return nil
}

// unknown refuses a parameter: a robot that mistypes max_age_ms must not get an answer of any age.
func (q *request) unknown(what string) error {
	return fault.Invalid("%s: expected the parameters version, %s", what,
		strings.Join(slices.Sorted(maps.Keys(q.keys)), ", "))
}
