package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/shivad/shivad/bench/load"
)

func parseThink(text string) (*load.Think, error) {
	t, err := load.ParseThink(text)
	return &t, err
}

// mixed reports whether clients that wait for each answer are beside another load.
func (o *benchOptions) mixed() bool { return o.clients > 0 && (o.rate > 0 || o.streams > 0) }

// checkClients refuses flags that exclude each other.
func (o *benchOptions) checkClients() error {
	switch {
	case o.clients > 0 && o.search != nil:
		return usage("bench", "--search finds the number of clients itself: expected --think without --clients")
	case o.clients > 0 && !o.mixed() && o.conns > 0:
		return usage("bench", "--clients have a connection each: expected --conns only for the load beside them")
	case o.think != nil && o.clients == 0 && (o.rate > 0 || o.streams > 0):
		return usage("bench", "--think is for clients that wait for each answer: expected --clients as well")
	case o.think != nil && o.search != nil && o.conns > 0:
		return usage("bench", "--search with --think finds the number of clients, which have a connection each: expected no --conns")
	case o.mixed() && o.hdr != "":
		return usage("bench", "--hdr is for the latencies of one load: expected no --clients beside it")
	}
	return nil
}

// closed returns the configuration of clients that wait for each answer, like c otherwise.
func (o *benchOptions) closed(c load.Config, clients int) load.Config {
	c.Rate, c.Streams, c.Frames = 0, nil, nil
	c.Conns, c.InFlight, c.Think = clients, o.inFlight, o.thinks()
	return c
}

// thinks is the time from an answer to a client's next request.
func (o *benchOptions) thinks() (t load.Think) {
	if o.think != nil {
		t = *o.think
	}
	return t
}

// offer offers the load, with the clients beside it, and tells its progress. When one of
// the two ends early, so does the other.
func (b *bench) offer() (r, clients *load.Result, err error) {
	if b.beside == nil {
		r, err = b.run(b.config)
		return r, nil, err
	}
	config, beside := b.config, *b.beside
	config.Live = &load.Live{}
	beside.Live = config.Live
	defer b.moments(config)()
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	var besideErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		if clients, besideErr = load.Run(ctx, beside); besideErr != nil {
			cancel()
		}
	})
	if r, err = load.Run(ctx, config); err != nil {
		cancel()
	}
	wg.Wait()
	if err == nil || errors.Is(err, context.Canceled) && besideErr != nil {
		err = besideErr
	}
	return r, clients, err
}

// searchClients finds the largest number of clients that keep the promise. It returns the result of
// the last trial.
func (b *bench) searchClients() (last *load.Result, err error) {
	settle := min(time.Second, b.o.length) // of each trial, until the server knows its clients
	clients, trials, err := load.SearchClients(b.ctx, *b.o.search, b.o.length,
		func(_ context.Context, clients int, length time.Duration, _ bool) (load.Trial, error) {
			c := b.config
			c.Conns, c.Duration, c.Warmup = clients, length, settle
			return b.trial(c, &last)
		})
	rate := 0.0
	if clients > 0 {
		rate = trials[len(trials)-1].Rate
	}
	b.report.searched(*b.o.search, rate, trials)
	b.report.Search.Clients = clients
	return last, err
}
