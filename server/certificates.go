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
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/wake"
)

// certificates holds the certificates of all doors. Any goroutine may use it.
type certificates struct {
	wallClock func() time.Time // the clock that decides whether certificates are valid
	log       *slog.Logger
	current   atomic.Pointer[map[string]*listen.TLS] // by door; nil before the first load
}

// config returns the TLS configuration of a door; nil if it has no TLS address.
func (cs *certificates) config(door string) *listen.TLS { return cs.configs()[door] }

func (cs *certificates) configs() map[string]*listen.TLS {
	if p := cs.current.Load(); p != nil {
		return *p
	}
	return nil
}

// load reads the files that a configuration names. After an error nothing has changed.
func (cs *certificates) load(c config.Config) error {
	old := cs.configs()
	read, err := c.Secure(old, cs.wallClock)
	if err != nil {
		return err
	}
	for door, now := range read {
		if old != nil && old[door] != now {
			cs.log.Info("certificates reloaded", "door", door, "the first expires on",
				now.Until.UTC().Format(time.RFC3339))
		}
	}
	cs.current.Store(&read)
	cs.warn()
	return nil
}

// requiresClientCertificate reports whether a listener of a door accepts only clients that show a
// certificate.
func (cs *certificates) requiresClientCertificate(a net.Addr, door string) bool {
	return a.Network() == listen.TLSNetwork && cs.config(door).ClientAuth == tls.RequireAndVerifyClientCert
}

// expiring returns, by door, the expiry dates of certificates that expire within two weeks or have
// expired.
func (cs *certificates) expiring() map[string]time.Time {
	doors := map[string]time.Time{}
	for door, now := range cs.configs() {
		if now.Expiring(cs.wallClock()) {
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
		if !doors[door].After(cs.wallClock()) {
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
