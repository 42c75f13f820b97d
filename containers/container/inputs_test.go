package container_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// number is the value of a request's parameters, which are a number as JSON text.
func number(parameters []byte) (n int32) {
	_, _ = fmt.Sscanf(string(parameters), `{"n":%d}`, &n)
	return n
}

// asksNothing sends requests without inputs, all at once, and expects each one's own number back.
func asksNothing(t *testing.T, s *server, base, count int) {
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			out, err := s.ask(&scheduler.Request{Parameters: fmt.Appendf(nil, `{"n":%d}`, base+i)})
			if err != nil {
				t.Errorf("request %d: %v", base+i, err)
				return
			}
			if got, err := tensor.Values[int32](out[0]); err != nil || len(got) != 1 || got[0] != int32(base+i) {
				t.Errorf("request %d: %v, %v", base+i, got, err)
			}
			out[0].Release()
		})
	}
	wg.Wait()
}

// TestWithoutInputs: a model without inputs learns from Rows how many rows to return, and the
// parameters of each request.
func TestWithoutInputs(t *testing.T) {
	y := tensor.Spec{Name: "y", DType: tensor.Int32, Shape: tensor.Shape{-1}}
	numbers := func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
		time.Sleep(time.Millisecond) // so that others wait, and form a batch
		if len(b.Inputs) != 0 {
			return nil, fmt.Errorf("%d inputs", len(b.Inputs))
		}
		values := make([]int32, b.Rows)
		for i := range values {
			values[i] = number(b.Parameters(i))
		}
		out, err := tensor.FromSlice(tensor.Shape{b.Rows}, values)
		return []tensor.Tensor{out}, err
	}
	for name, c := range map[string]struct {
		change func(m *container.Model)
		most   int // rows of a batch
	}{
		"batched": {func(m *container.Model) { m.Batched = new(true) }, 7},
		"per row": {func(m *container.Model) {
			m.Batched = new(true)
			m.Predict = container.PerRow(func(_ context.Context, row []tensor.Tensor) ([]tensor.Tensor, error) {
				if len(row) != 0 {
					return nil, fmt.Errorf("%d inputs", len(row))
				}
				out, err := tensor.FromSlice(tensor.Shape{1}, []int32{0})
				return []tensor.Tensor{out}, err
			})
		}, 0},
		"not batched": {func(m *container.Model) {
			m.Batched = new(false)
			m.Outputs = []tensor.Spec{{Name: "y", DType: tensor.Int32, Shape: tensor.Shape{-1}}}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			most := 0
			bubble(t, func(t *testing.T, n *network, s *server) {
				m := model(n, numbers)
				m.Inputs, m.Outputs = nil, []tensor.Spec{y}
				c.change(&m)
				predict := m.Predict
				m.Predict = func(ctx context.Context, b *container.Batch) ([]tensor.Tensor, error) {
					most = max(most, b.Rows)
					return predict(ctx, b)
				}
				if err := container.Check(t.Context(), m, 3, 2); err != nil {
					t.Error(err)
				}
				most = 0
				stop := serving(m, nil, "10.0.0.1:7000")
				synctest.Wait()
				if c.most == 0 {
					if out, err := s.ask(&scheduler.Request{}); err != nil || len(out[0].Data) != 4 {
						t.Errorf("one row: %v, %v", out, err)
					} else {
						out[0].Release()
					}
				} else {
					for range 4 { // the size that is tried rises with what was measured
						asksNothing(t, s, 0, 8)
					}
					if most < min(c.most, 2) || most > c.most {
						t.Errorf("the largest batch has %d rows, expected up to %d", most, c.most)
					}
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestWithoutInputsOfTwoServers: requests of two servers to a model without inputs are executed in
// one call.
func TestWithoutInputsOfTwoServers(t *testing.T) {
	most, joined := 0, false
	numbers := func(n *network) container.Model {
		m := model(n, func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			time.Sleep(5 * time.Millisecond)
			values := make([]int32, b.Rows)
			high, low := false, false
			for i := range values {
				values[i] = number(b.Parameters(i))
				high, low = high || values[i] >= 1000, low || values[i] < 1000
			}
			most, joined = max(most, b.Rows), joined || high && low
			out, err := tensor.FromSlice(tensor.Shape{b.Rows}, values)
			return []tensor.Tensor{out}, err
		})
		m.Batched, m.Inputs = new(true), []tensor.Spec{}
		m.Outputs = []tensor.Spec{{Name: "y", DType: tensor.Int32, Shape: tensor.Shape{-1}}}
		return m
	}
	pair(t, numbers, func(t *testing.T, n *network, a, b *server) {
		var wg sync.WaitGroup
		for i, s := range []*server{a, b} {
			for range 3 {
				wg.Go(func() {
					for range 8 {
						asksNothing(t, s, 1000*i, 7)
					}
				})
			}
		}
		wg.Wait()
		if !joined {
			t.Errorf("no call had requests of both servers; the largest had %d rows", most)
		}
	})
}
