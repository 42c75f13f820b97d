package server

import (
	"net"
	"slices"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/predict"
)

// warnOfStrangers says which of the listeners that ask for no password can be reached from other
// machines. It is called by Start, when all are open.
func (s *Server) warnOfStrangers() {
	warn := func(what, setting string, addrs ...net.Addr) {
		for _, a := range addrs {
			if !predict.Local(a) {
				s.log.Warn("a listener without authentication can be reached from other machines", "listener", a.String(), "they can", what, "setting", setting)
			}
		}
	}
	if s.admin != nil {
		warn("change and stop everything", "admin.listen", s.admin.Addr())
	}
	l := s.containers.Listener()
	warn("serve and replace models", "containers.listen", slices.Concat(l.Addrs(), l.Others())...)
	if s.settings.Now().Server.Repository != config.RepositoryAll {
		return
	}
	for _, d := range s.doors {
		if d.name != "tcp" {
			warn("load and unload models", "server.repository", d.listener.Addrs()...)
		}
	}
}
