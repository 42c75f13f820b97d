package server

import (
	"maps"
	"net"
	"slices"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/identity"
	"github.com/shivad/shivad/server/internal/predict"
)

// warnOfStrangers says which of the listeners can be reached from other machines by whoever shows
// no token, and for what. Where identities are declared these are the rights of identity.Anonymous,
// of which those to ask models are nothing to warn of: somebody has written them down. It is called
// by Start, when all are open.
func (s *Server) warnOfStrangers() {
	warn := func(what, door, setting string, addrs ...net.Addr) {
		for _, a := range addrs {
			if !predict.Local(a) && !s.certificates.demanded(a, door) {
				s.log.Warn("a listener without authentication can be reached from other machines", "listener", a.String(), "they can", what, "setting", setting)
			}
		}
	}
	strangers := s.identities.Strangers()
	if s.admin != nil && strangers.May(identity.AdminWrite, "") {
		warn("change and stop everything", "admin", "admin.listen", s.admin.Addr())
	}
	if strangers.MayAny(identity.Serve) {
		warn("serve and replace models", "containers", "containers.listen", s.containers.Listener().Addrs()...)
	}
	for _, d := range s.doors {
		if !s.identities.Declared() {
			warn("ask every model: no [[identity]] is configured", d.name, d.name+".listen", d.listener.Addrs()...)
		}
		loads := d.name != "tcp" && (d.name != "frigate" || s.cfg.Frigate.ModelDirectory != "")
		if loads && strangers.MayAny(identity.Load) && s.settings.Now().Server.Repository == config.RepositoryAll {
			warn("load and unload models", d.name, "server.repository", d.listener.Addrs()...)
		}
	}
}

// patternsAfter is how long after the start containers should have registered.
const patternsAfter = time.Minute

// watchPatterns is warnOfPatterns for the configuration of the start.
func (s *Server) watchPatterns() {
	select {
	case <-time.After(patternsAfter):
		s.warnOfPatterns(*s.settings.File())
	case <-s.stopping:
	}
}

// warnOfPatterns says which rights are of no model or application that there is or that the
// configuration names: a letter may be wrong, and whoever has them is refused.
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
		s.log.Warn("an identity has rights that match no model or application that there is", "identity", name, "rights", unmatched[name])
	}
}
