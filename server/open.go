package server

import (
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/intake"
	"github.com/shivad/shivad/server/rest"
	"github.com/shivad/shivad/server/tcp"
	"github.com/shivad/shivad/shiva"
)

// The doors of clients and containers: what of a configuration each is opened with, and what it
// is given when that changes.

// openDoors opens those that have an address, and that of containers in any case.
func (s *Server) openDoors(c config.Config) (err error) {
	if err := s.containers.Listen(c.Containers); err != nil {
		return err
	}
	if c.TCP.Listen != "" {
		if s.door, err = tcp.Listen(tcp.Config{
			Addr: c.TCP.Listen, Gate: s.gate, Describe: s.predict.Describe, Pool: s.pool, Log: s.log, Metrics: s.metrics.Door("tcp"),
			Loops: c.TCP.Loops, Settings: tcpSettings(c),
		}); err != nil {
			return err
		}
	}
	if c.REST.Listen != "" {
		if s.rest, err = rest.Listen(rest.Config{
			Addr: c.REST.Listen, Predict: s.predict, Log: s.log, Metrics: s.metrics.Door("rest"), Settings: s.restSettings(c),
		}); err != nil {
			return err
		}
	}
	if g := c.GRPC; g.Listen != "" {
		if s.grpc, err = grpc.Listen(grpc.Config{
			Addr: g.Listen, Predict: s.predict, Log: s.log, Metrics: s.metrics.Door("grpc"), Streams: g.StreamsPerConnection,
			IdleTimeout: g.IdleTimeout, PingInterval: g.PingInterval, PingTimeout: g.PingTimeout, MinPing: g.MinPingInterval,
			Settings: s.grpcSettings(c),
		}); err != nil {
			return err
		}
	}
	return nil
}

// configureDoors gives the doors that are open what of a configuration can change meanwhile.
func (s *Server) configureDoors(c config.Config) {
	s.containers.Configure(c.Containers)
	if s.door != nil {
		s.door.Configure(tcpSettings(c))
	}
	if s.rest != nil {
		s.rest.Configure(s.restSettings(c))
	}
	if s.grpc != nil {
		s.grpc.Configure(s.grpcSettings(c))
	}
}

func tcpSettings(c config.Config) tcp.Settings {
	t, l := c.TCP, c.Limits
	return tcp.Settings{
		Connections: intake.Limits{Total: t.Connections, PerAddress: t.ConnectionsPerAddress, Loopback: c.Server.LimitLoopback}, InFlight: t.InFlightPerConnection,
		IdleTimeout: t.IdleTimeout, MessageTimeout: t.MessageTimeout,
		OutboundBytes: int(t.OutboundBytes), OutboundStall: t.StallTimeout,
		Resync: t.Resync, ResyncBytes: int(t.ResyncBytes),
		Limits: shiva.Limits{
			MessageBytes: int64(l.MessageBytes), MetadataBytes: int(l.MetadataBytes),
			Tensors: l.Tensors, Rank: l.Rank, JSONDepth: l.JSONDepth,
		},
	}
}

func (s *Server) restSettings(c config.Config) rest.Settings {
	r, l := c.REST, c.Limits
	return rest.Settings{
		Connections: intake.Limits{Total: r.Connections, PerAddress: r.ConnectionsPerAddress, Loopback: c.Server.LimitLoopback}, IdleTimeout: r.IdleTimeout,
		HeaderTimeout: r.HeaderTimeout, MessageTimeout: r.MessageTimeout, StallTimeout: r.StallTimeout, Origins: r.CORSOrigins,
		Memory: s.memory(c),
		Limits: rest.Limits{
			MessageBytes: int64(l.MessageBytes), MetadataBytes: int(l.MetadataBytes),
			Tensors: l.Tensors, Rank: l.Rank, JSONDepth: l.JSONDepth,
		},
	}
}

func (s *Server) grpcSettings(c config.Config) grpc.Settings {
	g, l := c.GRPC, c.Limits
	return grpc.Settings{
		Connections: intake.Limits{Total: g.Connections, PerAddress: g.ConnectionsPerAddress, Loopback: c.Server.LimitLoopback}, InFlight: g.InFlightPerStream,
		MessageTimeout: g.MessageTimeout, OutboundBytes: int(g.OutboundBytes), StallTimeout: g.StallTimeout,
		Memory: s.memory(c),
		Limits: grpc.Limits{
			MessageBytes: int(l.MessageBytes), MetadataBytes: int(l.MetadataBytes), Tensors: l.Tensors, Rank: l.Rank,
		},
	}
}

// memory is where doors that take compressed requests get that of requests.
func (s *Server) memory(c config.Config) gate.Memory {
	return gate.Memory{Pool: s.pool, Part: s.unpacked, Ratio: c.Limits.UnpackRatio}
}
