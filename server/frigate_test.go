package server

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/tensor"
)

// A whole server on virtual time, two containers, and eight detectors, which wait for 200 ms. One
// container is killed while it has a batch, and no detector is answered late or with zeros; then
// the other one hangs, and all are answered with zeros in time. Quotas and reloaded settings apply
// to detectors as to other clients.
func TestDetectorsOfFrigate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := config.Default()
		c.TCP.Listen, c.REST.Listen, c.GRPC.Listen, c.Admin.Listen = nil, nil, nil, ""
		c.Containers.Listen, c.Containers.Arena = config.Addrs{containersAddrs[""]}, false
		c.Frigate.Listen, c.Frigate.Models = config.Addrs{"10.0.0.1:5555"}, map[string]string{"yard.onnx": "yolo"}
		surroundings := &scene{t: t, store: new(faultyStore)}
		s, err := newServer(c, slog.New(slog.DiscardHandler), surroundings.around())
		if err != nil {
			t.Fatal(err)
		}
		file := c.Clone()
		s.ReloadFrom(func() (config.Config, error) { return file.Clone(), nil }, nil)
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		if list := listening(s.Addrs()); fmt.Sprint(list.Frigate) != "[10.0.0.1:5555]" {
			t.Errorf("status: %+v", list)
		}
		victim, other := newDetecting(t, surroundings), newDetecting(t, surroundings)
		defer other.container.Close()

		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				d := dialDetector(t, surroundings, fmt.Sprintf("10.2.0.%d:1", i+1))
				defer d.Close()
				if got := askDetector(t, d,
					`{"model_request": true, "model_name": "yard.onnx"}`); !strings.Contains(got[0], `"model_available":true,"model_loaded":true`) {
					t.Errorf("the model: %q", got)
				}
				for n := range 40 {
					began := time.Now()
					got := askDetector(t, d, imageHeader, string([]byte{byte(i), byte(n), 0}))
					if took := time.Since(began); took >= 200*time.Millisecond {
						t.Errorf("detector %d, image %d: answered after %v", i, n, took)
					}
					if strings.Contains(got[0], "error") || rowOf(got[1]) != [2]float32{float32(i), float32(n+1) / 64} {
						t.Errorf("detector %d, image %d: %q", i, n, got)
					}
				}
			})
		}
		time.Sleep(300 * time.Millisecond)
		victim.dies.Store(true)
		all.Wait()
		if !victim.died.Load() || other.largest.Load() < 3 {
			t.Errorf("the container died: %v; the largest batch of the other had %d rows", victim.died.Load(),
				other.largest.Load())
		}

		d := dialDetector(t, surroundings, "10.2.0.1:2")
		defer d.Close()
		askDetector(t, d, `{"model_request": true, "model_name": "yard.onnx"}`)
		other.hangs.Store(true)
		began := time.Now()
		got := askDetector(t, d, imageHeader, "abc")
		if took := time.Since(began); took >= 200*time.Millisecond || took < 100*time.Millisecond ||
			!strings.Contains(got[0], `"type":"DeadlineExceeded"`) || rowOf(got[1]) != [2]float32{} {
			t.Errorf("a container that hangs: %q after %v", got, took)
		}

		file.Frigate.RequestTimeout, file.Limits.PerAddress.RequestsPerSecond = 50*time.Millisecond, 1
		if _, err := s.Reload(); err != nil {
			t.Fatal(err)
		}
		began = time.Now()
		got = askDetector(t, d, imageHeader, "abc")
		if took := time.Since(began); took > 50*time.Millisecond || !strings.Contains(got[0], `"type":"DeadlineExceeded"`) {
			t.Errorf("after a reload: %q after %v", got, took)
		}
		for range 2 { // the burst admits one
			got = askDetector(t, d, imageHeader, "abc")
		}
		if !strings.Contains(got[0], `"type":"Overloaded"`) || !strings.Contains(got[0], "requests_per_second = 1") {
			t.Errorf("above a quota: %q", got)
		}
	})
}

const imageHeader = `{"shape": [1, 3], "dtype": "uint8", "model_type": "ssd"}`

// A detecting is a container whose behaviour the test controls.
type detecting struct {
	container         *containertest.Container
	dies, died, hangs atomic.Bool
	largest           atomic.Int64
}

func newDetecting(t *testing.T, s *scene) *detecting {
	h := new(detecting)
	near, err := s.net.Dial(t.Context(), "tcp", containersAddrs[""])
	if err != nil {
		t.Fatal(err)
	}
	h.container, err = containertest.Start(near, containertest.Model{
		Name: "yolo", Version: "1",
		Inputs:  []tensor.Spec{{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{-1, 3}}},
		Outputs: []tensor.Spec{{Name: "detections", DType: tensor.Float32, Shape: tensor.Shape{-1, 20, 6}}},
		Answer:  h.answer,
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// answer finds one thing in an image: its class is the first pixel, its score the second.
func (h *detecting) answer(b *containertest.Batch) containertest.Reply {
	h.largest.Store(max(h.largest.Load(), int64(b.Rows)))
	if h.dies.Load() {
		h.died.Store(true)
		return containertest.Reply{Delay: 10 * time.Millisecond, Die: true}
	}
	values := make([]float32, b.Rows*20*6)
	for row := range b.Rows {
		pixels := b.Inputs[0].Data[3*row:]
		values[row*20*6], values[row*20*6+1] = float32(pixels[0]), float32(pixels[1]+1)/64
	}
	rows, err := tensor.FromSlice(tensor.Shape{b.Rows, 20, 6}, values)
	if err != nil {
		panic(err)
	}
	rows.Name = "detections"
	return containertest.Reply{Delay: 20 * time.Millisecond, Outputs: []tensor.Tensor{rows}, Silent: h.hangs.Load()}
}

func dialDetector(t *testing.T, s *scene, from string) *zmtp.Conn {
	t.Helper()
	link, err := s.net.DialFrom(t.Context(), from, "10.0.0.1:5555")
	if err != nil {
		t.Fatal(err)
	}
	d, err := zmtp.Client(link, zmtp.Config{Client: zmtp.Req})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// askDetector sends a request like a REQ socket.
func askDetector(t *testing.T, d *zmtp.Conn, frames ...string) []string {
	t.Helper()
	var o zmtp.Outgoing
	o.Frame(nil)
	for _, f := range frames {
		o.FrameString(f)
	}
	var m zmtp.Message
	err := d.Send(&o)
	if err == nil {
		err = d.Receive(&m)
	}
	if err != nil {
		t.Errorf("no answer to %q: %v", frames, err)
		return []string{"{}", ""}
	}
	defer m.Release()
	var answer []string
	for _, f := range m.Frames {
		answer = append(answer, string(f.Data))
	}
	if len(answer) < 2 || answer[0] != "" || !json.Valid([]byte(answer[1])) {
		t.Errorf("answer %q", answer)
		return []string{"{}", ""}
	}
	return answer[1:]
}

// rowOf returns the class and the score of the first row.
func rowOf(data string) (row [2]float32) {
	if len(data) != 480 {
		return [2]float32{-1, -1}
	}
	for i := range row {
		row[i] = math.Float32frombits(binary.LittleEndian.Uint32([]byte(data[4*i:])))
	}
	return row
}
