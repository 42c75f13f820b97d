package secure

import (
	"crypto/tls"
	"crypto/x509"
	"net"
)

// PeerCertificate is the one by which the other end of a connection has shown who it is, and which
// was verified; nil: it has shown none, or the connection is plain. A connection around one of TLS
// tells it by a method of this name.
func PeerCertificate(c net.Conn) *x509.Certificate {
	switch c := c.(type) {
	case interface{ PeerCertificate() *x509.Certificate }:
		return c.PeerCertificate()
	case *tls.Conn:
		if s := c.ConnectionState(); len(s.VerifiedChains) > 0 {
			return s.PeerCertificates[0]
		}
	}
	return nil
}
