package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/frigate"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/grpc"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/server/internal/rest"
	"github.com/shivad/shivad/server/internal/tcp"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// The doors of clients and containers: the settings with which each is opened, and which it gets
// when they change.

// A door is an open door for clients.
type door struct {
	listener  interface{ Addrs() []net.Addr } // *tcp.Door, *rest.Door, *grpc.Door, *frigate.Door
	name      string                          // in metrics and logs
	configure func(config.Config)
	shutdown  func(context.Context) error
	failed    <-chan error // nil: it cannot fail before Shutdown
}

// openDoors opens the doors that have an address, after the listener for containers.
func (s *Server) openDoors(c config.Config) error {
	if err := s.containers.Listen(c.Containers); err != nil {
		return err
	}
	s.configure(c)
	describe := func(who *access.Identity, path string, onlyReady bool) ([]byte, bool, error) {
		return s.predict.As(who).Describe(path, onlyReady)
	}
	entrance := func(door string, addrs []string, access unixsocket.Access) listen.Entrance {
		return listen.Entrance{Addrs: addrs, Access: access, Open: s.surroundings.open, Metrics: s.metrics.Door(door),
			Log: s.limited(), Addresses: &s.addresses}
	}
	certs, memory := &s.certificates, gate.Memory{Pool: s.pool, Part: s.unpacked, Room: s.unfinished}
	if len(c.TCP.Listen) > 0 {
		d, err := tcp.Listen(tcp.Config{
			Entrance: entrance("tcp", c.TCP.Listen, c.TCP.Access()), Identities: &s.identities, Gate: s.gate,
			Describe: describe,
			Regions:  s.regions, Pool: s.pool, Room: s.unfinished, Loops: c.TCP.Loops, Settings: tcpSettings(c, certs),
		})
		if err != nil {
			return err
		}
		s.tcp.Store(d)
		s.doors = append(s.doors,
			door{d, "tcp", func(c config.Config) { d.Configure(tcpSettings(c, certs)) }, d.Shutdown, nil})
	}
	if len(c.REST.Listen) > 0 {
		d, err := rest.Listen(rest.Config{
			Entrance: entrance("rest", c.REST.Listen, c.REST.Access()), Identities: &s.identities, Predict: s.predict,
			Settings: restSettings(c, certs, memory),
		})
		if err != nil {
			return err
		}
		s.doors = append(s.doors,
			door{d, "rest", func(c config.Config) { d.Configure(restSettings(c, certs, memory)) }, d.Shutdown,
				d.Failed()})
	}
	if g := c.GRPC; len(g.Listen) > 0 {
		d, err := grpc.Listen(grpc.Config{
			Entrance: entrance("grpc", g.Listen, g.Access()), Identities: &s.identities, Predict: s.predict,
			Needed:  s.demand.Needed,
			Streams: g.StreamsPerConnection, IdleTimeout: g.IdleTimeout, PingInterval: g.PingInterval,
			PingTimeout: g.PingTimeout, MinPing: g.MinPingInterval,
			Settings: grpcSettings(c, certs, memory),
		})
		if err != nil {
			return err
		}
		shutdown := func(ctx context.Context) error {
			d.Shutdown(ctx)
			return nil
		}
		s.doors = append(s.doors,
			door{d, "grpc", func(c config.Config) { d.Configure(grpcSettings(c, certs, memory)) }, shutdown,
				d.Failed()})
	}
	if f := c.Frigate; len(f.Listen) > 0 {
		d, err := frigate.Listen(frigate.Config{
			Entrance: entrance("frigate", f.Listen, f.Access()), Identities: &s.identities, Predict: s.predict,
			Trail: s.trail, Pool: s.pool, Room: s.unfinished,
			ModelDirectory: f.ModelDirectory, Settings: frigateSettings(c, certs),
		})
		if err != nil {
			return err
		}
		s.doors = append(s.doors,
			door{d, "frigate", func(c config.Config) { d.Configure(frigateSettings(c, certs)) }, d.Shutdown, nil})
	}
	return nil
}

// configure applies the settings that can change while the server runs to the open doors and to the
// parts that they share.
func (s *Server) configure(c config.Config) {
	s.regions.Configure(regionSettings(c))
	s.addresses.Configure(c.Limits.AddressQuota(), c.Server.LimitLoopback)
	s.containers.Configure(c.Containers)
	for _, d := range s.doors {
		d.configure(c)
	}
}

// addrs returns the addresses on which a door listens; nil if it is left out.
func addrs(doors []door, name string) []net.Addr {
	for _, d := range doors {
		if d.name == name {
			return d.listener.Addrs()
		}
	}
	return nil
}

// shut shuts all doors down at the same time, after their last answers have left. Clients that do
// not read their answers are cut off in the end, which is not a failure of the server.
func shut(ctx context.Context, doors []door, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	faults := make([]error, len(doors))
	var all sync.WaitGroup
	for i, d := range doors {
		all.Go(func() {
			if faults[i] = d.shutdown(ctx); errors.Is(faults[i], context.DeadlineExceeded) {
				log.Warn("closed the connections of clients that did not read their answers", "door", d.name)
				faults[i] = nil
			}
		})
	}
	all.Wait()
	return errors.Join(faults...)
}

func tcpSettings(c config.Config, certs *certificates) tcp.Settings {
	t := c.TCP
	return tcp.Settings{
		Settings: doorSettings(c, t.Door, t.Connections, certs.config("tcp")), InFlight: t.InFlightPerConnection,
		IdleTimeout: t.IdleTimeout, OutboundBytes: int(t.OutboundBytes),
		CancelOnClose: t.CancelOnClose, Resync: t.Resync, ResyncBytes: int(t.ResyncBytes),
		Streams: t.Stream == config.StreamConnection, Keep: t.Keep,
		Limits: limits(c),
	}
}

// restSettings returns the settings of the HTTP door, with the memory for its requests and the part
// of it for compressed ones.
func restSettings(c config.Config, certs *certificates, memory gate.Memory) rest.Settings {
	r := c.REST
	memory.Ratio = c.Limits.UnpackRatio
	return rest.Settings{
		Settings: doorSettings(c, r.Door, r.Connections, certs.config("rest")), IdleTimeout: r.IdleTimeout,
		HeaderTimeout: r.HeaderTimeout, Origins: r.CORSOrigins,
		Forward: inLower(r.ForwardHeaders),
		Memory:  memory, Limits: limits(c),
	}
}

func grpcSettings(c config.Config, certs *certificates, memory gate.Memory) grpc.Settings {
	g := c.GRPC
	memory.Ratio = c.Limits.UnpackRatio
	return grpc.Settings{
		Settings: doorSettings(c, g.Door, g.Connections, certs.config("grpc")), InFlight: g.InFlightPerStream,
		OutboundBytes: int(g.OutboundBytes), Forward: inLower(g.ForwardHeaders), Memory: memory, Limits: limits(c),
	}
}

// inLower returns names of headers in lower case.
func inLower(names []string) (lower []string) {
	for _, name := range names {
		lower = append(lower, strings.ToLower(name))
	}
	return lower
}

func frigateSettings(c config.Config, certs *certificates) frigate.Settings {
	f := c.Frigate
	return frigate.Settings{
		Settings:       doorSettings(c, f.Door, f.Connections, certs.config("frigate")),
		RequestTimeout: f.RequestTimeout, Models: f.Models, ModelBytes: int64(f.ModelBytes), ModelFiles: f.ModelFiles,
		Limits: limits(c),
	}
}

// doorSettings returns the settings that all doors have.
func doorSettings(c config.Config, d config.Door, connections int, tls *listen.TLS) listen.Settings {
	return listen.Settings{
		Connections: connections, Loopback: c.Server.LimitLoopback, Bounds: listen.Bounds(d.DoorBounds),
		TLS: tls, Handshakes: c.TLS.Handshakes, HandshakeTimeout: c.TLS.HandshakeTimeout,
	}
}

func regionSettings(c config.Config) regions.Settings {
	m := c.SharedMemory
	owners, _ := m.OwnerIDs() // Validate has checked them
	identities := map[string][]string{}
	for _, one := range c.Declarations() {
		if one.Infers() { // others register nothing
			identities[one.Name] = one.Regions
		}
	}
	return regions.Settings{
		Directory: m.Directory, Owners: owners, RegionBytes: int64(m.RegionBytes), Regions: m.Regions,
		AllClients: m.Clients == config.ClientsAll, Declared: len(c.Identities) > 0, Identities: identities,
	}
}

// limits returns the limits of requests, which are the same for all doors.
func limits(c config.Config) gate.Limits {
	l := c.Limits
	return gate.Limits{
		MessageBytes: int64(l.MessageBytes), MetadataBytes: int(l.MetadataBytes),
		Tensors: l.Tensors, Rank: l.Rank, JSONDepth: l.JSONDepth,
	}
}
