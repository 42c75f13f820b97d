package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/shivad/shivad/bench/load"
)

const (
	recoverFrom   = 5.0 // times the capacity, for recoverAfter
	recoverTo     = 0.8
	recoverAfter  = 2 * time.Second
	recoverWithin = time.Second
	recoverWatch  = 4 * time.Second
	recoverSlots  = 4    // in a row ...
	recoverShare  = 0.98 // ... with this share in time mean recovery; also the share after it
)

// recovery drops the load from five times the capacity to 0.8 of it, and measures the time until
// requests are answered in time again.
func (r *rig) recovery(ctx context.Context, capacity float64, seed uint64) (broken []string, err error) {
	if err := r.set(ctx,
		map[string]string{"strategy": "deadline", "objective": r.profile.SLO.String(), "shed": "true"}); err != nil {
		return nil, err
	}
	// Two loads at once, of which one stops.
	var steady, surge *load.Result
	var surgeErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		surge, surgeErr = r.offer(ctx, load.Config{
			Conns: connections, Rate: (recoverFrom - recoverTo) * capacity, Seed: seed + 1, Warmup: warmup,
			Duration: recoverAfter,
		}, r.profile.SLO)
	})
	steady, err = r.offer(ctx, load.Config{
		Conns: connections, Rate: recoverTo * capacity, Seed: seed, Warmup: warmup,
		Duration: recoverAfter + recoverWatch, Within: r.profile.SLO + grace,
	}, r.profile.SLO)
	wg.Wait()
	if err != nil {
		return nil, err
	}
	if surgeErr != nil {
		return nil, surgeErr
	}
	fell := surge.Began.Add(surge.Elapsed).Sub(steady.Began)
	before := share(steady.Slots[:int(fell/load.SlotLength)])
	after := steady.Slots[int(fell/load.SlotLength):]
	n := 0
	for n+recoverSlots < len(after) && share(after[n:n+recoverSlots]) < recoverShare {
		n++
	}
	took := time.Duration(n) * load.SlotLength
	rest := share(after[int(recoverWithin/load.SlotLength):])
	fmt.Printf("the load falls from %g times the capacity to %g: %.0f %% in time before; again %g %% after %v; %.1f %% from %v on\n",
		recoverFrom, recoverTo, 100*before, 100*recoverShare, took, 100*rest, recoverWithin)
	if took > recoverWithin {
		broken = append(broken,
			fmt.Sprintf("on the wire: %v after the load has fallen fewer than %g of the requests are answered in time, want recovery within %v",
				took, recoverShare, recoverWithin))
	}
	if rest < recoverShare {
		broken = append(broken,
			fmt.Sprintf("on the wire: from %v after the load has fallen on %.3f of the requests are answered in time, want %g",
				recoverWithin, rest, recoverShare))
	}
	return broken, nil
}

// share is the share of the requests of the slots with a good answer.
func share(slots []load.Slot) float64 {
	due, good := 0, 0
	for _, s := range slots {
		due += s.Due
		good += s.Good
	}
	return float64(good) / float64(max(due, 1))
}
