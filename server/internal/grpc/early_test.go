package grpc

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva/budgettest"
)

// A client that has used up a rate is refused before the message of a call, in the same words as
// after it, and nothing remains of the call. Calls other than inference are answered.
func TestRefusedEarly(t *testing.T) {
	var who access.Identities
	r := newRig(t, func(c *Config, _ *int64) { c.Identities = &who })
	limits := access.Limits{}
	limits.Of[access.BytesPerSecond] = 1 << 10
	who.Replace([]access.Declaration{{Name: access.Anonymous, May: []string{"infer:*"}, Quota: limits}})
	r.sized("m", 4)
	if _, err := r.client.ModelInfer(t.Context(), floats("m", make([]float32, 1<<16)...)); err == nil {
		t.Fatal("a row of too many numbers was answered")
	} // and paid for: four minutes of the rate are spent
	for _, what := range []string{"by its message", "by its headers"} {
		_, err := r.client.ModelInfer(t.Context(), floats("m", 4))
		failed(t, err, codes.ResourceExhausted, "Overloaded", `identity "anonymous" is over its quota, bytes_per_second = 1KiB; try again in 4m`)
		retry := false
		for _, d := range status.Convert(err).Details() {
			info, ok := d.(*errdetails.RetryInfo)
			retry = retry || ok && info.RetryDelay.AsDuration() > 3*time.Minute
		}
		if !retry {
			t.Errorf("a call that is refused %s is not told when to come again: %v", what, err)
		}
	}
	if live, err := r.client.ServerLive(t.Context(), new(pb.ServerLiveRequest)); err != nil || !live.Live {
		t.Errorf("ServerLive: %v, %v", live, err)
	}

	// None of these has a message, for which the handler would wait.
	const calls, rounds, deadline = 100, 60, 90 * time.Second
	c, stream, refused := r.caller(), uint32(1), 0
	round := func() {
		for range calls {
			c.call(stream, "ModelInfer", deadline, nil, false)
			stream += 2
		}
		refused += c.ends(0)["8"]
	}
	c.call(stream, "ModelInfer", deadline, floats("m", 4), true)
	stream += 2
	budgettest.Until(t, "the first to be refused", func() bool {
		refused += c.ends(0)["8"]
		return refused == 1
	})
	round()
	before := heap()
	for range rounds {
		round()
	}
	if left := (heap() - before) / (calls * rounds); left > 100 {
		t.Errorf("%d bytes are left of each call that was refused, for as long as its deadline", left)
	}
	const all = 1 + calls*(1+rounds)
	if refused != all {
		t.Errorf("%d of %d calls were refused", refused, all)
	}
	u := who.Usage()[access.Anonymous]
	if n := metric(r, `shivad_door_requests_total{door="grpc",outcome="overloaded"} `); n != all+2 ||
		u.Refused[access.BytesPerSecond] != all+2 || u.Requests != all+3 {
		t.Errorf("of %d refusals the door has counted %d, and the identity %d of %d requests", all+2, n,
			u.Refused[access.BytesPerSecond], u.Requests)
	}
}

// Calls of strangers are refused by their headers: no handler begins, nor waits for its turn.
func TestStrangersBeginNothing(t *testing.T) {
	var who access.Identities
	who.Replace([]access.Declaration{{Name: "a", Tokens: []string{strings.Repeat("0", 64)}, May: []string{"infer:*"}}})
	inBubble(t, func(t *testing.T, r *rig) {
		c := r.caller()
		c.ends(0)
		r.credits(func(k *cancels) { k.credit = -10 * cancelRate }) // its calls wait for ten seconds
		began := time.Now()
		methods := []string{"ModelInfer", "ModelStreamInfer", "ModelMetadata", "RepositoryModelLoad", "SystemSharedMemoryRegister"}
		for i, method := range methods {
			c.call(uint32(2*i+1), method, time.Minute, nil, false)
		}
		if ends := c.ends(0); ends["16"] != len(methods) || time.Since(began) > time.Second {
			t.Errorf("calls of strangers end with %v after %v, expected %d of 16 at once", ends, time.Since(began),
				len(methods))
		}
	}, func(c *Config, _ *int64) { c.Identities = &who })
}

// A client that is read in turns may send large messages at its rate: no message is read in turns.
func TestLargeMessagesInTurns(t *testing.T) {
	const rate, bytes = 10, 2 << 20 // 64 reads
	var who access.Identities
	inBubble(t, func(t *testing.T, r *rig) {
		r.sized("m", 4)
		small, large := floats("m", 4), floats("m", make([]float32, bytes/4)...)
		refused := 0
		for range 100 {
			if _, err := r.client.ModelInfer(t.Context(), small); status.Code(err) == codes.ResourceExhausted {
				refused++
			}
		}
		if refused < 50 {
			t.Fatalf("%d of 100 are refused", refused)
		}
		began, read := time.Now(), 0
		for time.Since(began) < 2*time.Second {
			switch _, err := r.client.ModelInfer(t.Context(), large); status.Code(err) {
			case codes.ResourceExhausted:
			case codes.InvalidArgument: // the model takes one number
				read++
			default:
				t.Fatal(err)
			}
		}
		if took := time.Since(began); float64(read) < took.Seconds()*rate/2 {
			t.Errorf("%d large messages were read in %v, at a rate of %d a second", read, took, rate)
		}
	}, func(c *Config, _ *int64) {
		limits := access.Limits{}
		limits.Of[access.RequestsPerSecond] = rate
		who.Replace([]access.Declaration{{Name: access.Anonymous, May: []string{"infer:*"}, Quota: limits}})
		c.Identities = &who
	})
}

// heap returns the size of the live heap, in bytes.
func heap() int {
	runtime.GC()
	runtime.GC() // frees what the pools keep
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
