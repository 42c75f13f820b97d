package frigate

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva/tensor"
)

func TestDetection(t *testing.T) {
	play(t, nil, func(r *rig) {
		r.model("yolo", []tensor.Spec{rows}, 5*time.Millisecond, one)
		d := r.detector("10.2.0.1:1")
		defer d.conn.Close()
		if s := d.about("yolo.onnx"); !s.is(s.Available) || !s.Loaded || s.Message != "ready" {
			t.Errorf("%+v", s)
		}
		for _, first := range []byte{128, 64, 0} {
			var want [][rowWidth]float32
			if first > 0 {
				want = [][rowWidth]float32{{7, float32(first) / 256, 0.1, 0.2, 0.3, 0.4}}
			}
			if got := d.detects(first); got.kind != "" || !reflect.DeepEqual(got.rows, want) {
				t.Errorf("%+v, want %v", got, want)
			}
		}
		if got := d.ask(header24, pixels(9)); got[0] != `{"shape": [20, 6], "dtype": "float32"}` {
			t.Errorf("header %s", got[0])
		}
	})
}

// A model may answer with more or fewer rows than 20, in any order; detectors read until the first
// row below their threshold.
func TestRowsAreSorted(t *testing.T) {
	many := tensor.Spec{Name: outputName, DType: tensor.Float32, Shape: tensor.Shape{-1, -1, rowWidth}}
	other := tensor.Spec{Name: "other", DType: tensor.Float32, Shape: tensor.Shape{-1, 5}}
	play(t, nil, func(r *rig) {
		nan := float32(math.NaN())
		r.model("few", []tensor.Spec{many, other}, 0, func([]byte) []float32 {
			return []float32{1, 0.25, 0, 0, 0, 1, 2, 0.75, 0, 0, 0, 2, 3, nan, 0, 0, 0, 3, 4, -1, 0, 0, 0, 4, 5, 0.5, 0,
				0, 0, 5}
		})
		r.model("lots", []tensor.Spec{many}, 0, func([]byte) (out []float32) {
			for i := range 50 {
				out = append(out, float32(i), float32(i+1)/64, 0, 0, 1, 1)
			}
			return out
		})
		d := r.detector("10.2.0.1:1")
		defer d.conn.Close()
		classes := func() (list []int) {
			for _, row := range d.detects(1).rows {
				list = append(list, int(row[0]))
			}
			return list
		}
		d.about("few.onnx")
		if got := classes(); !slices.Equal(got, []int{2, 5, 1}) {
			t.Errorf("few: %v", got)
		}
		d.about("lots.onnx")
		if got := classes(); len(got) != mostRows || got[0] != 49 || got[mostRows-1] != 30 {
			t.Errorf("lots: %v", got)
		}
	})
}

// An image that cannot be answered within request_timeout, which counts from the first byte, is
// answered with zeros before.
func TestZerosBeforeTheTimeout(t *testing.T) {
	play(t, nil, func(r *rig) {
		r.model("slow", []tensor.Spec{rows}, time.Second, one)
		r.model("quick", []tensor.Spec{rows}, 100*time.Millisecond, one)
		d := r.detector("10.2.0.1:1")
		defer d.conn.Close()
		d.about("slow.onnx")
		began := time.Now()
		d.detects(9).refused(t, "DeadlineExceeded")
		if took := time.Since(began); took < 150*time.Millisecond || took >= 195*time.Millisecond {
			t.Errorf("answered after %v", took)
		}
		d.about("quick.onnx")
		if got := d.detects(9); len(got.rows) != 1 {
			t.Errorf("%+v", got)
		}
		// The image takes a while to arrive.
		for _, delay := range []time.Duration{120 * time.Millisecond, 190 * time.Millisecond} {
			message := frames("", header24, pixels(9))
			began = time.Now()
			_, _ = d.link.Write(message[:len(message)-4])
			time.Sleep(delay)
			_, _ = d.link.Write(message[len(message)-4:])
			got, err := d.receive()
			if err != nil {
				t.Fatal(err)
			}
			d.rows(got).refused(t, "DeadlineExceeded")
			if took := time.Since(began); took > max(delay, 185*time.Millisecond) {
				t.Errorf("answered %v after the first byte, of which %v for the image", took, delay)
			}
		}
		if text := r.series(); !strings.Contains(text, `shivad_door_requests_total{door="frigate",outcome="deadline_exceeded"} 3`) ||
			!strings.Contains(text, `shivad_door_requests_total{door="frigate",outcome="ok"} 1`) {
			t.Errorf("not counted:\n%s", text)
		}
	})
}

// Zeros are counted by their cause; the image of a detector that disconnected is not among them.
func TestZerosAreCounted(t *testing.T) {
	play(t, func(c *Config) { c.Models = Models{"none.onnx": "none"} }, func(r *rig) {
		replica := r.replica("yolo", []tensor.Spec{rows}, scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			b.Fail(scheduler.ErrContainerFailed)
			return nil
		}))
		d := r.detector("10.2.0.1:1")
		defer d.conn.Close()
		d.about("yolo.onnx")
		d.detects(9).refused(t, "ContainerFailed")
		d.rows(d.ask(header24, "short")).refused(t, "InvalidInput")
		d.rows(d.ask("rubbish", "x")).refused(t, "Protocol")
		replica.Remove(scheduler.ErrContainerLost)
		d.detects(9).refused(t, "Unavailable")
		d.about("none.onnx")
		d.detects(9).refused(t, "NotFound")
		text := r.series()
		for _, outcome := range []string{"container_failed", "invalid_input", "protocol", "unavailable", "not_found"} {
			if !strings.Contains(text,
				fmt.Sprintf("shivad_door_requests_total{door=\"frigate\",outcome=%q} 1\n", outcome)) {
				t.Errorf("%s is not counted once:\n%s", outcome, text)
			}
		}
		if !strings.Contains(text, `shivad_door_requests_total{door="frigate",outcome="ok"} 0`) {
			t.Errorf("zeros are counted as ok:\n%s", text)
		}
	})
}

// Frigate gives up for good when it is told that a model is not loaded, so it is told late.
func TestDetectorsWaitForTheirModels(t *testing.T) {
	play(t, func(c *Config) { c.Models = Models{"both.onnx:ssd": "a", "both.onnx:yolox": "b/1"} }, func(r *rig) {
		d := r.detector("10.2.0.1:1")
		defer d.conn.Close()
		began := time.Now()
		time.AfterFunc(5*time.Second, func() { r.model("a", []tensor.Spec{rows}, 0, one) })
		time.AfterFunc(20*time.Second, func() { r.model("b", []tensor.Spec{rows}, 0, one) })
		if s := d.about("both.onnx"); !s.is(s.Available) || !s.Loaded {
			t.Errorf("%+v", s)
		}
		if took := time.Since(began); took < 20*time.Second || took > 21*time.Second {
			t.Errorf("answered after %v", took)
		}
		began = time.Now()
		if s := d.about("none.onnx"); s.is(s.Available) || s.Loaded || !strings.Contains(s.Message, `"none"`) {
			t.Errorf("%+v", s)
		}
		if took := time.Since(began); took < modelTimeout || took > 30*time.Second {
			t.Errorf("given up after %v, and the detector waits for 30 s", took)
		}
		r.repo.Names = []string{"late"}
		if s := d.about("late.onnx"); !s.is(s.Available) || s.Loaded {
			t.Errorf("a model whose processes are the server's: %+v", s)
		}
		// A detector that disconnects is not waited for.
		gone := r.detector("10.2.0.1:2")
		gone.send(`{"model_request": true, "model_name": "none.onnx"}`)
		time.Sleep(time.Second)
		gone.conn.Close()
		time.Sleep(time.Second)
		if n := r.Metrics.Door("frigate").Connections(); n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}

func TestModelFiles(t *testing.T) {
	dir := t.TempDir()
	play(t, func(c *Config) { c.ModelDirectory = dir }, func(r *rig) {
		d := r.detector("10.2.0.1:1")
		defer d.conn.Close()
		r.repo.Names = []string{"yolo"}
		r.repo.Loading = func(context.Context, string) error {
			if _, err := os.Stat(filepath.Join(dir, "yolo.onnx")); err != nil {
				t.Errorf("loaded before the file is there: %v", err)
			}
			r.model("yolo", []tensor.Spec{rows}, 0, one)
			return nil
		}
		began := time.Now()
		if s := d.about("other.onnx"); s.is(s.Available) || s.Loaded || time.Since(began) > time.Second {
			t.Errorf("%+v after %v, and the detector could send its file", s, time.Since(began))
		}
		if s := d.gives("yolo.onnx", "weights"); !s.is(s.Saved) || !s.Loaded {
			t.Errorf("%+v", s)
		}
		if text, err := os.ReadFile(filepath.Join(dir, "yolo.onnx")); err != nil || string(text) != "weights" {
			t.Errorf("%q, %v", text, err)
		}
		if got := d.detects(8); len(got.rows) != 1 {
			t.Errorf("the model of the file is not asked: %+v", got)
		}
		if s := d.gives("yolo.onnx", "weights"); !s.is(s.Saved) {
			t.Errorf("the same again: %+v", s)
		}
		for _, wrong := range []struct{ file, data, says string }{
			{"yolo.onnx", "other", "with other contents exists"},
			{"yolo.onnx", "weighty", "with other contents exists"},
			{"../yolo.onnx", "x", "expected 1 to 128 letters"},
			{"a/b.onnx", "x", "expected 1 to 128 letters"},
			{".hidden", "x", "expected 1 to 128 letters"},
			{"sp ace.onnx", "x", "expected 1 to 128 letters"},
			{strings.Repeat("x", 129), "x", "1 to 128 bytes"},
			{"", "x", "1 to 128 bytes"},
			{"large.onnx", strings.Repeat("x", 1<<16+1), "frigate.model_bytes is 65536"},
		} {
			if s := d.gives(wrong.file, wrong.data); s.is(s.Saved) || s.Loaded ||
				!strings.Contains(s.Message, wrong.says) {
				t.Errorf("%.20q: %+v", wrong.file, s)
			}
		}
		r.repo.Loading = func(context.Context, string) error {
			return fmt.Errorf("%w: it ended", scheduler.ErrUnavailable)
		}
		if s := d.gives("yolo.tflite", "y"); !s.is(s.Saved) || s.Loaded || !strings.Contains(s.Message, "it ended") {
			t.Errorf("a model that ends: %+v", s)
		}
		if err := os.WriteFile(filepath.Join(dir, "c"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if s := d.gives("d.onnx", "x"); s.is(s.Saved) || !strings.Contains(s.Message, "frigate.model_files is 3") {
			t.Errorf("a fourth file: %+v", s)
		}
		if list, _ := os.ReadDir(dir); len(list) != 3 {
			t.Errorf("files: %v", list)
		}
		if err := syscall.Mkfifo(filepath.Join(dir, "pipe.onnx"), 0o600); err != nil {
			t.Fatal(err)
		}
		if s := d.gives("pipe.onnx", "x"); s.is(s.Saved) || !strings.Contains(s.Message, "with other contents exists") {
			t.Errorf("a pipe, which is not to be waited for: %+v", s)
		}
		var noted []string
		for _, e := range r.trail.List(100) {
			if e.What == "model file" {
				noted = append(noted, e.Action+" "+e.Name+" "+e.After+e.Error)
			}
		}
		if len(noted) < 3 || !strings.HasPrefix(noted[0], `save yolo.onnx {"bytes":7,"sha256":"`) ||
			!strings.HasPrefix(noted[2], `save yolo.onnx invalid input: a model file "yolo.onnx" with other contents exists`) {
			t.Errorf("audit: %q", noted)
		}
	})
}

// Files of clients that may not load models are refused.
func TestModelFilesAreRefused(t *testing.T) {
	play(t, nil, func(r *rig) {
		d := r.detector("10.2.0.1:1")
		defer d.conn.Close()
		if s := d.gives("yolo.onnx", "x"); s.is(s.Saved) || !strings.Contains(s.Message, "frigate.model_directory") {
			t.Errorf("without a directory: %+v", s)
		}
		if list := r.trail.List(1); len(list) != 1 || !list[0].Refused || list[0].Name != "yolo.onnx" {
			t.Errorf("audit: %+v", list)
		}
	})
	dir := t.TempDir()
	play(t, func(c *Config) { c.ModelDirectory = dir }, func(r *rig) {
		r.reach = config.RepositoryLocal // and other machines can reach the door
		d := r.detector("10.2.0.1:1")
		defer d.conn.Close()
		if s := d.gives("yolo.onnx", "x"); s.is(s.Saved) || !strings.Contains(s.Message, "server.repository") {
			t.Errorf("from another machine: %+v", s)
		}
		if list, _ := os.ReadDir(dir); len(list) > 0 {
			t.Errorf("files: %v", list)
		}
		if list := r.trail.List(1); len(list) != 1 || !list[0].Refused || list[0].Action != "save" {
			t.Errorf("audit: %+v", list)
		}
	})
}

// A detector learns of no stored file whose model it may not use: the answer is that of a file that
// there is not.
func TestStoredFilesAreHidden(t *testing.T) {
	dir := t.TempDir()
	for _, file := range []string{"secret.onnx", "yolo.onnx"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	identities := new(access.Identities)
	identities.Replace([]access.Declaration{{Name: access.Anonymous, May: []string{"infer:yolo"}}})
	play(t, func(c *Config) { c.ModelDirectory, c.Identities = dir, identities }, func(r *rig) {
		d := r.detector("10.2.0.1:1")
		defer d.conn.Close()
		is, isNot := d.about("secret.onnx"), d.about("absent.onnx")
		if is.is(is.Available) ||
			strings.ReplaceAll(is.Message, "secret", "NAME") != strings.ReplaceAll(isNot.Message, "absent", "NAME") {
			t.Errorf("of a file that it may not know of: %+v; of one that is not there: %+v", is, isNot)
		}
		if s := d.about("yolo.onnx"); !s.is(s.Available) {
			t.Errorf("of a file that it may use: %+v", s)
		}
	})
}

// A detector may send its next message while the last one is answered, and a reload change its
// rights meanwhile.
func TestReloadWhileADetectorSends(t *testing.T) {
	identities := new(access.Identities)
	reload := func() {
		identities.Replace([]access.Declaration{{Name: access.Anonymous, May: []string{"infer:yolo"}}})
	}
	reload()
	play(t, func(c *Config) { c.Identities = identities }, func(r *rig) {
		const messages = 100
		r.model("yolo", []tensor.Spec{rows}, 0, one)
		d := r.detector("10.2.0.1:1")
		defer d.conn.Close()
		d.about("yolo.onnx")
		var sending sync.WaitGroup
		unanswered := make(chan struct{}, 8) // more than are answered at once, and fewer than a socket queues
		sending.Go(func() {
			for range messages {
				unanswered <- struct{}{}
				d.send(header24, pixels(128))
				reload()
			}
		})
		for range messages {
			answer, err := d.receive()
			if err != nil {
				t.Fatal(err)
			}
			<-unanswered
			if got := d.rows(answer); got.kind != "" {
				t.Errorf("%+v", got)
			}
		}
		sending.Wait()
	})
}

func TestWhichModel(t *testing.T) {
	m := Models{"a.onnx:yolo-generic": "typed", "a.onnx": "named", "*:ssd": "ssd", "b.onnx:yolox": "b/2"}
	for _, tt := range []struct{ file, kind, model string }{
		{"a.onnx", "yologeneric", "typed"}, {"a.onnx", "yolo-generic", "typed"}, {"a.onnx", "ssd", "named"},
		{"b.onnx", "yolox", "b/2"}, {"b.onnx", "ssd", "ssd"}, {"b.onnx", "dfine", "b"},
		{"c.v1.onnx", "dfine", "c.v1"}, {"plain", "", "plain"}, {"", "ssd", "ssd"}, {"", "yolox", ""},
	} {
		if got := m.of(tt.file, tt.kind); got != tt.model {
			t.Errorf("%q of %q: %q, want %q", tt.file, tt.kind, got, tt.model)
		}
	}
	if got := (Models{"*": "all"}).of("", "x"); got != "all" {
		t.Errorf("any: %q", got)
	}
	for file, want := range map[string]string{"a.onnx": "[named typed]", "b.onnx": "[b/2]", "x.onnx": "[ssd]"} {
		if got := fmt.Sprint(m.all(file)); got != want {
			t.Errorf("%q: %v, want %v", file, got, want)
		}
	}
	if got := fmt.Sprint(Models(nil).all("yolo.onnx")); got != "[yolo]" {
		t.Errorf("without any: %v", got)
	}
}

// A detector goes on with images on a new connection after its server was restarted. Without an
// answer it begins anew.
func TestImageBeforeAnyModel(t *testing.T) {
	play(t, func(c *Config) { c.Models = Models{"*:ssd": "mobilenet"} }, func(r *rig) {
		r.model("mobilenet", []tensor.Spec{rows}, 0, one)
		d := r.detector("10.2.0.1:1")
		if got := d.rows(d.ask(strings.Replace(header24, "yologeneric", "ssd", 1), pixels(3))); len(got.rows) != 1 {
			t.Errorf("%+v", got)
		}
		d.send(header24, pixels(3))
		d.closed()
	})
}

// Eight detectors share the batches of two replicas. One replica ends with unanswered batches, and
// no detector notices.
func TestEightDetectorsAndALostReplica(t *testing.T) {
	play(t, nil, func(r *rig) {
		var lost *scheduler.Replica
		var stuck []*scheduler.Batch
		var largest int
		var mu sync.Mutex
		outputs := []tensor.Spec{rows}
		for i := range 2 {
			worker := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
				mu.Lock()
				defer mu.Unlock()
				largest = max(largest, b.Rows)
				if i == 0 && len(stuck) == 0 && time.Now().Nanosecond() > int(300*time.Millisecond) {
					stuck = append(stuck, b)
					time.AfterFunc(15*time.Millisecond, func() { lost.Remove(scheduler.ErrContainerLost) })
					return nil
				}
				time.AfterFunc(30*time.Millisecond, func() { r.complete(b, outputs, one) })
				return nil
			})
			if replica := r.replica("yolo", outputs, worker); i == 0 {
				lost = replica
			}
		}
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				d := r.detector(fmt.Sprintf("10.2.0.%d:1", i+1))
				defer d.conn.Close()
				d.about("yolo.onnx")
				for range 30 {
					began := time.Now()
					if got := d.detects(byte(i + 1)); len(got.rows) != 1 || got.rows[0][1] != float32(i+1)/256 {
						t.Errorf("detector %d: %+v", i, got)
					}
					if took := time.Since(began); took >= 200*time.Millisecond {
						t.Errorf("detector %d: %v", i, took)
					}
				}
			})
		}
		all.Wait()
		for _, b := range stuck { // the replica reads no more of these
			b.Fail(scheduler.ErrContainerLost)
		}
		if len(stuck) == 0 || largest < 3 {
			t.Errorf("%d batches were lost, and the largest had %d rows", len(stuck), largest)
		}
	})
}

func TestShutdown(t *testing.T) {
	play(t, nil, func(r *rig) {
		r.model("yolo", []tensor.Spec{rows}, 50*time.Millisecond, one)
		idle, waits, busy := r.detector("10.2.0.1:1"), r.detector("10.2.0.1:2"), r.detector("10.2.0.1:3")
		half, err := r.net.DialFrom(r.T.Context(), "10.2.0.1:4", addr) // no handshake
		if err != nil {
			t.Fatal(err)
		}
		busy.about("yolo.onnx")
		busy.send(header24, pixels(5))
		waits.send(`{"model_request": true, "model_name": "none.onnx"}`)
		synctest.Wait()
		began := time.Now()
		if err := r.Stop(r.T.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
		if got, err := busy.receive(); err != nil || len(busy.rows(got).rows) != 1 {
			t.Errorf("the image in flight: %q, %v", got, err)
		}
		for _, d := range []*detector{idle, busy} {
			d.closed()
		}
		waits.conn.Close()
		half.Close()
	})
}

// A detector most of whose requests are refused is read in turns, and one that waits for its turn
// does not hold a shutdown up.
func TestPausedDetectorEnds(t *testing.T) {
	l := access.Limits{Burst: 2 * time.Second}
	l.Of[access.RequestsPerSecond] = 1
	var who access.Addresses
	who.Configure(l, true)
	play(t, func(c *Config) { c.Addresses = &who }, func(r *rig) {
		r.model("yolo", []tensor.Spec{rows}, 0, one)
		d := r.detector("10.2.0.1:1")
		var took time.Duration // the last answer
		for range 100 {
			began := time.Now()
			d.ask(`{"model_request": true, "model_name": "yolo.onnx"}`)
			took = time.Since(began)
		}
		if took < 200*time.Millisecond {
			r.T.Errorf("the detector has its answer after %v, and is not read in turns", took)
		}
		began := time.Now()
		if err := r.Stop(r.T.Context()); err != nil {
			r.T.Error(err)
		}
		if took := time.Since(began); took > 20*time.Millisecond {
			r.T.Errorf("the shutdown took %v", took)
		}
		d.closed()
	})
}
