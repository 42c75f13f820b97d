package frigate

import (
	"context"
	"encoding/json"
	"net"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// FuzzMessage sends any frames as a detector's. The answer is always a status of a model or twenty
// rows.
func FuzzMessage(f *testing.F) {
	r := newRig(f, func(c *Config) { c.ModelDirectory = f.TempDir() })
	r.model("yolo", []tensor.Spec{rows}, 0, one)
	f.Add([]byte(header24), []byte(pixels(1)), true)
	f.Add([]byte(`{"model_request": true, "model_name": "yolo.onnx"}`), []byte(nil), false)
	f.Add([]byte(`{"model_data": true, "model_name": "a.onnx"}`), []byte("x"), true)
	f.Add([]byte(`{"shape": [1, -1, 1e9], "dtype": "float32", "model_type": "ssd"}`), []byte("x"), true)
	in := admitted(f, r)
	f.Fuzz(func(t *testing.T, head, data []byte, two bool) {
		budgettest.Input(t)
		c := &conn{Conn: in, door: r.door, file: "yolo.onnx"}
		c.ctx, c.cancel = context.WithCancel(t.Context())
		defer c.cancel()
		m := &zmtp.Message{Frames: []zmtp.Frame{{}, {Data: head}}}
		if two {
			m.Frames = append(m.Frames, zmtp.Frame{Data: data})
		}
		a := request{conn: c, settings: r.door.settings.Load(), began: time.Now()}
		if a.parse(m) == nil && (a.ModelRequest || a.ModelData) {
			c.cancel() // otherwise the question would wait for unknown models
		}
		a.header = header{}
		defer a.use.End()
		answer, err := a.answer(m)
		if err != nil {
			t.Fatalf("%v; header %q", err, head)
		}
		var object map[string]any
		if err := json.Unmarshal(answer[0], &object); err != nil {
			t.Fatalf("%v: %q", err, answer[0])
		}
		_, isModel := object["model_loaded"]
		if isModel != (len(answer) == 1) || !isModel && (len(answer) != 2 || len(answer[1]) != rowsSize) {
			t.Fatalf("answer %q", answer)
		}
	})
}

// admitted returns a connection as the door sees it.
func admitted(t testing.TB, r *rig) *listen.Conn {
	t.Helper()
	l, err := listen.Listen(listen.Config{
		Entrance: listen.Entrance{Addrs: []string{"10.0.0.1:1"}, Metrics: r.Metrics.Door("frigate"), Log: r.door.log,
			Open: func(at string, _ unixsocket.Access) (net.Listener, error) { return r.net.Listen(at) }},
		Door: "frigate", Settings: func() listen.Settings { return listen.Settings{Connections: 1} },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if _, err = r.net.DialFrom(context.Background(), "10.2.0.1:1", "10.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
