// Command peer is the container and the client of TestUpgrade: it is built in the old tree and in
// the new one, with that tree's SDK and client. As a container it serves affine, which answers 3x +
// 1, until SIGTERM. As a client it retries: it asks one server after the other, over Shiva, HTTP or
// gRPC, until its input ends, and then prints the outcomes of its requests as JSON. It asks only
// servers that report ready, as balancers do: one that has just started knows no model.
//
//	peer serve|tcp|rest|grpc ADDRESS...
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

const (
	workers  = 4
	pace     = 5 * time.Millisecond // between the requests of a worker
	attempt  = 5 * time.Second
	patience = 30 * time.Second // for a request
)

func main() {
	role, addresses := os.Args[1], os.Args[2:]
	var err error
	switch role {
	case "serve":
		err = serve(addresses)
	case "tcp":
		err = retry(func() (asker, error) { return &overShiva{addresses: addresses}, nil })
	case "rest":
		err = retry(func() (asker, error) { return overHTTP{addresses, map[string]bool{}}, nil })
	case "grpc":
		err = retry(func() (asker, error) { return newOverGRPC(addresses) })
	default:
		err = fmt.Errorf("%q is no role", role)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func serve(servers []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	x := []tensor.Spec{{Name: "x", DType: tensor.Int64, Shape: tensor.Shape{-1, 1}}}
	return container.Serve(ctx, container.Model{
		Name: "affine", Version: "1", Inputs: x, Outputs: x, MaxBatch: 32,
		Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			v, err := tensor.Values[int64](b.Inputs[0])
			if err != nil {
				return nil, err
			}
			out := make([]int64, len(v))
			for i := range v {
				out[i] = 3*v[i] + 1
			}
			y, err := tensor.FromSlice(b.Inputs[0].Shape, out)
			return []tensor.Tensor{y}, err
		},
	}, servers...)
}

// retry sends requests until the input ends. Each worker has its own asker.
func retry(newAsker func() (asker, error)) error {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	all := count{Why: map[string]int{}}
	var mu sync.Mutex
	var working sync.WaitGroup
	for w := range workers {
		a, err := newAsker()
		if err != nil {
			return err
		}
		working.Go(func() {
			for n := int64(w); ctx.Err() == nil; n += workers {
				began := time.Now()
				one := insist(a, n)
				one.Longest = time.Since(began).Seconds()
				mu.Lock()
				all.add(one)
				mu.Unlock()
				time.Sleep(pace)
			}
		})
	}
	working.Wait()
	return json.NewEncoder(os.Stdout).Encode(all)
}

// A count has the outcomes of requests.
type count struct {
	Right, Wrong, Lost int
	Retries            int
	Longest            float64        // s
	Why                map[string]int // of retries and losses
}

func (c *count) add(one count) {
	c.Right, c.Wrong, c.Lost, c.Retries = c.Right+one.Right, c.Wrong+one.Wrong, c.Lost+one.Lost, c.Retries+one.Retries
	c.Longest = max(c.Longest, one.Longest)
	for why, n := range one.Why {
		c.Why[why] += n
	}
}

// An asker makes one attempt at the server with the given index: y is the answer to n. again
// reports whether another attempt may help.
type asker interface {
	ask(ctx context.Context, server int, n int64) (y int64, again bool, err error)
}

// insist asks one server after the other until there is an answer.
func insist(a asker, n int64) count {
	c := count{Why: map[string]int{}}
	for end := time.Now().Add(patience); ; c.Retries++ {
		ctx, cancel := context.WithTimeout(context.Background(), attempt)
		y, again, err := a.ask(ctx, int(n)+c.Retries, n)
		cancel()
		switch {
		case err == nil && y == 3*n+1:
			c.Right = 1
			return c
		case err == nil:
			c.Wrong = 1
			c.Why[fmt.Sprintf("%d for %d", y, n)]++
			return c
		case !again || time.Now().After(end):
			c.Lost = 1
			c.Why["lost: "+err.Error()]++
			return c
		}
		c.Why[err.Error()]++
		time.Sleep(20 * time.Millisecond)
	}
}

// overShiva has a connection to each server, and makes a new one when it was lost.
type overShiva struct {
	addresses []string
	clients   []*shiva.Client
}

func (o *overShiva) ask(ctx context.Context, server int, n int64) (int64, bool, error) {
	if o.clients == nil {
		o.clients = make([]*shiva.Client, len(o.addresses))
	}
	c := &o.clients[server%len(o.clients)]
	if *c == nil {
		made, err := shiva.Dial(ctx, o.addresses[server%len(o.addresses)])
		if err != nil {
			return 0, true, errors.New("no connection")
		}
		m, err := made.Do(ctx, &shiva.Message{Namespace: "!ready"})
		if err != nil {
			made.Close()
			return 0, true, errors.New("no connection")
		}
		ready := string(jsonscan.Field(m.Metadata, "ready")) == "true"
		m.Release()
		if !ready {
			made.Close()
			return 0, true, errors.New("not ready")
		}
		*c = made
	}
	x, err := tensor.FromSlice(tensor.Shape{1, 1}, []int64{n})
	if err != nil {
		return 0, false, err
	}
	m, err := (*c).Do(ctx, &shiva.Message{Namespace: "affine", Metadata: []byte(`{"timeout_ms":4000}`), Tensors: []tensor.Tensor{x}})
	remote, answered := errors.AsType[*shiva.RemoteError](err)
	if err != nil && (!answered || remote.Type == shiva.Draining) {
		(*c).Close()
		*c = nil
	}
	switch {
	case answered:
		return 0, remote.Retryable, errors.New(remote.Type)
	case err != nil:
		return 0, true, errors.New("the connection was lost")
	}
	defer m.Release()
	y, err := tensor.Values[int64](m.Tensors[0])
	if err != nil || len(y) != 1 {
		return 0, false, fmt.Errorf("%d tensors, values %v: %v", len(m.Tensors), y, err)
	}
	return y[0], false, nil
}

// overHTTP asks a server whether it is ready after each request that has no answer.
type overHTTP struct {
	addresses []string
	ready     map[string]bool
}

func (o overHTTP) ask(ctx context.Context, server int, n int64) (int64, bool, error) {
	address := o.addresses[server%len(o.addresses)]
	if !o.ready[address] {
		resp, err := http.Get("http://" + address + "/v2/health/ready")
		if err != nil {
			return 0, true, errors.New("no connection")
		}
		resp.Body.Close()
		if o.ready[address] = resp.StatusCode == http.StatusOK; !o.ready[address] {
			return 0, true, errors.New("not ready")
		}
	}
	body := fmt.Appendf(nil, `{"inputs":[{"name":"x","datatype":"INT64","shape":[1,1],"data":[%d]}]}`, n)
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v2/models/affine/infer", bytes.NewReader(body))
	if err != nil {
		return 0, false, err
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		o.ready[address] = false
		return 0, true, errors.New("no answer")
	}
	defer resp.Body.Close()
	var answer struct {
		Outputs []struct{ Data []int64 }
	}
	if resp.StatusCode != http.StatusOK {
		temporary := []int{http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}
		return 0, slices.Contains(temporary, resp.StatusCode), errors.New(resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, true, errors.New("the answer was cut off")
	}
	if len(answer.Outputs) != 1 || len(answer.Outputs[0].Data) != 1 {
		return 0, false, fmt.Errorf("outputs %v", answer.Outputs)
	}
	return answer.Outputs[0].Data[0], false, nil
}
