package server

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/frigate"
	"github.com/shivad/shivad/server/grpc"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/identity"
	"github.com/shivad/shivad/server/internal/intake"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/server/rest"
	"github.com/shivad/shivad/server/tcp"
)

// The doors of clients and containers: what of a configuration each is opened with, and what it
// is given when that changes.

// A door is one that clients have, and that is open.
type door struct {
	listener  interface{ Addrs() []net.Addr } // *tcp.Door, *rest.Door, *grpc.Door, *frigate.Door
	name      string                          // as metrics and logs have it
	configure func(config.Config)
	shutdown  func(context.Context) error
	failed    <-chan error // nil of one that goes on until it is shut
}

// openDoors opens those that have an address, and that of containers in any case.
func (s *Server) openDoors(c config.Config) error {
	s.regions.Configure(regionSettings(c))
	s.addresses.Configure(c.Limits.AddressQuota(), c.Server.LimitLoopback)
	if err := s.containers.Listen(c.Containers); err != nil {
		return err
	}
	if len(c.TCP.Listen) > 0 {
		d, err := tcp.Listen(tcp.Config{
			Addrs: c.TCP.Listen, Access: c.TCP.Access(), Open: s.around.open, Gate: s.gate, Describe: s.describe, Identities: &s.identities, Addresses: &s.addresses, Regions: s.regions, Pool: s.pool, Log: s.log, Metrics: s.metrics.Door("tcp"),
			Loops: c.TCP.Loops, Settings: s.tcpSettings(c),
		})
		if err != nil {
			return err
		}
		s.tcp.Store(d)
		s.doors = append(s.doors, door{d, "tcp", func(c config.Config) { d.Configure(s.tcpSettings(c)) }, d.Shutdown, nil})
	}
	if len(c.REST.Listen) > 0 {
		d, err := rest.Listen(rest.Config{
			Addrs: c.REST.Listen, Access: c.REST.Access(), Open: s.around.open, Predict: s.predict, Identities: &s.identities, Addresses: &s.addresses, Log: s.log, Metrics: s.metrics.Door("rest"), Settings: s.restSettings(c),
		})
		if err != nil {
			return err
		}
		s.doors = append(s.doors, door{d, "rest", func(c config.Config) { d.Configure(s.restSettings(c)) }, d.Shutdown, d.Failed()})
	}
	if g := c.GRPC; len(g.Listen) > 0 {
		d, err := grpc.Listen(grpc.Config{
			Addrs: g.Listen, Access: g.Access(), Open: s.around.open, Predict: s.predict, Identities: &s.identities, Addresses: &s.addresses, Log: s.log, Metrics: s.metrics.Door("grpc"), Needed: s.demand.Needed, Streams: g.StreamsPerConnection,
			IdleTimeout: g.IdleTimeout, PingInterval: g.PingInterval, PingTimeout: g.PingTimeout, MinPing: g.MinPingInterval,
			Settings: s.grpcSettings(c),
		})
		if err != nil {
			return err
		}
		shutdown := func(ctx context.Context) error {
			d.Shutdown(ctx)
			return nil
		}
		s.doors = append(s.doors, door{d, "grpc", func(c config.Config) { d.Configure(s.grpcSettings(c)) }, shutdown, d.Failed()})
	}
	if f := c.Frigate; len(f.Listen) > 0 {
		d, err := frigate.Listen(frigate.Config{
			Addrs: f.Listen, Access: f.Access(), Open: s.around.open, Predict: s.predict, Identities: &s.identities, Addresses: &s.addresses, Trail: s.trail, Pool: s.pool, Log: s.log, Metrics: s.metrics.Door("frigate"),
			ModelDirectory: f.ModelDirectory, Settings: s.frigateSettings(c),
		})
		if err != nil {
			return err
		}
		s.doors = append(s.doors, door{d, "frigate", func(c config.Config) { d.Configure(s.frigateSettings(c)) }, d.Shutdown, nil})
	}
	return nil
}

// describe answers a path of the Predict Protocol for an identity.
func (s *Server) describe(who *identity.Identity, path string, onlyReady bool) (answer []byte, ok bool, err error) {
	return s.predict.As(who).Describe(path, onlyReady)
}

// addrs are where the door of that name listens; nil if it is left out.
func (s *Server) addrs(name string) []net.Addr {
	for _, d := range s.doors {
		if d.name == name {
			return d.listener.Addrs()
		}
	}
	return nil
}

// configureDoors gives the doors that are open what of a configuration can change meanwhile.
func (s *Server) configureDoors(c config.Config) {
	s.regions.Configure(regionSettings(c))
	s.addresses.Configure(c.Limits.AddressQuota(), c.Server.LimitLoopback)
	s.containers.Configure(c.Containers)
	for _, d := range s.doors {
		d.configure(c)
	}
}

// shutDoors lets the last answers leave, through all doors at the same time. Clients that do not
// take theirs are cut off in the end, which is no failure of the server.
func (s *Server) shutDoors(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	faults := make([]error, len(s.doors))
	var all sync.WaitGroup
	for i, d := range s.doors {
		all.Go(func() {
			if faults[i] = d.shutdown(ctx); errors.Is(faults[i], context.DeadlineExceeded) {
				s.log.Warn("clients that did not take their answers were cut off", "door", d.name)
				faults[i] = nil
			}
		})
	}
	all.Wait()
	return errors.Join(faults...)
}

func (s *Server) tcpSettings(c config.Config) tcp.Settings {
	t := c.TCP
	return tcp.Settings{
		Connections: connections(c, t.Connections, t.ConnectionsPerAddress), TLS: s.tls("tcp"), InFlight: t.InFlightPerConnection,
		IdleTimeout: t.IdleTimeout, MessageTimeout: t.MessageTimeout,
		OutboundBytes: int(t.OutboundBytes), OutboundStall: t.StallTimeout,
		Resync: t.Resync, ResyncBytes: int(t.ResyncBytes),
		Streams: t.Stream == config.StreamConnection, Keep: t.Keep,
		Limits: limits(c),
	}
}

func (s *Server) restSettings(c config.Config) rest.Settings {
	r := c.REST
	return rest.Settings{
		Connections: connections(c, r.Connections, r.ConnectionsPerAddress), TLS: s.tls("rest"), IdleTimeout: r.IdleTimeout,
		HeaderTimeout: r.HeaderTimeout, MessageTimeout: r.MessageTimeout, StallTimeout: r.StallTimeout, Origins: r.CORSOrigins,
		Memory: s.memory(c), Limits: limits(c),
	}
}

func (s *Server) grpcSettings(c config.Config) grpc.Settings {
	g := c.GRPC
	return grpc.Settings{
		Connections: connections(c, g.Connections, g.ConnectionsPerAddress), TLS: s.tls("grpc"), InFlight: g.InFlightPerStream,
		MessageTimeout: g.MessageTimeout, OutboundBytes: int(g.OutboundBytes), StallTimeout: g.StallTimeout,
		Memory: s.memory(c), Limits: limits(c),
	}
}

func (s *Server) frigateSettings(c config.Config) frigate.Settings {
	f := c.Frigate
	return frigate.Settings{
		Connections: connections(c, f.Connections, f.ConnectionsPerAddress), TLS: s.tls("frigate"), MessageTimeout: f.MessageTimeout, StallTimeout: f.StallTimeout,
		RequestTimeout: f.RequestTimeout, Models: f.Models, ModelBytes: int64(f.ModelBytes), ModelFiles: f.ModelFiles, Limits: limits(c),
	}
}

// connections are the limits of a door's.
func connections(c config.Config, total, perAddress int) intake.Limits {
	return intake.Limits{
		Total: total, PerAddress: perAddress, Loopback: c.Server.LimitLoopback,
		Handshakes: c.TLS.Handshakes, HandshakeTimeout: c.TLS.HandshakeTimeout,
	}
}

func regionSettings(c config.Config) regions.Settings {
	m := c.SharedMemory
	owners, _ := m.OwnerIDs() // as Validate has seen
	var identities []string
	for _, one := range c.Identities {
		identities = append(identities, one.Name)
	}
	return regions.Settings{
		Directory: m.Directory, Owners: owners, RegionBytes: int64(m.RegionBytes), Regions: m.Regions,
		AllClients: m.Clients == config.ClientsAll, Identities: identities,
	}
}

// limits are those of requests, whatever door they come through.
func limits(c config.Config) gate.Limits {
	l := c.Limits
	return gate.Limits{
		MessageBytes: int64(l.MessageBytes), MetadataBytes: int(l.MetadataBytes),
		Tensors: l.Tensors, Rank: l.Rank, JSONDepth: l.JSONDepth,
	}
}

// memory is where doors that take compressed requests get that of requests.
func (s *Server) memory(c config.Config) gate.Memory {
	return gate.Memory{Pool: s.pool, Part: s.unpacked, Ratio: c.Limits.UnpackRatio}
}
