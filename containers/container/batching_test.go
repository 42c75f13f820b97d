package container_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

func floats(name string, shape ...int) tensor.Spec {
	return tensor.Spec{Name: name, DType: tensor.Float32, Shape: shape}
}

// TestAmbiguity: an ambiguous declaration is refused before any connection, with both ways to
// resolve it.
func TestAmbiguity(t *testing.T) {
	n := &network{}
	for _, tt := range []struct {
		name    string
		in, out []tensor.Spec
		change  func(*container.Model)
		want    string // "": clear
	}{
		{"rows of a size", []tensor.Spec{floats("x", -1, 28, 28)}, []tensor.Spec{floats("y", -1)}, nil, ""},
		{"an image", []tensor.Spec{floats("x", 28, 28)}, []tensor.Spec{floats("y", 10)}, nil, ""},
		{"a clip or scalars", []tensor.Spec{floats("x", -1)}, []tensor.Spec{floats("y", -1)}, nil, "input x float32 [-1] could mean two things"},
		{"an image or rows", []tensor.Spec{floats("x", -1, -1, 3)}, []tensor.Spec{floats("y", -1)}, nil, "could mean two things"},
		{"the second input", []tensor.Spec{floats("x", -1, 2), floats("z", -1, -1)}, []tensor.Spec{floats("y", -1)},
			nil, "input z float32"},
		{"n detections", []tensor.Spec{floats("x", 28, 28)}, []tensor.Spec{floats("y", -1, 4)}, nil, "1 of 2 inputs and outputs lead with -1"},
		{"no input, a list or rows", nil, []tensor.Spec{floats("y", -1, 3)}, nil, "output y float32 [-1, 3] of a model without inputs could mean two things"},
		{"no input, one", nil, []tensor.Spec{floats("y", 3)}, nil, ""},
		{"no input, MaxBatch", nil, []tensor.Spec{floats("y", -1, 3)}, func(m *container.Model) { m.MaxBatch = 8 }, ""},
		{"MaxBatch", []tensor.Spec{floats("x", -1)}, []tensor.Spec{floats("y", -1)},
			func(m *container.Model) { m.MaxBatch = 8 }, ""},
		{"MaxBatch of one", []tensor.Spec{floats("x", -1)}, []tensor.Spec{floats("y", -1)},
			func(m *container.Model) { m.MaxBatch = 1 }, "could mean two things"},
		{"said to be rows", []tensor.Spec{floats("x", -1)}, []tensor.Spec{floats("y", -1)},
			func(m *container.Model) { m.Batched = new(true) }, ""},
		{"said to be one", []tensor.Spec{floats("x", -1)}, []tensor.Spec{floats("y", -1, 4)},
			func(m *container.Model) { m.Batched = new(false) }, ""},
	} {
		m := model(n, nil)
		m.Inputs, m.Outputs = tt.in, tt.out
		if tt.change != nil {
			tt.change(&m)
		}
		text := m.Ambiguity()
		if tt.want == "" {
			if text != "" {
				t.Errorf("%s: %s", tt.name, text)
			}
			continue
		}
		if !strings.Contains(text, tt.want) || !strings.Contains(text, "Batched: new(true)") || !strings.Contains(text, "Batched: new(false)") {
			t.Errorf("%s: %q, expected %q and both ways", tt.name, text, tt.want)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := container.Serve(ctx, m, "10.0.0.1:7000"); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: served: %v", tt.name, err)
		}
	}
}

// TestOlderServer: a server that does not know the key batched would split the requests of some
// models into rows, or not split those of others. The container leaves it and logs why.
func TestOlderServer(t *testing.T) {
	ragged := floats("boxes", -1, 4)
	ragged.Ragged = "count"
	count := tensor.Spec{Name: "count", DType: tensor.Int64, Shape: tensor.Shape{-1}}
	for _, tt := range []struct {
		name    string
		in, out []tensor.Spec
		batched *bool
		key     string // of batched in the welcome
		stays   bool
	}{
		{"rows", []tensor.Spec{floats("x", -1, 2)}, []tensor.Spec{floats("y", -1)}, nil, "", true},
		{"an image", []tensor.Spec{floats("x", 2, 2)}, []tensor.Spec{floats("y", 2)}, nil, "", true},
		{"an image, n detections", []tensor.Spec{floats("x", 2, 2)}, []tensor.Spec{floats("y", -1, 4)}, new(false), "", true},
		{"a clip", []tensor.Spec{floats("x", -1)}, []tensor.Spec{floats("y", -1)}, new(false), "", false},
		{"ragged", []tensor.Spec{floats("x", -1, 2)}, []tensor.Spec{ragged, count}, nil, "", false},
		{"a clip, known", []tensor.Spec{floats("x", -1)}, []tensor.Spec{floats("y", -1)}, new(false), `,"batched":false`, true},
		{"a clip, mistaken", []tensor.Spec{floats("x", -1)}, []tensor.Spec{floats("y", -1)}, new(false), `,"batched":true`, false},
		{"rows, mistaken", []tensor.Spec{floats("x", -1, 2)}, []tensor.Spec{floats("y", -1)}, nil, `,"batched":false`, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			welcome := fmt.Sprintf(`{"protocol":4,"server":"old","heartbeat_ms":1000,"dead_after_ms":3000%s}`, tt.key)
			var log bytes.Buffer
			m := model(&network{}, nil)
			m.Inputs, m.Outputs, m.Batched = tt.in, tt.out, tt.batched
			m.Log = slog.New(slog.NewTextHandler(&log, nil))
			ended := make(chan error, 100)
			m.Dial = func(context.Context, string, string) (net.Conn, error) {
				mine, theirs := containertest.Pipe()
				go func() { ended <- welcomeOnce(theirs, welcome) }()
				return mine, nil
			}
			stop := serving(m, nil, "10.0.0.1:7000")
			time.Sleep(time.Second)
			if left := len(ended) > 0; left == tt.stays {
				t.Errorf("%s: left %t, expected %t", tt.name, left, !tt.stays)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if told := strings.Contains(log.String(),
				"old does not know the keys batched and ragged"); told == tt.stays {
				t.Errorf("%s: the log says so: %t\n%s", tt.name, told, &log)
			}
		})
	}
}

// welcomeOnce is a server that sends welcome to a container, and reads until it has left.
func welcomeOnce(raw net.Conn, welcome string) error {
	conn, err := zmtp.Server(raw, zmtp.Config{})
	if err != nil {
		return err
	}
	defer conn.Close()
	var m zmtp.Message
	defer m.Release()
	if err := conn.Receive(&m); err != nil {
		return err
	}
	var hello struct{ Model string }
	if err := json.Unmarshal(m.Frames[1].Data, &hello); err != nil || hello.Model != "m" {
		return fmt.Errorf("hello of %q: %w", hello.Model, err)
	}
	m.Release()
	var o zmtp.Outgoing
	o.FrameString("welcome")
	o.FrameString(welcome)
	if err := conn.Send(&o); err != nil {
		return err
	}
	for {
		if err := conn.Receive(&m); err != nil {
			return err
		}
		m.Release()
	}
}

// TestHas: Predict sees which optional inputs are present, whatever their shape.
func TestHas(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		gain := floats("gain")
		gain.Optional = true
		mask := floats("mask", -1)
		mask.Optional = true
		var seen []bool
		m := model(n, func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			seen = append(seen[:0], b.Has(0), b.Has(1), b.Has(2))
			for i := range 3 {
				if b.Has(i) != (b.Inputs[i].DType == tensor.Float32) ||
					!b.Has(i) && (b.Inputs[i].Shape != nil || b.Inputs[i].Data != nil) {
					t.Errorf("input %d: %v", i, b.Inputs[i])
				}
			}
			return b.Inputs[:1], nil
		})
		m.Batched, m.Inputs, m.Outputs = new(false), []tensor.Spec{floats("x", -1), gain, mask}, []tensor.Spec{floats("x", -1)}
		stop := serving(m, nil, "10.0.0.1:7000")
		synctest.Wait()
		value := func(shape tensor.Shape, v ...float32) tensor.Tensor {
			x, err := tensor.FromSlice(shape, v)
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		var none tensor.Tensor
		x, one, empty := value(tensor.Shape{1, 3}, 1, 2, 3), value(tensor.Shape{1}, 2), value(tensor.Shape{1, 0})
		for _, tt := range []struct {
			in   []tensor.Tensor
			want string
		}{
			{[]tensor.Tensor{x, none, none}, "[true false false]"},
			{[]tensor.Tensor{x, one, none}, "[true true false]"},
			{[]tensor.Tensor{x, none, empty}, "[true false true]"},
			{[]tensor.Tensor{x, one, empty}, "[true true true]"},
			// No value of the previous batch is left.
			{[]tensor.Tensor{x, none, none}, "[true false false]"},
		} {
			out, err := s.ask(&scheduler.Request{Inputs: tt.in})
			if err != nil || fmt.Sprint(seen) != tt.want || !bytes.Equal(out[0].Data, x.Data) {
				t.Errorf("has %v, expected %s: %v", seen, tt.want, err)
			}
			for _, o := range out {
				o.Release()
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestNotes: the author of a batched model learns at registration that its rows may not fit
// together, and what to do.
func TestNotes(t *testing.T) {
	ragged := floats("y", -1, 4)
	ragged.Ragged = "n"
	for _, tt := range []struct {
		name    string
		out     []tensor.Spec
		batched *bool
		noted   bool
	}{
		{"free sizes", []tensor.Spec{floats("y", -1, -1)}, nil, true},
		{"given sizes", []tensor.Spec{floats("y", -1, 4)}, nil, false},
		{"ragged", []tensor.Spec{ragged, {Name: "n", DType: tensor.Int64, Shape: tensor.Shape{-1}}}, nil, false},
		{"not batched", []tensor.Spec{floats("y", -1, -1)}, new(false), false},
	} {
		bubble(t, func(t *testing.T, n *network, _ *server) {
			var log bytes.Buffer
			m := model(n, nil)
			m.Outputs, m.Batched, m.Log = tt.out, tt.batched, slog.New(slog.NewTextHandler(&log, nil))
			stop := serving(m, nil, "10.0.0.1:7000")
			synctest.Wait()
			if err := stop(); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			text := log.String()
			told := strings.Contains(text, "must agree in the sizes") && strings.Contains(text, "declare it ragged") &&
				strings.Contains(text, "pad it and give the counts") && strings.Contains(text, "batched = false")
			if told != tt.noted {
				t.Errorf("%s: told %t, expected %t\n%s", tt.name, told, tt.noted, text)
			}
		})
	}
}
