package load

import (
	"context"
	"errors"
	"time"
)

// MaxClients is the largest number of clients that SearchClients tries.
const MaxClients = 16384

// ErrNoClients is the error of a search that found that not even one client is served.
var ErrNoClients = errors.New("load: not even one client meets the target")

// SearchClients looks for the largest number of clients in a closed loop whose requests keep a
// promise, as Search looks for a rate: it doubles the number from one on until a trial breaks the
// promise, bisects, tries again what broke it, and confirms the result by a trial of full length.
func SearchClients(ctx context.Context, p Promise, full time.Duration,
	try func(ctx context.Context, clients int, length time.Duration, last bool) (Trial, error)) (
	best int, trials []Trial, err error) {
	s := search{promise: p}
	defer func() { trials = s.trials }()
	each := 1.0 // requests per second of a client
	holds := func(clients int, last bool) (bool, error) {
		length := full
		if !last {
			length = lengthFor(p, each*float64(clients), full)
		}
		ok, err := s.holds(ctx, last, func() (Trial, error) { return try(ctx, clients, length, last) })
		if n := len(s.trials); err == nil && s.trials[n-1].Rate > 0 {
			each = s.trials[n-1].Rate / float64(clients)
		}
		return ok, err
	}
	low, high := 0, 1
	for again := false; ; again = true { // a disturbance may have hit both trials of a number
		for high <= MaxClients {
			ok, err := holds(high, false)
			if err != nil {
				return 0, nil, err
			}
			if !ok {
				break
			}
			low, high, again = high, 2*high, false
		}
		if again || high > MaxClients {
			break
		}
		for high-low > max(1, int((precision-1)*float64(low))) {
			middle := (low + high) / 2
			ok, err := holds(middle, false)
			if err != nil {
				return 0, nil, err
			}
			if ok {
				low = middle
			} else {
				high = middle
			}
		}
	}
	for range maxConfirmations {
		if low < 1 {
			break
		}
		ok, err := holds(low, true)
		if err != nil {
			return 0, nil, err
		}
		if ok {
			return low, nil, nil
		}
		low = min(low-1, int(float64(low)/precision))
	}
	return 0, nil, ErrNoClients
}
