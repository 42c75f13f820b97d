package config

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/shivad/shivad/server/internal/listen"
)

// TLS applies to the addresses of all doors that begin with "tls://".
type TLS struct {
	Certificates
	// HandshakeTimeout is the time for a client's handshake. Handshakes is how many handshakes of a
	// door may be unfinished: one more ends a handshake of the host that has the most, the one
	// whose client has been waited for longest.
	HandshakeTimeout time.Duration `toml:"handshake_timeout" default:"10s" min:"10ms"`
	Handshakes       int           `toml:"handshakes" default:"256" min:"1" max:"1048576"`
}

// Certificates names PEM files, and says what is required of clients. Paths are relative to the
// configuration file. The files are read at the start and by a reload.
type Certificates struct {
	// Cert is the server's certificate, followed by those up to a root, and Key is its key. A table
	// must have both or neither.
	Cert string `toml:"cert"`
	Key  string `toml:"key"`
	// ClientCA signs clients' certificates; ClientCRL lists those that are revoked.
	ClientCA  string `toml:"client_ca"`
	ClientCRL string `toml:"client_crl"`
	// ClientAuth is AuthNone, AuthOptional or AuthRequired.
	ClientAuth string `toml:"client_auth"`
	MinVersion string `toml:"min_version"` // "1.2" or "1.3"
}

// Values of Certificates.ClientAuth.
const (
	AuthNone     = listen.AuthNone     // clients are not asked for a certificate
	AuthOptional = listen.AuthOptional // a certificate is optional, but must be valid if shown
	AuthRequired = listen.AuthRequired
)

// A doorTLS is a door with its TLS settings.
type doorTLS struct {
	table     string
	addrs     Addrs
	own       *Certificates
	protocols []string // its protocols in ALPN
}

func (c *Config) doorsTLS() (all []doorTLS) {
	for _, d := range c.Doors() {
		all = append(all, doorTLS{d.Name, *d.Listen, &d.TLS, d.protocols})
	}
	return append(all,
		doorTLS{"containers", slices.Concat(c.Containers.Listen, c.Containers.ListenV1b, c.Containers.ListenV2,
			c.Containers.ListenV2a), &c.Containers.TLS, nil},
		doorTLS{"admin", Addrs{c.Admin.Listen, c.Admin.Health}, &c.Admin.TLS, []string{"http/1.1"}})
}

// encrypted returns the first address with TLS; "" if there is none.
func (l doorTLS) encrypted() string {
	for _, addr := range l.addrs {
		if _, ok := listen.CutTLS(addr); ok {
			return addr
		}
	}
	return ""
}

// files returns the files of a door: its own, or else those of [tls]. table is the table that each
// key comes from.
func (c *Config) files(l doorTLS) (f listen.TLSFiles, table map[string]string) {
	own, all := *l.own, c.TLS.Certificates
	if own.Cert != "" || own.Key != "" { // they belong together
		all.Cert, all.Key = own.Cert, own.Key
	}
	table = map[string]string{}
	pick := func(key, own, all string) string {
		if table[key] = "tls"; own != "" {
			table[key] = l.table + ".tls"
		}
		return cmp.Or(own, all)
	}
	return listen.TLSFiles{
		Cert: pick("cert", own.Cert, all.Cert), Key: pick("key", own.Key, all.Key),
		ClientCA:   pick("client_ca", own.ClientCA, all.ClientCA),
		ClientCRL:  pick("client_crl", own.ClientCRL, all.ClientCRL),
		ClientAuth: pick("client_auth", own.ClientAuth, all.ClientAuth),
		MinVersion: pick("min_version", own.MinVersion, all.MinVersion),
		Protocols:  l.protocols,
	}, table
}

// verifiesClients reports whether any listener accepts certificates of clients.
func (c *Config) verifiesClients() bool {
	return slices.ContainsFunc(c.doorsTLS(), func(l doorTLS) bool {
		f, _ := c.files(l)
		return l.encrypted() != "" && f.ClientAuth != AuthNone
	})
}

// Secure reads the files of the doors that have an address with TLS, and returns the configuration
// of each by its table. A door whose files have not changed keeps its entry of old, which may be
// nil. now is the wall clock by which certificates are judged. The error has all faults.
func (c Config) Secure(old map[string]*listen.TLS, now func() time.Time) (map[string]*listen.TLS, error) {
	fs := &faults{origins: c.origins}
	read := c.secure(fs, old, now)
	return read, fs.err()
}

func (c *Config) secure(fs *faults, old map[string]*listen.TLS, now func() time.Time) map[string]*listen.TLS {
	read := map[string]*listen.TLS{}
	used := map[string]bool{} // settings of [tls] that some door uses
	for _, l := range c.doorsTLS() {
		addr := l.encrypted()
		if addr == "" {
			continue
		}
		f, table := c.files(l)
		unused := func(key string) bool {
			return f.ClientAuth == AuthNone && (key == "client_ca" || key == "client_crl")
		}
		for key, t := range table {
			used[t+"."+key] = used[t+"."+key] || !unused(key)
		}
		switch {
		case f.Cert == "" || f.Key == "":
			if f.Cert == f.Key { // otherwise checkCertificates reports it
				fs.Add(l.table+".listen",
					"%s needs a certificate: give tls.cert and tls.key, of all endpoints, or %s.tls.cert and %[2]s.tls.key",
					addr, l.table)
			}
			continue
		case f.ClientAuth != AuthNone && f.ClientCA == "":
			fs.Add(table["client_auth"]+".client_auth",
				"%q needs client_ca: a file with the CA certificates that sign those of clients", f.ClientAuth)
			continue
		}
		config, wrong := f.Load(now(), old[l.table])
		for _, one := range wrong {
			one.Key = table[one.Key] + "." + one.Key
			if !slices.Contains(fs.Faults, one) { // every door finds the faults of [tls]
				fs.Faults = append(fs.Faults, one)
			}
		}
		if config != nil && config != old[l.table] {
			config.Time = now
		}
		read[l.table] = config
	}
	c.uselessCertificates(fs, used)
	return read
}

// validateTLS checks the settings, and then the files if the settings have no faults.
func (c *Config) validateTLS(fs *faults) {
	check := func(table string, t, all Certificates) {
		fs.OneOf(table+".client_auth", cmp.Or(t.ClientAuth, all.ClientAuth), AuthNone, AuthOptional, AuthRequired)
		fs.OneOf(table+".min_version", cmp.Or(t.MinVersion, all.MinVersion), listen.Version12, listen.Version13)
		if t.Cert != "" && t.Key == "" {
			fs.Add(table+".key", "missing: the key of %s", t.Cert)
		} else if t.Key != "" && t.Cert == "" {
			fs.Add(table+".cert", "missing: the certificate of the key %s", t.Key)
		}
	}
	before := len(fs.Faults)
	check("tls", c.TLS.Certificates, Certificates{})
	for _, l := range c.doorsTLS() {
		// A door's own settings are checked independently of [tls].
		check(l.table+".tls", *l.own, Certificates{ClientAuth: AuthNone, MinVersion: listen.Version13})
	}
	if len(fs.Faults) == before {
		c.secure(fs, nil, time.Now)
	}
}

// uselessCertificates reports settings that have no effect: the operator may rely on their
// protection.
func (c *Config) uselessCertificates(fs *faults, used map[string]bool) {
	check := func(table, need string, t Certificates) {
		for _, f := range []struct{ key, value string }{{"cert", t.Cert}, {"client_ca", t.ClientCA},
			{"client_crl", t.ClientCRL}} {
			key := table + "." + f.key
			client, seen := used[key]
			switch {
			case f.value == "" || client:
			case seen:
				fs.Add(key, "has no meaning with client_auth = %q: say %q or %q", AuthNone, AuthOptional, AuthRequired)
			default:
				fs.Add(key, "has no meaning: %s", need)
			}
		}
	}
	check("tls", `no endpoint without a certificate of its own has an address of TLS, such as rest.listen = "tls://:8443"`,
		c.TLS.Certificates)
	for _, l := range c.doorsTLS() {
		check(l.table+".tls", fmt.Sprintf("%s.listen has no address of TLS: expected one as tls://host:port", l.table),
			*l.own)
	}
}

// paths returns the paths of the table's files.
func (t *Certificates) paths() []*string {
	return []*string{&t.Cert, &t.Key, &t.ClientCA, &t.ClientCRL}
}
