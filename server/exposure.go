package server

import (
	"crypto/tls"
	"net"
	"slices"
	"strings"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/server/internal/secure"
)

// warnOfStrangers says which of the listeners that ask for no password can be reached from other
// machines. It is called by Start, when all are open.
func (s *Server) warnOfStrangers() {
	warn := func(what, setting string, addrs ...net.Addr) {
		for _, a := range addrs {
			if !predict.Local(a) && !s.authenticates(a, setting) {
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

// authenticates tells whether the listener of that setting wants a certificate of every client.
func (s *Server) authenticates(a net.Addr, setting string) bool {
	door, _, _ := strings.Cut(setting, ".")
	_, encrypted := a.(secure.Addr)
	return encrypted && s.tls(door).ClientAuth == tls.RequireAndVerifyClientCert
}
