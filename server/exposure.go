package server

import (
	"net"
	"slices"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/predict"
)

// access is whom the admin door lets in: the host that it listens on is a name of it, too.
func (s *Server) access() admin.Access {
	c := s.settings.Load().Admin
	a := admin.Access{Hosts: c.Hosts, Profiling: c.Profiling, ImportBytes: int64(c.ImportBytes)}
	if host, _, err := net.SplitHostPort(c.Listen); err == nil && host != "" {
		a.Hosts = append(slices.Clip(a.Hosts), host)
	}
	return a
}

// warnOfStrangers says which of the listeners that ask for no password can be reached from other machines. It is called by
// Start, with opening held.
func (s *Server) warnOfStrangers() {
	warn := func(what, setting string, addrs ...net.Addr) {
		for _, a := range addrs {
			if !predict.Local(a) {
				s.log.Warn("others than this machine can reach a listener that asks for no password", "listener", a.String(), "they can", what, "setting", setting)
			}
		}
	}
	if s.admin != nil {
		warn("change and stop everything", "admin.listen", s.admin.Addr())
	}
	if s.containers != nil {
		warn("serve and replace models", "containers.listen", slices.Concat(s.containers.Addrs(), s.containers.Others())...)
	}
	if s.settings.Load().Server.Repository != "all" {
		return
	}
	const what, setting = "load and unload models", "server.repository"
	if s.rest != nil {
		warn(what, setting, s.rest.Addr())
	}
	if s.grpc != nil {
		warn(what, setting, s.grpc.Addr())
	}
}
