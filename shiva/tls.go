package shiva

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
)

const tlsScheme = "tls:"

// cutTLS returns the rest of an address after "tls://" or "tls:". ok reports whether addr has that
// prefix.
func cutTLS(addr string) (rest string, ok bool) {
	if rest, ok = strings.CutPrefix(addr, tlsScheme); ok {
		rest = strings.TrimPrefix(rest, "//")
	}
	return rest, ok
}

// WithTLS sets the TLS configuration for a server at "tls://host:port": trusted certificates, the
// client's own certificate, and the name of the server if it is not the host. The default is the
// zero configuration: the system's authorities, and no certificate. The client makes a copy for
// each connection, so GetClientCertificate may return a renewed certificate. With an address
// without TLS it is an error.
func WithTLS(config *tls.Config) Option { return func(o *options) { o.tls = config } }

// handshake starts TLS on a connection to the server of this name.
func handshake(ctx context.Context, conn net.Conn, name string, config *tls.Config) (net.Conn, error) {
	if config = config.Clone(); config == nil {
		config = new(tls.Config)
	}
	if config.ServerName == "" {
		config.ServerName = name
	}
	encrypted := tls.Client(conn, config)
	if err := encrypted.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return encrypted, nil
}
