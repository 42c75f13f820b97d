//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	pixels "image"
	"image/png"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// idPipeline finds the squares of a picture and reads what each says, with two processes for each
// model (id_models.py).
const idPipeline = `
[pipeline.ids]
inputs = ["image"]

[[pipeline.ids.stage]]
name = "find"
model = "find"
inputs = { image = "image" }

[[pipeline.ids.stage]]
name = "read"
model = "read"
inputs = { image = "image" }
each = "find.boxes"
`

var idModels = []string{"find", "read"}

const (
	idRate     = 40 // pictures per second
	idSquares  = 5  // at most, in a picture
	idSide     = 32 // of a square, in pixels
	idDeadline = time.Second
)

const idWidth, idHeight = (idSquares + 2) * idSide, 3 * idSide

// idPicture has an id, and squares that say it.
func idPicture(id, squares int) tensor.Tensor {
	const width, height = idWidth, idHeight
	data := make([]byte, 0, 3*width*height)
	for y := range height {
		for x := range width {
			says := byte(255)
			if k := x/idSide - 1; y/idSide == 1 && k >= 0 && k < squares {
				says = byte(k)
			}
			data = append(data, byte(id), byte(id>>8), says)
		}
	}
	copy(data, []byte{byte(squares), byte(id), byte(id >> 8)})
	return tensor.Tensor{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{1, height, width, 3}, Data: data}
}

// idFile is the same as a file, which keeps each pixel.
func idFile(id, squares int) tensor.Tensor {
	m, data := pixels.NewNRGBA(pixels.Rect(0, 0, idWidth, idHeight)), idPicture(id, squares).Data
	for i := range len(data) / 3 {
		copy(m.Pix[4*i:], append(data[3*i:][:3:3], 255))
	}
	var file bytes.Buffer
	if err := png.Encode(&file, m); err != nil {
		panic(err)
	}
	return tensor.Tensor{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{file.Len()}, Data: file.Bytes()}
}

// An idLoad asks for pictures in an open loop. Each request is one call of the client, which gets
// one answer or none: a second one would be taken for that of another request, and be wrong.
type idLoad struct {
	watch *stopwatch
	done  sync.WaitGroup
	asked atomic.Int64

	mu      sync.Mutex
	answers int
	rows    map[int32]int  // of the answers, by their status
	errors  map[string]int // by type
	wrong   []string
	latest  time.Duration // after the deadline; negative: before
}

func (l *idLoad) ask(c *shiva.Client, id int) {
	squares := id % (idSquares + 1)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l.asked.Add(1)
	picture := idPicture(id, squares)
	if id%2 == 0 {
		picture = idFile(id, squares)
	}
	began := l.watch.read()
	m, err := c.Do(ctx, &shiva.Message{Namespace: "ids", Tensors: []tensor.Tensor{picture},
		Metadata: fmt.Appendf(nil, `{"timeout_ms":%d}`, idDeadline.Milliseconds())})
	late := l.watch.read() - began - idDeadline
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latest = max(l.latest, late)
	if remote, typed := errors.AsType[*shiva.RemoteError](err); typed {
		l.errors[remote.Type]++
		return
	}
	if err != nil {
		l.errors["no answer: "+err.Error()]++
		return
	}
	defer m.Release()
	l.answers++
	if err := l.check(m, id, squares); err != nil {
		l.wrong = append(l.wrong, fmt.Sprintf("picture %d with %d squares: %v", id, squares, err))
	}
}

// check compares an answer with the picture. The caller has the lock.
func (l *idLoad) check(m *shiva.Message, id, squares int) error {
	found, err := idValues[int64](m, "find.id")
	if err != nil || !slices.Equal(found, []int64{int64(id)}) {
		return fmt.Errorf("find.id is %v, %v", found, err)
	}
	of, err := idValues[int32](m, "read.of")
	if err != nil {
		return err
	}
	status, err := idValues[int32](m, "read.status")
	if err != nil {
		return err
	}
	says, err := idValues[int64](m, "read.says")
	if err != nil {
		return err
	}
	if len(of) != squares || len(status) != squares || len(says) != 2*squares {
		return fmt.Errorf("read.of %v, read.status %v, read.says %v", of, status, says)
	}
	for k := range of {
		l.rows[status[k]]++
		want := []int64{int64(id), int64(k)}
		if status[k] != 0 {
			want = []int64{0, 0}
		}
		if int(of[k]) != k || !slices.Equal(says[2*k:2*k+2], want) {
			return fmt.Errorf("row %d is of square %d, status %d, and says %v", k, of[k], status[k], says[2*k:2*k+2])
		}
	}
	return nil
}

func idValues[T tensor.Element](m *shiva.Message, name string) ([]T, error) {
	t, err := m.Output(name)
	if err != nil {
		return nil, err
	}
	return tensor.Values[T](t)
}

// startIDs starts a server of idPipeline with so many processes for each model.
func startIDs(t *testing.T, replicas int) *shivad {
	text := idPipeline
	for _, name := range idModels {
		text += fmt.Sprintf("\n[[container]]\nname = %q\ncommand = [%q, \"server/e2e/python/id_models.py\", %[1]q]\ndir = \"ROOT\"\nreplicas = %[3]d\n",
			name, python(t), replicas)
	}
	s := start(t, config(t, text))
	for _, name := range idModels {
		s.waitReplicas(name, replicas)
	}
	return s
}

// A file that both stages look at is decoded by the first one, once it has memory to hand its
// pixels on, and each answer is of its own picture.
func TestE2EPictureDecodedOnce(t *testing.T) {
	s := startIDs(t, 1)
	client := s.client()
	decoded := func(id int) int64 {
		m, err := client.Infer(t.Context(), "ids", idFile(id, 2))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Release()
		says, err := idValues[int64](m, "read.says")
		if want := []int64{int64(id), 0, int64(id), 1}; err != nil || !slices.Equal(says, want) {
			t.Fatalf("the squares of picture %d say %v, %v", id, says, err)
		}
		counts, err := idValues[int64](m, "read.decoded")
		if err != nil {
			t.Fatal(err)
		}
		return counts[0]
	}
	if n := decoded(1); n != 1 {
		t.Errorf("%d files were decoded for the first picture", n)
	}
	id := 2
	budgettest.Until(t, "pictures to be handed on", func() bool {
		before := decoded(id)
		for range 50 {
			if id++; decoded(id) != before {
				return false
			}
		}
		return true
	})
}

// One of two processes of each stage is killed, in turn, each second. Every request has one answer
// by its deadline, and whatever an answer says is of its picture, and of the square that it names.
func TestE2EPipelineKilledUnderLoad(t *testing.T) {
	s := startIDs(t, 2)
	l := &idLoad{watch: newStopwatch(t), rows: map[int32]int{}, errors: map[string]int{}, latest: -idDeadline}
	client, stop := s.client(), make(chan struct{})
	l.done.Go(func() {
		ticker := time.NewTicker(time.Second / idRate)
		defer ticker.Stop()
		for id := 1; ; id++ {
			select {
			case <-stop:
				return
			case <-ticker.C:
				l.done.Go(func() { l.ask(client, id) })
			}
		}
	})
	kills := 0
	for i := range seconds(t, 8) {
		time.Sleep(time.Second)
		if pid := s.process(idModels[i%2], i/2%2); pid != 0 && syscall.Kill(pid, syscall.SIGKILL) == nil {
			kills++
		}
	}
	close(stop)
	l.done.Wait()
	t.Logf("%d kills; %d requests, %d answers, errors %v; rows of the answers by status %v; the latest answer came %v after its deadline",
		kills, l.asked.Load(), l.answers, l.errors, l.rows, l.latest)
	if len(l.wrong) > 0 {
		t.Errorf("%d are wrong: %s", len(l.wrong), strings.Join(l.wrong[:min(len(l.wrong), 10)], "; "))
	}
	for what := range l.errors {
		if strings.HasPrefix(what, "no answer") || what == shiva.Internal || what == shiva.InvalidInput {
			t.Errorf("errors: %s", what)
		}
	}
	if kills == 0 || l.rows[0] == 0 {
		t.Errorf("%d kills, %d rows with a value", kills, l.rows[0])
	}
	// The bar is 5 ms; the rest allows for a machine that is busy with other tests.
	if l.latest > 100*time.Millisecond {
		t.Errorf("an answer came %v after its deadline", l.latest)
	}
	budgettest.Until(t, "all processes to be back", func() bool {
		return s.process("find", 1) != 0 && s.process("read", 1) != 0
	})
	l.rows = map[int32]int{}
	budgettest.Until(t, "a picture without holes", func() bool {
		before := l.rows[0]
		l.ask(client, idSquares)
		return l.rows[0] == before+idSquares
	})
}

// process returns the id of a process of a container; 0: it does not run.
func (s *shivad) process(container string, replica int) int {
	s.t.Helper()
	var status struct {
		Processes []struct {
			Name         string
			Replica, PID int
		}
	}
	s.get("/v1/status", &status)
	for _, p := range status.Processes {
		if p.Name == container && p.Replica == replica {
			return p.PID
		}
	}
	return 0
}
