package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
)

// newest answers a question for the newest answer of the model clock.
func newest(q *shiva.Message) *shiva.Message {
	var asked struct {
		Stream, User string
		MaxAge       float64 `json:"max_age_ms"`
		Timeout      float64 `json:"timeout_ms"`
		Wait         bool
	}
	if err := json.Unmarshal(q.Metadata, &asked); err != nil || asked.Stream != "cam-3" || asked.User != "ann" ||
		asked.MaxAge != 200 || asked.Timeout <= 0 || !asked.Wait {
		return refusal(shiva.NotFound, fmt.Sprintf("no stream %q; there are \"cam-3\" of ann", asked.Stream))
	}
	return hands(41)
}

// hands is the answer to a frame of the model clock.
func hands(seq int) *shiva.Message {
	return answer(fmt.Sprintf(`{"seq":%d,"age_ms":12.4,"skipped":0,"captured_at":1795346700123,"__texts__":{"zone":"UTC"},"__tensors__":["hands"]}`, seq),
		of(tensor.Shape{3}, []int32{9, 41, int32(seq)}))
}

// --follow asks for what is newer than the last answer, and after a deadline without one for
// whatever comes next: a camera may count again from 0. After a refusal it pauses: those for a name
// that is gone come at once.
func TestFollowLatest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	script := []struct {
		after   string // of the question
		reply   *shiva.Message
		refused bool
	}{
		{"", hands(7), false},
		{"7", hands(8), false},
		{"8", refusal(shiva.DeadlineExceeded, "no answer came in time"), true},
		{"", refusal(shiva.NotFound, "no such stream"), true},
		{"", hands(0), false},
		{"0", hands(1), false},
	}
	asked := 0
	var refused time.Time // zero: the last answer was none
	s := shivatest.Serve(listen(t, "tcp"), func(c *shivatest.Conn, q *shiva.Message) {
		if !strings.HasSuffix(q.Namespace, "/latest") {
			_ = c.Send(answer(fakeModels["clock"].metadata))
			return
		}
		var question struct {
			After json.Number
			Wait  bool
		}
		if err := json.Unmarshal(q.Metadata, &question); err != nil || !question.Wait ||
			asked < len(script) && string(question.After) != script[asked].after {
			t.Errorf("question %d is %s (%v)", asked, q.Metadata, err)
		}
		if asked == len(script) {
			cancel()
			return
		}
		if since := time.Since(refused); !refused.IsZero() && since < leastRefresh {
			t.Errorf("question %d came %v after a refusal, expected a pause of %v", asked, since, leastRefresh)
		}
		refused = time.Time{}
		if script[asked].refused {
			refused = time.Now()
		}
		_ = c.Send(script[asked].reply)
		asked++
	})
	defer s.Close()
	var stdout bytes.Buffer
	if code := run(ctx, []string{"latest", "clock", "--follow", "--addr", s.Addr()}, strings.NewReader(""), &stdout,
		io.Discard); code != exitOK {
		t.Errorf("exit %d", code)
	}
	if shown := strings.Count(stdout.String(), "ms old"); shown != 4 || !strings.Contains(stdout.String(), "frame 1, 12 ms old") {
		t.Errorf("shown:\n%s", stdout.String())
	}
}
