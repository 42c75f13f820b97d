package server

import (
	"crypto/tls"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/secure"
	"github.com/shivad/shivad/server/internal/wake"
)

// certificates holds the certificates of all doors. Any goroutine may use it.
type certificates struct {
	wall func() time.Time // the clock that decides whether certificates are valid
	log  *slog.Logger
	read atomic.Pointer[config.Secured] // nil before the first load
}

// of returns the TLS configuration of a door; nil if it has no TLS address.
func (cs *certificates) of(door string) *secure.Config { return cs.all()[door] }

func (cs *certificates) all() config.Secured {
	if p := cs.read.Load(); p != nil {
		return *p
	}
	return nil
}

// load reads the files that a configuration names. After an error nothing has changed.
func (cs *certificates) load(c config.Config) error {
	old := cs.all()
	read, err := c.Secure(old, cs.wall)
	if err != nil {
		return err
	}
	for door, now := range read {
		if old != nil && old[door] != now {
			cs.log.Info("certificates were read again", "door", door, "the first expires on", now.Until.UTC().Format(time.RFC3339))
		}
	}
	cs.read.Store(&read)
	cs.warn()
	return nil
}

// demanded reports whether a listener of a door accepts only clients that show a certificate.
func (cs *certificates) demanded(a net.Addr, door string) bool {
	return a.Network() == secure.Network && cs.of(door).ClientAuth == tls.RequireAndVerifyClientCert
}

// expiring returns, by door, the expiry dates of certificates that expire within two weeks or have
// expired.
func (cs *certificates) expiring() map[string]time.Time {
	const soon = 14 * 24 * time.Hour
	doors := map[string]time.Time{}
	for door, now := range cs.all() {
		if now.Until.Sub(cs.wall()) < soon {
			doors[door] = now.Until.UTC()
		}
	}
	return doors
}

// warn logs the certificates that are expiring.
func (cs *certificates) warn() {
	doors := cs.expiring()
	for _, door := range slices.Sorted(maps.Keys(doors)) {
		text := "a certificate expires soon"
		if !doors[door].After(cs.wall()) {
			text = "a certificate has expired: clients refuse it"
		}
		cs.log.Warn(text, "door", door, "on", doors[door].Format(time.RFC3339))
	}
}

// watch warns at intervals until stop is closed.
func (cs *certificates) watch(every time.Duration, stop <-chan struct{}) {
	for range wake.Every(every, stop) {
		cs.warn()
	}
}
