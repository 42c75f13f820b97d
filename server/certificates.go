package server

import (
	"maps"
	"slices"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/secure"
)

// tls is that of a door; nil of one without an address of TLS.
func (s *Server) tls(door string) *secure.Config { return (*s.secured.Load())[door] }

// secure reads the doors' certificates. After an error they are what they were.
func (s *Server) secure(c config.Config) error {
	var old config.Secured
	if p := s.secured.Load(); p != nil {
		old = *p
	}
	read, err := c.Secure(old, s.around.wall)
	if err != nil {
		return err
	}
	for door, now := range read {
		if old != nil && old[door] != now {
			s.log.Info("certificates were read again", "door", door, "the first expires on", now.Until.UTC().Format(time.RFC3339))
		}
	}
	s.secured.Store(&read)
	s.warnOfCertificates()
	return nil
}

// expiring are the doors whose certificates expire within two weeks, or have, and when.
func (s *Server) expiring() map[string]time.Time {
	const soon = 14 * 24 * time.Hour
	doors := map[string]time.Time{}
	if p := s.secured.Load(); p != nil {
		for door, now := range *p {
			if now.Until.Sub(s.around.wall()) < soon {
				doors[door] = now.Until.UTC()
			}
		}
	}
	return doors
}

// warnOfCertificates has the log say which expire.
func (s *Server) warnOfCertificates() {
	doors := s.expiring()
	for _, door := range slices.Sorted(maps.Keys(doors)) {
		text := "a certificate expires soon"
		if !doors[door].After(s.around.wall()) {
			text = "a certificate has expired: clients refuse it"
		}
		s.log.Warn(text, "door", door, "on", doors[door].Format(time.RFC3339))
	}
}

// watchCertificates warns of them again and again, until the server stops.
func (s *Server) watchCertificates(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-s.stopping:
			return
		case <-ticker.C:
			s.warnOfCertificates()
		}
	}
}
