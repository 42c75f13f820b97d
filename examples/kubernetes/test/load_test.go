package kubernetes

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// perRow is slow.py's time for a row: so long that a busy machine adds little to it.
const perRow = 200 * time.Millisecond

// patience is the deadline of each request for a row: a replica takes one at a time, as two batches
// of two rows would not fit into it.
const patience = 3 * perRow

// slow returns values for the chart with a model of slow.py.
func slow(name, more string) string {
	return fmt.Sprintf("server: {adminOpen: true}\nmodels:\n  - {name: %s, image: \"slow:1\", env: [{name: MODEL_NAME, value: %s}, {name: SECONDS, value: %q}]%s}\n",
		name, name, fmt.Sprint(perRow.Seconds()), more)
}

// replica starts a pod of slow.py that connects to servers.
func replica(t *testing.T, template corev1.PodTemplateSpec, servers ...*pod) *pod {
	t.Helper()
	p := newPod(t, template, nil)
	var addresses []string
	for _, one := range servers {
		addresses = append(addresses, one.address("containers"))
	}
	for i, e := range p.container.Env {
		if e.Name == "SHIVA_SERVERS" {
			p.container.Env[i].Value = strings.Join(addresses, ",")
		}
	}
	p.start(python(t), "testdata/slow.py")
	return p
}

// ask sends a row to a model, and returns the status of the answer; 0 without an answer.
func ask(ctx context.Context, server *pod, model string, patience time.Duration) int {
	body := fmt.Sprintf(`{"parameters": {"timeout": %d}, "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}`,
		patience.Microseconds())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"http://"+server.address("rest")+"/v2/models/"+model+"/infer", strings.NewReader(body))
	if err != nil {
		return 0
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

// capacity returns the rows per second that a model can answer, by its fastest answer: on a busy
// machine other answers wait for a core. The model has had requests from then on, so use another
// model than the one to be scaled.
func capacity(t *testing.T, server *pod, model string) float64 {
	t.Helper()
	until(t, model+" to answer", func() bool { return ask(t.Context(), server, model, time.Minute) == http.StatusOK })
	shortest := time.Hour
	for range 10 {
		start := time.Now()
		if status := ask(t.Context(), server, model, time.Minute); status != http.StatusOK {
			t.Fatalf("%s answers %d", model, status)
		}
		shortest = min(shortest, time.Since(start))
	}
	return 1 / shortest.Seconds()
}

// A crowd sends rows to a model at a pace that may change, whatever the answers.
type crowd struct {
	rate     atomic.Int64 // rows a second, in thousandths
	noise    atomic.Bool  // arrivals are random, with another mean in each second
	answered atomic.Int64
	refused  atomic.Int64
	end      func() // returns when all requests are answered
}

func newCrowd(t *testing.T, server *pod, model string, rate float64) *crowd {
	c := &crowd{}
	c.rate.Store(int64(rate * 1000))
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	asking.Go(func() { // ends with ctx
		mean := 1.0
		for next, second := time.Now(), time.Now(); ; {
			rate := float64(c.rate.Load()) / 1000
			pace := 1.0
			if c.noise.Load() {
				if next.Sub(second) >= time.Second {
					mean, second = 0.8+0.4*rand.Float64(), next
				}
				rate, pace = rate*mean, rand.ExpFloat64()
			}
			next = next.Add(time.Duration(pace / rate * float64(time.Second)))
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Until(next)):
			}
			asking.Go(func() {
				if ask(ctx, server, model, patience) == http.StatusOK {
					c.answered.Add(1)
				} else {
					c.refused.Add(1)
				}
			})
		}
	})
	c.end = sync.OnceFunc(func() { cancel(); asking.Wait() })
	t.Cleanup(c.end)
	return c
}
