package containers_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/containers/internal/arena"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

const mib = 1 << 20

var sharingID = scheduler.ModelID{Name: "sharing", Version: "1"}

// serveSharing runs, in a process of its own, a container that answers with its inputs, each byte
// plus one. It never answers a first byte of 255, and answers one of 254 after a second.
func serveSharing() {
	spec := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1}}}
	err := container.Serve(context.Background(), container.Model{
		Name: "sharing", Version: "1", Batched: new(true), Inputs: spec, Outputs: spec, Slots: 2,
		Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			x := b.Inputs[0]
			switch x.Data[0] {
			case 255:
				select {}
			case 254:
				time.Sleep(time.Second)
			}
			y, err := b.Output(0, x.Shape[1])
			if err != nil {
				return nil, err
			}
			for i, v := range x.Data {
				y.Data[i] = v + 1
			}
			return []tensor.Tensor{y}, nil
		},
	}, os.Getenv(benchAddrEnv))
	fmt.Fprintln(os.Stderr, err)
}

// serveShared runs, in a process of its own, a server with a container, until it is killed.
func serveShared() {
	a := arena.New(64*mib, func(err error) { fmt.Fprintln(os.Stderr, err) })
	pool := tensor.NewPoolFrom(a, 64*mib)
	sched, err := scheduler.New(scheduler.Config{Pool: pool})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	l, err := containers.Listen(containers.Config{Addrs: []string{os.Getenv(benchAddrEnv)}, Scheduler: sched,
		Pool: pool, Arena: a})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	for {
		time.Sleep(10 * time.Millisecond)
		m, ok := sched.Model(sharingID)
		if !ok || m.Replicas() == 0 {
			continue
		}
		b, err := pool.Get(mib)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		q := &scheduler.Request{Model: m, Rows: 1, Deadline: time.Now().Add(time.Minute),
			Inputs: []tensor.Tensor{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{1, mib}, Data: b.Bytes(),
				Buf: b}}}
		clear(b.Bytes())
		if err := sched.Infer(context.Background(), q); err == nil {
			q.Outputs[0].Release()
		}
		b.Release()
		for _, s := range l.Sessions() {
			fmt.Println(s.Arena)
		}
	}
}
