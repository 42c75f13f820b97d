package listen

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
)

// TLSFiles are the TLS settings of a door, by their names in the configuration.
type TLSFiles struct {
	Cert, Key string // PEM: the server's certificate with its intermediates, and its key
	ClientCA  string // PEM: authorities that sign clients' certificates; "": none
	ClientCRL string // PEM: revocation lists of these authorities; "": none
	// ClientAuth is one of the Auth constants, MinVersion one of the Version constants.
	ClientAuth, MinVersion string
	// Protocols are the door's ALPN names; nil: its protocol has none.
	Protocols []string
}

// Values of TLSFiles.ClientAuth.
const (
	AuthNone     = "none"     // clients are not asked for a certificate
	AuthOptional = "optional" // a certificate is optional, but must be valid
	AuthRequired = "required"
)

// Values of TLSFiles.MinVersion.
const (
	Version12 = "1.2"
	Version13 = "1.3"
)

// A TLS is the content of the files when they were read. It is immutable.
type TLS struct {
	*tls.Config
	Until time.Time         // when the first of the server's own certificates expires
	Sum   [sha256.Size]byte // of the settings and files that it was made from
}

// soon is how long before its expiry a certificate should be replaced.
const soon = 14 * 24 * time.Hour

// Expiring reports whether a certificate expires within two weeks, or has expired.
func (t *TLS) Expiring(now time.Time) bool { return t.Until.Sub(now) < soon }

// Load reads the files. If nothing has changed since old, it returns old, so that clients can still
// resume their sessions. It does so even if the certificate has expired meanwhile: refusing files
// in use would not end their use, but would keep a reload from changing anything else, such as
// rights that must be revoked. Faults name settings of f; old may be nil.
func (f TLSFiles) Load(now time.Time, old *TLS) (*TLS, setting.Faults) {
	var faults setting.Faults
	sum := sha256.New()
	fmt.Fprintf(sum, "%q %q %q", f.ClientAuth, f.MinVersion, f.Protocols)
	read := func(key, path string) []byte {
		text, err := os.ReadFile(path)
		if err != nil {
			if e, ok := errors.AsType[*fs.PathError](err); ok {
				err = e.Err
			}
			faults.Add(key, "%s cannot be read: %v", path, err)
		}
		// A byte order mark, as editors of Windows write, would hide the first block of PEM.
		text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
		fmt.Fprintf(sum, "%q %d ", key, len(text))
		sum.Write(text)
		return text
	}
	certs, key := read("cert", f.Cert), read("key", f.Key)
	var authorities, revoked []byte
	if f.ClientCA != "" {
		authorities = read("client_ca", f.ClientCA)
	}
	if f.ClientCRL != "" {
		revoked = read("client_crl", f.ClientCRL)
	}
	if len(faults) > 0 {
		return nil, faults
	}
	c := &TLS{Config: &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: f.Protocols,
		// Small first records help browsers that render early, but answers here are tensors.
		DynamicRecordSizingDisabled: true,
	}}
	if sum.Sum(c.Sum[:0]); old != nil && old.Sum == c.Sum {
		return old, nil
	}
	if f.MinVersion == Version12 {
		c.MinVersion = tls.VersionTLS12
	}
	own := f.own(&faults, certs, key, now)
	var clients []*x509.Certificate
	if f.ClientCA != "" {
		clients = f.authorities(&faults, authorities, now)
	}
	lists := map[string]bool{}
	if f.ClientCRL != "" {
		lists = f.revoked(&faults, revoked, clients)
	}
	if len(faults) > 0 {
		return nil, faults
	}
	c.Certificates = []tls.Certificate{own}
	c.Until = firstExpiry(own)
	if f.ClientAuth != AuthNone {
		c.ClientAuth = tls.VerifyClientCertIfGiven
		if f.ClientAuth == AuthRequired {
			c.ClientAuth = tls.RequireAndVerifyClientCert
		}
		c.ClientCAs = x509.NewCertPool()
		for _, a := range clients {
			c.ClientCAs.AddCert(a)
		}
		// A resumed session would keep a certificate that was verified under earlier settings.
		c.SessionTicketsDisabled = true
		c.VerifyConnection = func(s tls.ConnectionState) error { return notRevoked(s.VerifiedChains, lists) }
	}
	return c, nil
}

// own reads the server's certificate and key.
func (f TLSFiles) own(faults *setting.Faults, certs, key []byte, now time.Time) tls.Certificate {
	before := len(*faults)
	switch kinds := pemBlocks(certs); {
	case len(kinds) == 0:
		faults.Add("cert", "%s has no PEM in it: expected blocks -----BEGIN CERTIFICATE-----", f.Cert)
	case !slices.Contains(kinds, "CERTIFICATE"):
		faults.Add("cert", "%s has no certificate, but a block %q: expected -----BEGIN CERTIFICATE-----", f.Cert,
			kinds[0])
	}
	private := func(kind string) bool { return strings.HasSuffix(kind, "PRIVATE KEY") }
	switch kinds := pemBlocks(key); {
	case len(kinds) == 0:
		faults.Add("key", "%s has no PEM in it: expected a block -----BEGIN PRIVATE KEY-----", f.Key)
	case slices.Contains(kinds, "ENCRYPTED PRIVATE KEY") || bytes.Contains(key, []byte("Proc-Type: 4,ENCRYPTED")):
		faults.Add("key", "%s is encrypted: expected a key without a password, in a file that the server alone may read", f.Key)
	case !slices.ContainsFunc(kinds, private):
		faults.Add("key", "%s has no key, but a block %q: expected -----BEGIN PRIVATE KEY-----", f.Key, kinds[0])
	}
	if len(*faults) > before {
		return tls.Certificate{}
	}
	chain, err := parseCertificates(certs)
	if err != nil {
		faults.Add("cert", "%s: %v", f.Cert, err)
		return tls.Certificate{}
	}
	for _, c := range chain {
		faults.Check("cert", checkValidity(f.Cert, c, now))
	}
	if leaf := chain[0]; len(leaf.ExtKeyUsage)+len(leaf.UnknownExtKeyUsage) > 0 &&
		!slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) &&
		!slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageAny) {
		faults.Add("cert", "%s: the certificate of %s is not for servers (extended key usage without serverAuth): clients would refuse it",
			f.Cert, subjectName(leaf))
	}
	pair, err := tls.X509KeyPair(certs, key)
	if err != nil {
		faults.Add("key", "%s does not fit the certificate of %s in %s: %s", f.Key, subjectName(chain[0]), f.Cert,
			strings.TrimPrefix(err.Error(), "tls: "))
	}
	return pair
}

// authorities reads the certificates of client_ca.
func (f TLSFiles) authorities(faults *setting.Faults, text []byte, now time.Time) []*x509.Certificate {
	list, err := parseCertificates(text)
	if err != nil {
		faults.Add("client_ca", "%s: %v", f.ClientCA, err)
		return nil
	}
	// One valid certificate is enough: bundles contain expired roots alongside their
	// successors.
	var first error
	for _, c := range list {
		err := checkValidity(f.ClientCA, c, now)
		if err == nil {
			return list
		}
		first = cmp.Or(first, err)
	}
	faults.Check("client_ca", first)
	return nil
}

// revoked reads the revocation lists and returns the certificates that they name (see
// serial).
func (f TLSFiles) revoked(faults *setting.Faults, text []byte, authorities []*x509.Certificate) map[string]bool {
	found, lists := map[string]bool{}, 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "X509 CRL" {
			continue
		}
		lists++
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			faults.Add("client_crl", "%s: list %d: %v", f.ClientCRL, lists, err)
			continue
		}
		signed := func(a *x509.Certificate) bool { return list.CheckSignatureFrom(a) == nil }
		if !slices.ContainsFunc(authorities, signed) {
			faults.Add("client_crl", "%s: list %d, of %s, is signed by no certificate in client_ca", f.ClientCRL, lists,
				list.Issuer)
			continue
		}
		for _, e := range list.RevokedCertificateEntries {
			found[serial(list.RawIssuer, e.SerialNumber.Bytes())] = true
		}
	}
	if lists == 0 {
		faults.Add("client_crl", "%s has no list: expected PEM blocks -----BEGIN X509 CRL-----", f.ClientCRL)
	}
	return found
}

// serial identifies a certificate: its serial number is unique only for its issuer.
func serial(issuer, serial []byte) string { return string(issuer) + "\x00" + string(serial) }

// notRevoked returns an error if every chain of a client contains a revoked certificate.
func notRevoked(chains [][]*x509.Certificate, revoked map[string]bool) error {
	var bad *x509.Certificate
	for _, chain := range chains {
		i := slices.IndexFunc(chain, func(c *x509.Certificate) bool {
			return revoked[serial(c.RawIssuer, c.SerialNumber.Bytes())]
		})
		if i < 0 {
			return nil
		}
		bad = chain[i]
	}
	if bad == nil {
		return nil // the client has presented no certificate
	}
	return fmt.Errorf("the certificate of %s, number %x, is revoked", subjectName(bad), bad.SerialNumber)
}

// pemBlocks returns the types of the PEM blocks of a file.
func pemBlocks(text []byte) (kinds []string) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		kinds = append(kinds, block.Type)
	}
	return kinds
}

// parseCertificates returns the certificates of a file, at least one.
func parseCertificates(text []byte) (list []*x509.Certificate, err error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(list)+1, err)
		}
		list = append(list, c)
	}
	if len(list) == 0 {
		return nil, errors.New("no certificate: expected PEM blocks -----BEGIN CERTIFICATE-----")
	}
	return list, nil
}

// neverSet is before any time that a clock shows that was ever set. A machine with such a clock,
// without a battery and not told the time yet, cannot tell whether a certificate is valid
// already. Its clock may be set while the server runs.
var neverSet = time.Date(1990, time.January, 1, 0, 0, 0, 0, time.UTC)

// checkValidity returns an error if a certificate is not valid now.
func checkValidity(path string, c *x509.Certificate, now time.Time) error {
	switch {
	case now.After(c.NotAfter):
		return fmt.Errorf("%s: the certificate of %s expired on %s", path, subjectName(c),
			c.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(c.NotBefore) && now.After(neverSet):
		return fmt.Errorf("%s: the certificate of %s is valid only from %s on; the time is %s", path, subjectName(c),
			c.NotBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

// subjectName returns the subject of a certificate, or its first alternative name if the
// subject is empty.
func subjectName(c *x509.Certificate) string {
	if text := c.Subject.String(); text != "" {
		return text
	}
	for _, names := range [][]string{c.DNSNames, c.EmailAddresses} {
		if len(names) > 0 {
			return names[0]
		}
	}
	return fmt.Sprintf("number %x", c.SerialNumber)
}

// firstExpiry returns when the first certificate of a chain expires.
func firstExpiry(pair tls.Certificate) (first time.Time) {
	for _, der := range pair.Certificate {
		if c, err := x509.ParseCertificate(der); err == nil && (first.IsZero() || c.NotAfter.Before(first)) {
			first = c.NotAfter
		}
	}
	return first
}

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
