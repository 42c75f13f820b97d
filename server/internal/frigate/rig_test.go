package frigate

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/doortest"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// addr is where the door listens, on a network in memory.
const addr = "10.0.0.1:5555"

// rig is a door on virtual time.
type rig struct {
	*doortest.Rig
	net   shivatest.Net
	door  *Door
	trail *access.Trail
	repo  doortest.Repository
	reach string // server.repository
}

// play runs a test on virtual time, which passes while all goroutines wait.
func play(t *testing.T, change func(*Config), test func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, change)
		test(r)
		if err := r.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second) // the workers still have batches that were given up
	})
}

func newRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	r := &rig{Rig: doortest.New(t, tensor.NewPool(1<<30)), trail: access.NewTrail(slog.New(slog.DiscardHandler)),
		reach: config.RepositoryAll}
	cfg := Config{
		Entrance: r.Entrance("frigate"), Pool: r.Pool, Trail: r.trail,
		Predict: r.Predict(&r.repo, func(c *predict.Config) {
			c.Trail, c.Reach = r.trail, func() string { return r.reach }
		}),
		Settings: Settings{
			Settings: listen.Settings{Connections: 100,
				Bounds: listen.Bounds{ConnectionsPerAddress: 50, MessageTimeout: 10 * time.Second,
					StallTimeout: 5 * time.Second}},
			RequestTimeout: 200 * time.Millisecond,
			Limits: gate.Limits{MessageBytes: 1 << 20, MetadataBytes: 4 << 10, Tensors: 16, Rank: 8,
				JSONDepth: 32},
			ModelBytes: 1 << 16, ModelFiles: 3,
		},
	}
	cfg.Addrs = []string{addr}
	cfg.Open = func(at string, _ unixsocket.Access) (net.Listener, error) { return r.net.Listen(at) }
	if change != nil {
		change(&cfg)
	}
	var err error
	if r.door, err = Listen(cfg); err != nil {
		t.Fatal(err)
	}
	r.Serves(r.door.Shutdown)
	return r
}

// image is what models of the tests take, and rows what they answer with.
var (
	image = tensor.Spec{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{-1, 2, 2, 3}}
	rows  = tensor.Spec{Name: "detections", DType: tensor.Float32, Shape: tensor.Shape{-1, mostRows, rowWidth}}
)

// model adds a replica of a model. detect computes the values of its detections from each row's
// pixels; they go into memory of the pool.
func (r *rig) model(name string, outputs []tensor.Spec, after time.Duration, detect func(pixels []byte) []float32) {
	r.T.Helper()
	worker := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		time.AfterFunc(after, func() { r.complete(b, outputs, detect) })
		return nil
	})
	r.replica(name, outputs, worker)
}

func (r *rig) replica(name string, outputs []tensor.Spec, worker scheduler.Worker) *scheduler.Replica {
	r.T.Helper()
	return r.Model(name, scheduler.Spec{Inputs: []tensor.Spec{image}, Outputs: outputs, Platform: "test"}, worker)
}

func (r *rig) complete(b *scheduler.Batch, outputs []tensor.Spec, detect func(pixels []byte) []float32) {
	made := make([]tensor.Tensor, len(outputs))
	var values []float32
	for i := range b.Parts {
		data := b.Parts[i].Inputs[0].Data
		for row := range b.Parts[i].Inputs[0].Shape[0] {
			values = append(values, detect(data[12*row:12*row+12])...)
		}
	}
	for i, o := range outputs {
		shape := append(tensor.Shape{b.Rows}, o.Shape[1:]...)
		for k := range shape {
			if shape[k] < 0 {
				shape[k] = len(values) / b.Rows / rowWidth
			}
		}
		n, _ := shape.Elements()
		buf, err := r.Pool.Get(4 * n)
		if err != nil {
			r.T.Error(err)
			return
		}
		clear(buf.Bytes())
		if o.DType == tensor.Float32 && shape[len(shape)-1] == rowWidth {
			for k, v := range values {
				binary.NativeEndian.PutUint32(buf.Bytes()[4*k:], math.Float32bits(v))
			}
		}
		made[i] = tensor.Tensor{Name: o.Name, DType: o.DType, Shape: shape, Data: buf.Bytes(), Buf: buf}
	}
	b.Complete(made, nil)
}

// one detects one object, whose score is the first pixel.
func one(pixels []byte) []float32 {
	out := make([]float32, mostRows*rowWidth)
	copy(out, []float32{7, float32(pixels[0]) / 256, 0.1, 0.2, 0.3, 0.4})
	return out
}

// A detector is a REQ socket.
type detector struct {
	t    testing.TB
	conn *zmtp.Conn
	link *shivatest.Link
}

func (r *rig) detector(from string) *detector {
	r.T.Helper()
	link, err := r.net.DialFrom(context.Background(), from, addr)
	if err != nil {
		r.T.Fatal(err)
	}
	conn, err := zmtp.Client(link, zmtp.Config{Client: zmtp.Req})
	if err != nil {
		r.T.Fatal(err)
	}
	d := &detector{r.T, conn, link}
	return d
}

// send sends frames behind the empty one.
func (d *detector) send(frames ...string) {
	var o zmtp.Outgoing
	o.Frame(nil)
	for _, f := range frames {
		o.FrameString(f)
	}
	if err := d.conn.Send(&o); err != nil {
		d.t.Errorf("send: %v", err)
	}
}

// receive returns the frames of the next message, without the empty one.
func (d *detector) receive() ([]string, error) {
	var m zmtp.Message
	if err := d.conn.Receive(&m); err != nil {
		return nil, err
	}
	defer m.Release()
	var frames []string
	for _, f := range m.Frames {
		frames = append(frames, string(f.Data))
	}
	if len(frames) < 2 || frames[0] != "" {
		return nil, fmt.Errorf("an answer without the empty frame: %q", frames)
	}
	return frames[1:], nil
}

// ask sends a question and returns its answer.
func (d *detector) ask(frames ...string) []string {
	d.t.Helper()
	d.send(frames...)
	answer, err := d.receive()
	if err != nil {
		d.t.Fatalf("no answer to %.200q: %v", frames, err)
	}
	return answer
}

// closed waits for the end of the connection.
func (d *detector) closed() {
	d.t.Helper()
	if frames, err := d.receive(); err == nil {
		d.t.Errorf("expected the end of the connection, got %.200q", frames)
	} else if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
		d.t.Errorf("expected the end of the connection, got %v", err)
	}
	d.conn.Close()
}

// A status is the answer to a request for a model, or to its file.
type status struct {
	Available *bool `json:"model_available"`
	Saved     *bool `json:"model_saved"`
	Loaded    bool  `json:"model_loaded"`
	Name      string
	Message   string
}

func (s status) is(flag *bool) bool { return flag != nil && *flag }

// about asks for a model by its file name.
func (d *detector) about(file string) status {
	d.t.Helper()
	return d.status(d.ask(fmt.Sprintf(`{"model_request": true, "model_name": %q}`, file)))
}

// gives sends a model's file.
func (d *detector) gives(file, data string) status {
	d.t.Helper()
	return d.status(d.ask(fmt.Sprintf(`{"model_data": true, "model_name": %q}`, file), data))
}

func (d *detector) status(frames []string) (s status) {
	d.t.Helper()
	if len(frames) != 1 || json.Unmarshal([]byte(frames[0]), &s) != nil {
		d.t.Fatalf("not the status of a model: %q", frames)
	}
	return s
}

// header24 is the header of an image that the models of the tests take.
const header24 = `{"shape": [1, 2, 2, 3], "dtype": "uint8", "model_type": "yologeneric"}`

func pixels(first byte) string { return string(append([]byte{first}, make([]byte, 11)...)) }

// A detection is an answer to an image.
type detection struct {
	rows        [][rowWidth]float32 // those that are not zero
	kind, error string
}

// detects sends an image with that first pixel.
func (d *detector) detects(first byte) detection {
	d.t.Helper()
	return d.rows(d.ask(header24, pixels(first)))
}

func (d *detector) rows(frames []string) (found detection) {
	d.t.Helper()
	var head struct {
		Shape       []int
		DType       string
		Type, Error string
	}
	if len(frames) != 2 || json.Unmarshal([]byte(frames[0]), &head) != nil || fmt.Sprint(head.Shape) != "[20 6]" ||
		head.DType != "float32" || len(frames[1]) != rowsSize {
		d.t.Fatalf("not an answer to an image: %q", frames)
	}
	found.kind, found.error = head.Type, head.Error
	for i := range mostRows {
		var row [rowWidth]float32
		for k := range row {
			row[k] = math.Float32frombits(binary.LittleEndian.Uint32([]byte(frames[1][4*(rowWidth*i+k):])))
		}
		if row != [rowWidth]float32{} {
			if len(found.rows) < i {
				d.t.Errorf("row %d is not zero, and one before it is", i)
			}
			found.rows = append(found.rows, row)
		}
	}
	return found
}

// refused checks the answer to an image that was refused.
func (f detection) refused(t testing.TB, kind string, words ...string) {
	t.Helper()
	if f.kind != kind || len(f.rows) > 0 {
		t.Errorf("expected zeros and %s, got %+v", kind, f)
	}
	for _, w := range words {
		if !strings.Contains(f.error, w) {
			t.Errorf("expected %q in %q", w, f.error)
		}
	}
}
