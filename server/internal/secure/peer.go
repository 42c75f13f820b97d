package secure

import (
	"crypto/tls"
	"crypto/x509"
	"net"
)

// PeerCertificate returns the verified certificate of the other end of a connection; nil if it has
// presented none, or the connection is plain.
func PeerCertificate(c net.Conn) *x509.Certificate {
	if t, ok := c.(*tls.Conn); ok {
		if s := t.ConnectionState(); len(s.VerifiedChains) > 0 {
			return s.PeerCertificates[0]
		}
	}
	return nil
}
