package server

import (
	"maps"
	"net"
	"slices"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva/backoff"
)

// warnOfStrangers logs which listeners clients without a token can reach from other machines, and
// what they may do there. If identities are declared, that is what access.Anonymous may do,
// except asking models: an operator has granted that on purpose. Start calls it when all doors are
// open.
func (s *Server) warnOfStrangers() {
	warn := func(what, door, setting string, addrs ...net.Addr) {
		for _, a := range addrs {
			if !predict.Local(a) && !s.certificates.requiresClientCertificate(a, door) {
				s.log.Warn("a listener without authentication can be reached from other machines", "listener",
					a.String(), "they can", what, "setting", setting)
			}
		}
	}
	strangers := s.identities.Strangers()
	if s.admin != nil && strangers.May(access.AdminWrite, "") {
		warn("change the configuration and stop processes", "admin", "admin.listen", s.admin.Addr())
	}
	if strangers.MayAny(access.Serve) {
		warn("serve and replace models", "containers", "containers.listen", s.containers.Listener().Addrs()...)
	}
	for _, d := range s.doors {
		if !s.identities.Declared() {
			warn("ask every model: no [[identity]] is configured", d.name, d.name+".listen", d.listener.Addrs()...)
		}
		loads := d.name != "tcp" && (d.name != "frigate" || s.cfg.Frigate.ModelDirectory != "")
		if loads && strangers.MayAny(access.Load) && s.settings.Now().Server.Repository == config.RepositoryAll {
			warn("load and unload models", d.name, "server.repository", d.listener.Addrs()...)
		}
	}
}

// patternsAfter is the time after the start by which containers should have registered.
const patternsAfter = time.Minute

// watchPatterns is warnOfPatterns for the configuration at the start, after patternsAfter.
func (s *Server) watchPatterns() {
	if backoff.Wait(patternsAfter, s.stopping) {
		s.warnOfPatterns(*s.settings.File())
	}
}

// warnOfPatterns logs rights whose patterns match no model, application or pipeline, neither an
// existing one nor one that the configuration names: a pattern may be misspelled, and its identity
// would be refused.
func (s *Server) warnOfPatterns(c config.Config) {
	if !s.identities.Declared() {
		return
	}
	names := slices.AppendSeq(s.gate.Names(), maps.Keys(c.Models))
	names = append(names, s.processes.Models()...)
	for _, p := range c.Supervised {
		names = append(names, p.Model)
	}
	unmatched := s.identities.Unmatched(names)
	for _, name := range slices.Sorted(maps.Keys(unmatched)) {
		s.log.Warn("an identity has rights that match no existing or configured model, application or pipeline",
			"identity", name, "rights", unmatched[name])
	}
}
