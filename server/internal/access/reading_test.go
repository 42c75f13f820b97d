package access

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A sender is a client that sends messages of one size on several connections as fast as they are
// read, and never looks at an answer.
type sender struct {
	payers  Payers
	conns   int
	message int64
	pause   time.Duration // after each message

	mu             sync.Mutex
	read, admitted int64
	waited         time.Duration // of all connections together
}

// send sends for that long, to a reader that takes 400 MiB/s of each connection.
func (s *sender) send(d time.Duration) {
	const piece, takes = 64 << 10, time.Second / 6400
	end := time.Now().Add(d)
	one := func() {
		var unfinished int64
		for time.Now().Before(end) {
			n := min(piece, s.message-unfinished)
			unfinished += n
			net, ended := n, unfinished == s.message
			if ended {
				var u Use
				if u.Begin(s.payers, s.message, time.Now()) == nil {
					net -= s.message
				}
				u.End()
				unfinished = 0
			}
			began := time.Now()
			for pause := s.payers.Read(net, unfinished, time.Now()); pause > 0; pause = s.payers.Read(0, unfinished,
				time.Now()) {
				time.Sleep(pause)
			}
			s.mu.Lock()
			s.read, s.admitted, s.waited = s.read+n, s.admitted+n-net, s.waited+time.Since(began)
			s.mu.Unlock()
			time.Sleep(takes)
			if ended {
				time.Sleep(s.pause)
			}
		}
	}
	var all sync.WaitGroup
	for range s.conns {
		all.Go(one)
	}
	all.Wait()
}

// A client that sends more than it may is read at twice its rate at most, whatever refuses its
// messages and on however many connections they come, and gets its rate.
func TestReadingOverTheRate(t *testing.T) {
	const rate, seconds = 1 << 20, 30
	both := only(BytesPerSecond, rate)
	both.Of[RequestsPerSecond] = 1
	short := only(BytesPerSecond, rate)
	short.Burst = 100 * time.Millisecond
	for _, c := range []struct {
		name    string
		limits  Limits
		conns   int
		message int64
		least   int64 // admitted
	}{
		{"images", only(BytesPerSecond, rate), 1, 1 << 20, seconds * rate * 9 / 10},
		{"small messages", only(BytesPerSecond, rate), 1, 8 << 10, seconds * rate * 9 / 10},
		{"images, a short burst", short, 1, 1 << 20, seconds * rate * 9 / 10},
		{"images on 8 connections", only(BytesPerSecond, rate), 8, 1 << 20, seconds * rate * 9 / 10},
		{"images on 64 connections", only(BytesPerSecond, rate), 64, 1 << 20, seconds * rate / 2},
		{"large batches", only(BytesPerSecond, rate), 1, 8 << 20, seconds * rate * 9 / 10},
		{"images, refused for their number", both, 1, 4 << 20, seconds * rate / 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := sender{payers: Payers{payer(c.limits)}, conns: c.conns, message: c.message}
				s.payers[0].began = time.Now()
				s.send(seconds * time.Second)
				most := int64(2*seconds+4)*rate + int64(c.conns+2)*c.message
				if s.read > most || s.admitted < c.least {
					t.Errorf("%d MiB were read and %d admitted in %d s at %d MiB/s; want %d at most and %d at least",
						s.read>>20, s.admitted>>20, seconds, rate>>20, most>>20, c.least>>20)
				}
			})
		})
	}
}

// A client within its rate never waits, however large its messages are.
func TestReadingWithinTheRate(t *testing.T) {
	const rate = 1 << 20
	for _, c := range []struct {
		name    string
		conns   int
		message int64
		pause   time.Duration
	}{
		{"images", 1, 1 << 20, time.Second},
		{"large batches", 1, 20 << 20, 20 * time.Second},
		{"on four connections", 4, 256 << 10, time.Second},
		{"small messages", 1, 4 << 10, time.Second / 256},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := sender{payers: Payers{payer(only(BytesPerSecond, rate))}, conns: c.conns, message: c.message,
					pause: c.pause}
				s.payers[0].began = time.Now()
				s.send(60 * time.Second)
				if s.waited > 0 || s.admitted < s.read-c.message*int64(c.conns) {
					t.Errorf("it waited %v; %d bytes were read and %d admitted", s.waited, s.read, s.admitted)
				}
			})
		})
	}
}

// A message that will be refused is read at the rate, and holds up what follows for no longer than
// its own bytes.
func TestReadingWhatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate = 1 << 20
		s := sender{payers: Payers{payer(only(BytesPerSecond, rate))}, conns: 1, message: 100 << 20}
		s.send(time.Second / 2) // of which it has to pay 99 s
		s.message = 20 << 20
		if s.send(time.Second); s.waited < time.Second/2 || s.read > 106<<20 {
			t.Errorf("%d MiB were read in a second, with a wait of %v", s.read>>20-100, s.waited)
		}
		s.message, s.waited = 100, 0
		if s.send(time.Millisecond); s.waited > time.Second/10 {
			t.Errorf("a small message waits %v", s.waited)
		}
	})
}

// Who was over the rate is read at full speed as soon as the rate has something left, and at once
// without a quota.
func TestReadingAfterTheExcess(t *testing.T) {
	const rate = 1 << 20
	for name, pardon := range map[string]func(a *Account){
		"paid":      func(*Account) { time.Sleep(15 * time.Second) },
		"unlimited": func(a *Account) { a.limit(nil) },
		"changed":   func(a *Account) { l := only(BytesPerSecond, 2*rate); a.limit(&l) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := payer(only(BytesPerSecond, rate))
				s := sender{payers: Payers{a}, conns: 3, message: 1 << 20}
				if s.payers.Read(30*rate, 0, time.Now()); a.idle(time.Now()) {
					t.Error("its debt would be forgotten")
				}
				s.send(20 * time.Second)
				if s.waited == 0 {
					t.Error("it never waited")
				}
				s.payers.Read(rate, 0, time.Now())
				pardon(a)
				s = sender{payers: s.payers, conns: 1, message: 5 << 20}
				if s.send(time.Second / 100); s.waited > 0 || s.read == 0 {
					t.Errorf("%d bytes were read, with a wait of %v", s.read, s.waited)
				}
			})
		})
	}
}
