package tcp

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// However the input is cut, and however little room there is for the output, a conversation has the
// same answers, byte for byte.
func TestAnyPieces(t *testing.T) {
	images, err := tensor.FromSlice(tensor.Shape{300, 4}, make([]float32, 1200))
	if err != nil {
		t.Fatal(err)
	}
	var questions []byte
	for i := range 4 {
		for _, m := range []*shiva.Message{
			message("m", fmt.Sprintf(`{"id":%d}`, i), 1, 2, 3, float32(i)),
			{Namespace: "m", Metadata: []byte(`{"id":"large"}`), Tensors: []tensor.Tensor{images}},
			message("m", `{"priority":"x","id":"refused"}`, 1),
			{Namespace: "m", Metadata: []byte(`{"a":`)},
			message("!live", `{"id":"control"}`),
		} {
			if questions, err = shiva.AppendMessage(questions, m); err != nil {
				t.Fatal(err)
			}
		}
	}
	questions = append(questions, "no header, and the end"...)
	converse := func(piece, buffer int) (answers []byte) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, nil)
			r.net.Piece, r.net.Buffer = piece, buffer
			r.model("m", floats("x"), r.Echo)
			c := r.dial()
			go func() {
				_, _ = c.Write(questions)
				_ = c.CloseWrite()
			}()
			var err error
			if answers, err = io.ReadAll(c); err != nil {
				t.Error(err)
			}
		})
		return answers
	}
	whole := converse(len(questions), 1<<20)
	if len(whole) < 4*4800 {
		t.Fatalf("%d bytes of answers", len(whole))
	}
	for _, k := range []struct{ piece, buffer int }{{1, 1 << 20}, {12, 13}, {13, 100}, {1000, 999}} {
		if got := converse(k.piece, k.buffer); !bytes.Equal(got, whole) {
			t.Errorf("in pieces of %d, with room for %d: %d bytes of answers, %d when whole", k.piece, k.buffer,
				len(got), len(whole))
		}
	}
}

// Large tensors are swapped a block at a time, on their way in and on their way out: wherever a
// read or a write ends, between two blocks or inside an element, every byte is in its place.
func TestLargeTensorsInPieces(t *testing.T) {
	const row = 4 * 12_500
	values := make([]float32, 4*row) // 800 KB: four blocks
	for i := range values {
		values[i] = float32(i) + 0.25
	}
	large, err := tensor.FromSlice(tensor.Shape{len(values) / row, row}, values)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, len(large.Data))
	tensor.SwapCopy(data, large.Data, 4)
	var question []byte
	for _, m := range []*shiva.Message{{Namespace: "m", Tensors: []tensor.Tensor{large}},
		message("small", "", 1, 2, 3, 4)} {
		if question, err = shiva.AppendMessage(question, m); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range []struct{ piece, buffer int }{{2 << 20, 2 << 20}, {64 << 10, 262_143}, {10_001, 99_991},
		{4 << 10, 1 << 20}, {300_000, 7777}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, nil)
			r.net.Piece, r.net.Buffer = k.piece, k.buffer
			x := tensor.Spec{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, row}}
			r.model("m", scheduler.Spec{Inputs: []tensor.Spec{x}, Outputs: []tensor.Spec{x}}, r.Echo)
			r.model("small", floats("x"), r.Echo)
			c := r.dial()
			go func() {
				_, _ = c.Write(bytes.Repeat(question, 3))
				_ = c.CloseWrite()
			}()
			answers, err := io.ReadAll(c)
			if err != nil {
				t.Error(err)
			}
			if n := bytes.Count(answers, data); n != 3 {
				t.Errorf("in pieces of %d, with room for %d: %d bytes of answers have the tensor %d times, want 3",
					k.piece, k.buffer, len(answers), n)
			}
		})
	}
}

// A client that reads nothing is closed after the door's stall timeout, and not before; another
// client is served meanwhile.
func TestClientThatNeverReads(t *testing.T) {
	const stall = 3 * time.Second
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.OutboundBytes, c.StallTimeout = 4<<20, stall })
		sized(r, "large", 1<<20, 0)
		r.model("m", floats("x"), r.Echo)
		greedy, other := r.dial(), r.dial()
		for range 50 {
			greedy.send(message("large", "", 1<<20, 0, 0, 0))
		}
		for range int((stall - tick) / tick) {
			time.Sleep(tick)
			other.send(message("m", "", 1, 2, 3, 4))
			values(t, other.next())
		}
		if n := r.open(); n != 2 {
			t.Errorf("%d connections before its time is up", n)
		}
		if n := r.Pool.InUse(); n > 6<<20 {
			t.Errorf("%d KiB are held for it", n>>10)
		}
		time.Sleep(2 * tick)
		if n := r.open(); n != 1 {
			t.Errorf("%d connections after it", n)
		}
	})
}

// With cancel_on_close, the requests of a client that has closed leave the queue within two ticks,
// although its end looks like that of a client that waits for its answers.
func TestClientGoneOrWaiting(t *testing.T) {
	for name, gone := range map[string]bool{"gone": true, "waiting": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, func(c *Config) { c.CancelOnClose = true })
				batches := make(chan *scheduler.Batch, 10)
				replica := r.model("m", floats("x"), func(b *scheduler.Batch) error { batches <- b; return nil })
				other, c := r.dial(), r.dial()
				for range 2 { // fills the replica
					other.send(message("m", "", 0, 0, 0, 0))
					synctest.Wait()
				}
				c.send(message("m", "", 1, 2, 3, 4))
				synctest.Wait()
				before := replica.Model().Stats().QueueRows
				if gone {
					c.Close()
				} else {
					_ = c.CloseWrite()
				}
				time.Sleep(2 * tick)
				want := before
				if gone {
					want--
				}
				if n := replica.Model().Stats().QueueRows; n != want {
					t.Errorf("%d rows wait, %d before: expected %d", n, before, want)
				}
				go func() { // until the test closes it
					for b := range batches {
						if err := r.Echo(b); err != nil {
							t.Error(err)
						}
					}
				}()
				defer close(batches)
				for range 2 {
					values(t, other.next())
				}
				if gone {
					return
				}
				if got := values(t, c.next()); got[0] != 1 {
					t.Errorf("answered %v", got)
				}
			})
		})
	}
}
