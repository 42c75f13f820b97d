package config

// A ClientDoor is a door for clients, with the settings that all doors have.
type ClientDoor struct {
	Name        string // its table
	Listen      *Addrs // none: it is not opened
	Connections *int   // the most that may be open
	*Door

	protocols []string // in ALPN
	oneByOne  bool     // each connection has one request in flight at most
}

// Doors returns the doors for clients. Their settings are those of c.
func (c *Config) Doors() []ClientDoor {
	return []ClientDoor{
		{Name: "tcp", Listen: &c.TCP.Listen, Connections: &c.TCP.Connections, Door: &c.TCP.Door},
		{Name: "rest", Listen: &c.REST.Listen, Connections: &c.REST.Connections, Door: &c.REST.Door,
			protocols: []string{"http/1.1"}, oneByOne: true},
		{Name: "grpc", Listen: &c.GRPC.Listen, Connections: &c.GRPC.Connections, Door: &c.GRPC.Door,
			protocols: []string{"h2"}},
		{Name: "frigate", Listen: &c.Frigate.Listen, Connections: &c.Frigate.Connections, Door: &c.Frigate.Door,
			oneByOne: true},
	}
}
