package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certify returns the flags of a server that speaks TLS, and the configuration by which clients
// trust it. The first call makes the files in dir: a self-signed certificate of this machine, and
// its key.
func certify(dir string) (flags []string, trust *tls.Config, err error) {
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	public, err := os.ReadFile(cert)
	if errors.Is(err, fs.ErrNotExist) {
		public, err = issue(cert, key)
	}
	if err != nil {
		return nil, nil, err
	}
	trust = &tls.Config{RootCAs: x509.NewCertPool()}
	trust.RootCAs.AppendCertsFromPEM(public)
	return []string{"--tls-cert", cert, "--tls-key", key}, trust, nil
}

// issue writes both files, and returns the certificate.
func issue(cert, key string) ([]byte, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return public, errors.Join(
		os.WriteFile(cert, public, 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
}
