package server

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

var pollersFlag = flag.Int("pollers", 0, "TestPollersSoak has so many streams, each with a poller; 0: two hundred, or fewer where a change is tried")

// A factory is two servers with the same model, whose cameras and pollers are on virtual time.
type factory struct {
	t      *testing.T
	scenes [2]*scene
	end    time.Time // of the cameras

	answers, errors atomic.Int64
}

// TestPollersSoak: streams with a poller each, on two servers, while containers are killed,
// versions change, settings are reloaded and cameras move to the other server. What a poller gets
// is newer than what it had, and in the end the answer to the last frame. A minute after the
// streams the servers keep nothing, although they keep answers whether or not somebody asks.
func TestPollersSoak(t *testing.T) {
	n := *pollersFlag
	if n == 0 {
		n = 20 + budgettest.Rounds(180)
	}
	synctest.Test(t, func(t *testing.T) {
		p := &factory{t: t, end: time.Now().Add(time.Minute)}
		var all sync.WaitGroup
		for i := range p.scenes {
			p.scenes[i] = p.startScene()
			all.Go(func() { p.versions(p.scenes[i].server, uint64(i)) })
			all.Go(func() { p.reloads(p.scenes[i], uint64(i)) })
		}
		time.Sleep(10 * time.Millisecond)
		for i := range n {
			s := &station{factory: p, name: fmt.Sprint("cam-", i), home: i % 2, moves: i%10 == 0,
				random: rand.New(rand.NewPCG(1, uint64(i)))}
			all.Go(s.film)
			all.Go(func() {
				ask, hangUp := newestAsker(s.inProcess), func() {}
				if i%3 == 0 {
					ask, hangUp = s.overShiva()
				}
				defer hangUp()
				s.follow(ask, rand.New(rand.NewPCG(2, uint64(i))))
			})
		}
		all.Wait()
		t.Logf("%d streams: %d answers to pollers, %d errors", n, p.answers.Load(), p.errors.Load())
		if got := p.answers.Load(); got < int64(n)*20 {
			t.Errorf("only %d answers", got)
		}
		time.Sleep(time.Minute + time.Second) // after the last question and the last frame
		for i, s := range p.scenes {
			synctest.Wait()
			if u := s.server.gate.Newest().Usage(); u.Bytes != 0 || u.Streams != 0 || u.Waiting != 0 {
				t.Errorf("server %d keeps %+v", i, u)
			}
			if err := s.server.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
			if n := s.server.pool.InUse(); n != 0 {
				t.Errorf("server %d has %d bytes of the pool in use", i, n)
			}
		}
	})
}

func (p *factory) startScene() *scene {
	c := config.Default()
	c.TCP.Listen, c.REST.Listen, c.GRPC.Listen, c.Admin.Listen = config.Addrs{doorAddrs["tcp"]}, nil, nil, ""
	c.Containers.Listen, c.Containers.Arena = nil, false
	s := &scene{t: p.t, store: new(faultyStore), file: c}
	var err error
	if s.server, err = newServer(c, slog.New(slog.DiscardHandler), s.around()); err != nil {
		p.t.Fatal(err)
	}
	s.server.ReloadFrom(func() (config.Config, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.file.Clone(), nil
	}, nil)
	if err := s.server.Start(); err != nil {
		p.t.Fatal(err)
	}
	return s
}

var errKilled = errors.New("the container was killed")

// versions replaces the version of the model every ten seconds, and now and then a replica with a
// batch is killed.
func (p *factory) versions(s *Server, seed uint64) {
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	var before *scheduler.Replica
	for version := 1; time.Now().Before(p.end); version++ {
		random := rand.New(rand.NewPCG(seed, uint64(version)))
		var mu sync.Mutex
		worker := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			mu.Lock()
			took, killed := time.Duration(1+random.IntN(20))*time.Millisecond, random.IntN(300) == 0
			mu.Unlock()
			var held []tensor.Tensor // the batch may be taken away meanwhile, and its inputs with it
			for i := range b.Parts {
				for _, input := range b.Parts[i].Inputs {
					input.Retain()
					held = append(held, input)
				}
			}
			time.AfterFunc(took, func() {
				defer gate.Released(held)
				if killed {
					b.Fail(errKilled)
				} else if err := echo(b); err != nil {
					b.Fail(err)
				}
			})
			return nil
		})
		id := scheduler.ModelID{Name: "m", Version: fmt.Sprint(version)}
		r, err := s.Scheduler().AddReplica(id, scheduler.Spec{Inputs: x, Outputs: x}, worker,
			scheduler.ReplicaOptions{})
		if err != nil {
			p.t.Error(err)
			return
		}
		if before != nil {
			before.Remove(scheduler.ErrUnavailable)
		}
		before = r
		time.Sleep(10 * time.Second)
	}
}

// reloads changes how answers are kept, and how many. For the last seconds all are kept.
func (p *factory) reloads(s *scene, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 7))
	for {
		left := time.Until(p.end)
		s.mu.Lock()
		m := config.Model{Policy: s.file.Defaults}
		m.Latest = []setting.Latest{setting.LatestAsked, setting.LatestAlways, setting.LatestShared}[random.IntN(3)]
		s.file.Limits.LatestBytes = config.Bytes(random.IntN(1 << 14))
		if left < 15*time.Second {
			m.Latest, s.file.Limits.LatestBytes = setting.LatestAlways, 64<<20
		}
		s.file.Models = map[string]config.Model{"m": m}
		s.mu.Unlock()
		if _, err := s.server.Reload(); err != nil {
			p.t.Error(err)
		}
		if left < 15*time.Second {
			return
		}
		time.Sleep(time.Duration(2+random.IntN(5)) * time.Second)
	}
}

// A station is a camera and who asks for its newest answer.
type station struct {
	*factory
	name   string
	home   int  // the server that the camera sends to at first
	moves  bool // it goes over to the other one half-way
	random *rand.Rand

	mu   sync.Mutex
	last int64 // the newest frame that was answered with outputs
	done bool  // the camera has ended
}

// at is the server that the camera sends to now.
func (s *station) at() int {
	if s.moves && time.Now().After(s.end.Add(-30*time.Second)) {
		return 1 - s.home
	}
	return s.home
}

func (s *station) film() {
	for seq := int64(1); time.Now().Before(s.end); seq++ {
		time.Sleep(time.Duration(500+s.random.IntN(1000)) * time.Millisecond)
		x, err := tensor.FromSlice(tensor.Shape{1, 2}, []int32{int32(seq), int32(seq)})
		if err != nil {
			s.t.Error(err)
			return
		}
		parameters, _ := json.Marshal(map[string]any{"stream": s.name, "seq": seq})
		a, err := s.scenes[s.at()].server.Infer(context.Background(),
			&Request{Name: "m", Inputs: []tensor.Tensor{x}, Parameters: parameters})
		switch {
		case err == nil:
			a.Release()
			s.mu.Lock()
			s.last = seq
			s.mu.Unlock()
		case !errors.Is(err, scheduler.ErrContainerFailed) && !errors.Is(err, scheduler.ErrUnavailable) &&
			!errors.Is(err, scheduler.ErrContainerLost):
			s.t.Errorf("%s, frame %d: %v", s.name, seq, err)
		}
	}
	s.mu.Lock()
	s.done = true
	s.mu.Unlock()
}

// newest returns the last answered frame, and whether it is the last of all.
func (s *station) newest() (seq int64, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.done
}

// A newestAsker asks one of the servers for a newest answer, and gives up after a while.
type newestAsker func(q *LatestRequest, patience time.Duration) (seq int64, value int32, err error)

// inProcess asks by a call.
func (s *station) inProcess(q *LatestRequest, patience time.Duration) (seq int64, value int32, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a, err := s.scenes[s.at()].server.Latest(ctx, q)
	if err != nil {
		return 0, 0, err
	}
	defer a.Release()
	values, err := tensor.Values[int32](a.Outputs[0])
	return a.Frame.Seq, values[0], err
}

// overShiva returns a newestAsker with connections to both servers. One that gives up closes its
// connection.
func (s *station) overShiva() (ask newestAsker, closeAll func()) {
	var clients [2]*shiva.Client
	hangUp := func(at int) {
		if c := clients[at]; c != nil {
			c.Close()
			clients[at] = nil
		}
	}
	ask = func(q *LatestRequest, patience time.Duration) (seq int64, value int32, err error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		at := s.at()
		if clients[at] == nil {
			if clients[at], err = shiva.Dial(ctx, doorAddrs["tcp"],
				shiva.WithDialer(s.scenes[at].net.Dial)); err != nil {
				return 0, 0, err
			}
		}
		keys := map[string]any{"stream": q.Stream, "wait": q.Wait, "timeout_ms": q.Timeout.Milliseconds(), "id": s.name}
		if q.After != nil {
			keys["after"] = q.After.Seq
		}
		metadata, _ := json.Marshal(keys)
		m, err := clients[at].Do(ctx, &shiva.Message{Namespace: q.Name + "/latest", Metadata: metadata})
		if ctx.Err() != nil {
			hangUp(at)
		}
		if err != nil {
			return 0, 0, err
		}
		defer m.Release()
		var told struct {
			Seq int64
			ID  string
		}
		if err := json.Unmarshal(m.Metadata, &told); err != nil || told.ID != s.name {
			return 0, 0, fmt.Errorf("an answer for %q: %w", told.ID, err)
		}
		values, err := tensor.Values[int32](m.Tensors[0])
		return told.Seq, values[0], err
	}
	return ask, func() { hangUp(0); hangUp(1) }
}

// follow asks for each newer answer, and at last for the newest.
func (s *station) follow(ask newestAsker, random *rand.Rand) {
	for seen, at := int64(0), s.at(); ; {
		newest, done := s.newest()
		q := &LatestRequest{Name: "m", Stream: s.name, Wait: !done, Timeout: 5 * time.Second}
		if now := s.at(); now != at { // which knows nothing of the frames before
			at, q.After = now, nil
		} else if !done && seen > 0 {
			q.After = &Frame{Seq: seen}
		}
		patience := time.Hour
		if !done && random.IntN(20) == 0 {
			patience = time.Duration(1+random.IntN(1000)) * time.Millisecond
		}
		began := time.Now()
		seq, value, err := ask(q, patience)
		switch took := time.Since(began); {
		case took > 6*time.Second:
			s.t.Errorf("%s: %d, %v after %v", s.name, seq, err, took)
		case err != nil && done:
			s.t.Errorf("%s: its last frame, %d, is lost: %v", s.name, newest, err)
		case err != nil:
			time.Sleep(100 * time.Millisecond)
		case int64(value) != seq:
			s.t.Errorf("%s: frame %d has the outputs of %d", s.name, seq, value)
		case !done && seq <= seen, done && seq != newest:
			s.t.Errorf("%s: frame %d after %d, and the newest is %d (the camera has ended: %v)", s.name, seq, seen,
				newest, done)
		}
		if err != nil {
			s.errors.Add(1)
		} else {
			s.answers.Add(1)
			seen = seq
		}
		if done || s.t.Failed() {
			return
		}
	}
}
