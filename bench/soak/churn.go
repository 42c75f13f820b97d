package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// Rates of arrivals and departures.
const (
	clientEvery    = 50 * time.Millisecond
	containerEvery = 5 * time.Second
	versionEvery   = 15 * time.Second
	rollingEvery   = 10 * time.Millisecond // between requests to the model whose versions change

	rolling      = "rolling"
	patience     = 20 * time.Second // of a client: longer than a stall of a shared machine
	maxQuestions = 8                // of one client
)

// counts counts arrivals, and collects faults.
type counts struct {
	Clients, Containers, Versions, Rolling int
	Faults                                 []string
}

// A churn is all activity except the steady load.
type churn struct {
	*system

	mu sync.Mutex
	n  counts
}

func (c *churn) counts() counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func (c *churn) String() string {
	n := c.counts()
	return fmt.Sprintf("%d clients, %d containers, %d versions, %d faults", n.Clients, n.Containers, n.Versions,
		len(n.Faults))
}

// count has f count an arrival, and records err unless ctx has ended.
func (c *churn) count(ctx context.Context, what string, err error, f func(*counts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.n)
	if err != nil && ctx.Err() == nil {
		c.n.Faults = append(c.n.Faults, what+": "+err.Error())
	}
}

// every calls f once in a period until ctx ends.
func every(ctx context.Context, period time.Duration, f func()) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			f()
		}
	}
}

// clients makes clients connect, send some requests and leave: three of four after their answers,
// the fourth in the middle of a request.
func (c *churn) clients(ctx context.Context) {
	i := 0
	every(ctx, clientEvery, func() {
		i++
		questions := 1 + rand.IntN(maxQuestions)
		var err error
		if i%4 == 0 {
			err = c.resets(ctx, questions)
		} else {
			err = c.asks(ctx, questions)
		}
		c.count(ctx, "client", err, func(n *counts) { n.Clients++ })
	})
}

// asks runs a client that waits for all its answers.
func (c *churn) asks(ctx context.Context, questions int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client, err := shiva.Dial(ctx, c.TCP)
	if err != nil {
		return err
	}
	defer client.Close()
	errs := make([]error, questions)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = ask(ctx, client, steady) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// resets runs a client that sends its requests, and half of another, and resets the connection.
func (c *churn) resets(ctx context.Context, questions int) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.TCP)
	if err != nil {
		return err
	}
	defer conn.Close()
	for range questions {
		if _, err := conn.Write(c.frames[0]); err != nil {
			return err
		}
	}
	if _, err := conn.Write(c.frames[0][:rand.IntN(len(c.frames[0]))]); err != nil {
		return err
	}
	return conn.(*net.TCPConn).SetLinger(0)
}

// ask sends a request to a model that echoes its input.
func ask(ctx context.Context, client *shiva.Client, model string) error {
	x, err := tensor.FromSlice(tensor.Shape{16}, make([]float32, 16))
	if err != nil {
		return err
	}
	m, err := client.Do(ctx, &shiva.Message{Namespace: model, Tensors: []tensor.Tensor{x}})
	if err == nil {
		m.Release()
	}
	return err
}

// containers replaces containers of the steady model: the oldest is killed, or told to end, once
// a new one serves.
func (c *churn) containers(ctx context.Context) {
	i := 0
	every(ctx, containerEvery, func() {
		i++
		err := c.addReplica(ctx)
		if err == nil && ctx.Err() == nil {
			oldest := c.replicas[0]
			c.replicas = c.replicas[1:]
			if i%2 == 0 {
				oldest.Kill()
			} else {
				oldest.Stop()
			}
			err = c.await(ctx)
		}
		c.count(ctx, "container", err, func(n *counts) { n.Containers++ })
	})
}

// versions replaces versions of the rolling model, while a client keeps sending requests to the
// model.
func (c *churn) versions(ctx context.Context) {
	text, err := os.Create(filepath.Join(c.Dir, rolling+".log"))
	if err != nil {
		c.count(ctx, "version", err, func(*counts) {})
		return
	}
	defer text.Close()
	log := slog.New(slog.NewTextHandler(text, nil))
	var all sync.WaitGroup
	defer all.Wait()
	version := 0
	retire := func() {}
	defer func() { retire() }()
	roll := func() error {
		version++
		serving, end := context.WithCancel(ctx)
		ended := make(chan error, 1)
		number := strconv.Itoa(version)
		all.Go(func() { ended <- serve(serving, number, c.Containers, log) })
		if err := c.answers(ctx, rolling+"/"+number); err != nil {
			end()
			return errors.Join(err, <-ended)
		}
		retire()
		retire = func() {
			end()
			if err := <-ended; err != nil {
				c.count(ctx, "version "+number, err, func(*counts) {})
			}
		}
		return nil
	}
	rolled := func() { c.count(ctx, "version", roll(), func(n *counts) { n.Versions++ }) }
	rolled()
	all.Go(func() { c.asksOn(ctx) })
	every(ctx, versionEvery, rolled)
}

// fill makes as many versions come and go as the server remembers without a replica. Each later
// version then replaces one of them; otherwise the server's memory would grow for an hour.
func (c *churn) fill(ctx context.Context) error {
	const atOnce = 16
	log := slog.New(slog.DiscardHandler)
	errs := make([]error, scheduler.MaxAbsent)
	for begin := 0; begin < len(errs); begin += atOnce {
		var all sync.WaitGroup
		for i := begin; i < min(begin+atOnce, len(errs)); i++ {
			all.Go(func() {
				serving, end := context.WithCancel(ctx)
				ended := make(chan error, 1)
				version := fmt.Sprintf("before %d", i)
				go func() { ended <- serve(serving, version, c.Containers, log) }()
				err := c.answers(ctx, rolling+"/"+version)
				end()
				errs[i] = errors.Join(err, <-ended)
			})
		}
		all.Wait()
	}
	return errors.Join(errs...)
}

// serve runs a container of the rolling model.
func serve(ctx context.Context, version, server string, log *slog.Logger) error {
	spec := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 16}}}
	return container.Serve(ctx, container.Model{
		Name: rolling, Version: version, Inputs: spec, Outputs: spec, Log: log,
		Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) { return b.Inputs, nil },
	}, server)
}

// answers returns once a model answers.
func (c *churn) answers(ctx context.Context, model string) error {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	client, err := shiva.Dial(ctx, c.TCP)
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		if err = ask(ctx, client, model); err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// asksOn sends requests to the rolling model, whatever its version, until ctx ends.
func (c *churn) asksOn(ctx context.Context) {
	client, err := shiva.Dial(ctx, c.TCP)
	if err != nil {
		c.count(ctx, "rolling", err, func(*counts) {})
		return
	}
	defer client.Close()
	every(ctx, rollingEvery, func() {
		asked, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		c.count(ctx, "rolling", ask(asked, client, rolling), func(n *counts) { n.Rolling++ })
	})
}
