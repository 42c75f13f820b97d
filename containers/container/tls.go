package container

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strconv"
)

// Environment variables for a Model without TLS: paths of files in PEM, the name in the server's
// certificate if it is not the host of the address, and whether any certificate is trusted.
const (
	TLSCAEnv       = "SHIVA_TLS_CA"
	TLSCertEnv     = "SHIVA_TLS_CERT"
	TLSKeyEnv      = "SHIVA_TLS_KEY"
	TLSNameEnv     = "SHIVA_TLS_NAME"
	TLSInsecureEnv = "SHIVA_TLS_INSECURE"
)

// tls returns the configuration of TLS for the next connections. It reads the files that the
// environment names again, as they may have been renewed.
func (m *Model) tls() (*tls.Config, error) {
	if m.TLS != nil {
		return m.TLS.Clone(), nil
	}
	c := &tls.Config{ServerName: os.Getenv(TLSNameEnv)}
	var err error
	if c.InsecureSkipVerify, err = strconv.ParseBool(cmp.Or(os.Getenv(TLSInsecureEnv), "false")); err != nil {
		return nil, fmt.Errorf("container: $%s: expected true or false, got %q",
			TLSInsecureEnv, os.Getenv(TLSInsecureEnv))
	}
	if path := os.Getenv(TLSCAEnv); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("container: $%s: %w", TLSCAEnv, err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("container: $%s: expected certificates in PEM in %s", TLSCAEnv, path)
		}
	}
	switch cert, key := os.Getenv(TLSCertEnv), os.Getenv(TLSKeyEnv); {
	case cert == "" && key != "":
		return nil, fmt.Errorf("container: $%s is missing: the certificate of the key %s", TLSCertEnv, key)
	case cert != "":
		pair, err := tls.LoadX509KeyPair(cert, cmp.Or(key, cert))
		if err != nil {
			return nil, fmt.Errorf("container: $%s and $%s: a certificate and its key: %w", TLSCertEnv, TLSKeyEnv, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// secure returns the container's handshake with the server of an address; nil: the address is
// plain.
func (s *server) secure(ctx context.Context, a address) (func(net.Conn) (net.Conn, error), error) {
	if !a.encrypted {
		return nil, nil
	}
	config, err := s.model.tls()
	if err != nil {
		return nil, err
	}
	config.ServerName = cmp.Or(config.ServerName, a.name)
	return func(c net.Conn) (net.Conn, error) {
		t := tls.Client(c, config)
		return t, t.HandshakeContext(ctx)
	}, nil
}
