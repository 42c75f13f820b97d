// Package certtest makes certificates for tests: authorities, servers on this machine, clients, and
// revocation lists.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// An Authority signs certificates.
type Authority struct {
	t      testing.TB
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	serial int64
}

// New makes an authority with this name.
func New(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{t: t, key: newKey(t), serial: 1}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(90 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	a.cert = sign(t, template, template, &a.key.PublicKey, a.key)
	return a
}

// An Issue is a certificate with its key, in PEM.
type Issue struct {
	Leaf      *x509.Certificate
	Cert, Key []byte
}

// Server issues a certificate for this machine's addresses and names; change, which may be nil, may
// modify it before it is signed.
func (a *Authority) Server(change func(*x509.Certificate)) Issue {
	a.t.Helper()
	return a.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, change)
}

// Client issues a certificate for a client with this name; change is as for Server.
func (a *Authority) Client(name string, change func(*x509.Certificate)) Issue {
	a.t.Helper()
	return a.issue(&x509.Certificate{Subject: pkix.Name{CommonName: name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, change)
}

func (a *Authority) issue(template *x509.Certificate, change func(*x509.Certificate)) Issue {
	a.t.Helper()
	a.serial++
	template.SerialNumber = big.NewInt(a.serial)
	template.NotBefore, template.NotAfter = time.Now().Add(-24*time.Hour), time.Now().Add(90*24*time.Hour)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	if change != nil {
		change(template)
	}
	key := newKey(a.t)
	leaf := sign(a.t, template, a.cert, &key.PublicKey, a.key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return Issue{leaf, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})}
}

// Serial returns the number of the last certificate; numbers increase by one.
func (a *Authority) Serial() int64 { return a.serial }

// PEM returns the authority's own certificate.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Pool returns a pool of the authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Revoke returns a revocation list, in PEM, of the given certificates.
func (a *Authority) Revoke(list ...*x509.Certificate) []byte {
	a.t.Helper()
	template := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now(),
		NextUpdate: time.Now().Add(time.Hour)}
	for _, c := range list {
		template.RevokedCertificateEntries = append(template.RevokedCertificateEntries,
			x509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(rand.Reader, template, a.cert, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// Pair returns the certificate in the form of crypto/tls.
func (i Issue) Pair(t testing.TB) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(i.Cert, i.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// Write writes files into a directory, given as pairs of name and content, and returns their paths
// in the same order.
func Write(t testing.TB, dir string, files ...any) (paths []string) {
	t.Helper()
	for i := 0; i < len(files); i += 2 {
		path := filepath.Join(dir, files[i].(string))
		if err := os.WriteFile(path, files[i+1].([]byte), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, template, parent *x509.Certificate, public any, key any) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
