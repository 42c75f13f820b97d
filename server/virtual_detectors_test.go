package server

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/shiva/tensor"
)

// detectorPatience is how much of its 200 ms a detector's image has until it is answered with
// zeros.
const detectorPatience = 180 * time.Millisecond

// detections are the outputs of the detectors' model: the number of a request as a class, and that
// of its row as the upper edge of a box.
var detections = []tensor.Spec{{Name: "detections", DType: tensor.Float32, Shape: tensor.Shape{-1, 1, 6}}}

func detected(values []int32) (rows []float32) {
	for i := 0; i+1 < len(values); i += 2 {
		rows = append(rows, float32(values[i]), 1, float32(values[i+1]), 0, 0, 0)
	}
	return rows
}

// newDetector makes the i-th detector, a client that sends one image at a time. It has no token to
// show.
func (s *scene) newDetector(i int) (c *client, questions int) {
	name := fmt.Sprintf("detector%d", i)
	r := draw(s.plan.seed, name)
	c = &client{scene: s, name: name, door: "frigate", from: fmt.Sprintf("10.2.2.%d:5000", i+1), rand: r,
		deals: draw(s.plan.seed, name+" questions"), faults: draw(s.plan.seed, name+" connections")}
	c.shaky = s.troubles.clients && r.IntN(2) == 0
	return c, 3 + r.IntN(25)
}

// runDetector sends requests, on a new connection whenever one has ended.
func (c *client) runDetector(questions int) {
	for tries := 0; questions > 0 && tries < 50; tries++ {
		d, err := c.dialDetector()
		switch {
		case err != nil && c.wasCut():
			time.Sleep(10 * time.Millisecond)
			continue
		case err != nil:
			if !c.scene.stopped() {
				c.scene.history.fault("%s cannot connect: %v", c.name, err)
			}
			return
		}
		for ; questions > 0 && err == nil; questions-- {
			time.Sleep(c.wait())
			err = c.detect(d,
				&question{client: c, model: "d", rows: 1, timeout: detectorPatience, bad: c.deals.IntN(30) == 0})
		}
		d.Close()
	}
}

// dialDetector connects and names its model, as a detector does first.
func (c *client) dialDetector() (*zmtp.Conn, error) {
	link, err := c.scene.net.DialFrom(context.Background(), c.from, doorAddrs["frigate"])
	if err != nil {
		return nil, err
	}
	c.spoil(link)
	d, err := zmtp.Client(link, zmtp.Config{Client: zmtp.Req})
	if err != nil {
		link.Close()
		return nil, err
	}
	// The answer tells whether the model exists by then, but a detector may send images in any
	// case.
	if _, err := c.exchange(d, `{"model_request": true, "model_name": "d.onnx"}`); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// exchange sends the frames of a request and returns those of its answer.
func (c *client) exchange(d *zmtp.Conn, frames ...string) (answer []string, err error) {
	var o zmtp.Outgoing
	o.Frame(nil)
	for _, f := range frames {
		o.FrameString(f)
	}
	gone := time.AfterFunc(patience, func() { d.Abort(context.DeadlineExceeded) })
	defer gone.Stop()
	var m zmtp.Message
	if err = d.Send(&o); err == nil {
		err = d.Receive(&m)
	}
	if err != nil {
		return nil, err
	}
	defer m.Release()
	for _, f := range m.Frames {
		answer = append(answer, string(f.Data))
	}
	if len(answer) < 2 || answer[0] != "" || !json.Valid([]byte(answer[1])) {
		c.scene.history.fault("%s was sent %q", c.name, answer)
	}
	return answer[1:], nil
}

// detect sends one image.
func (c *client) detect(d *zmtp.Conn, q *question) error {
	h := c.scene.history
	h.ask(q)
	h.sent(q) // its time runs from the first byte
	frames, err := c.exchange(d, fmt.Sprintf(`{"shape": [1, %d], "dtype": "int32", "model_type": "ssd"}`, q.width()),
		string(q.input().Data))
	if err != nil {
		h.answer(q, answer{kind: unanswered, text: err.Error()})
		return err
	}
	var head struct{ Type, Error string }
	if len(frames) != 2 || len(frames[1]) != 480 || json.Unmarshal([]byte(frames[0]), &head) != nil {
		h.fault("%s was sent %q, which are no detections", c.name, frames)
		return nil
	}
	row := func(i int) (v [6]float32) {
		for k := range v {
			v[k] = math.Float32frombits(binary.LittleEndian.Uint32([]byte(frames[1][4*(6*i+k):])))
		}
		return v
	}
	switch first := row(0); {
	case row(1) != [6]float32{}, head.Error != "" && first != [6]float32{},
		kind(head.Type) != kindOf(head.Error) && head.Error != "":
		h.fault("%s was sent %s and rows that begin with %v, %v", c.name, frames[0], first, row(1))
	case head.Error != "":
		h.answer(q, answer{kind: kindOf(head.Error), text: head.Error})
	default:
		h.answer(q, answer{kind: okay, values: []int32{int32(first[0]) + sign("d", "1"), int32(first[2])}})
	}
	return nil
}
