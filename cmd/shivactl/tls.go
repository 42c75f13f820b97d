package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shivad/shivad/shiva"
)

// tlsFlags are flags of all commands, for addresses that begin with "tls://" and https URLs.
type tlsFlags struct {
	ca, cert, key, name string
	insecure            bool
}

func (t *tlsFlags) register(f *pflag.FlagSet) {
	f.StringVar(&t.ca, "tls-ca", t.ca, "for tls://: `FILE` with trusted CA certificates (default: the system's)")
	f.StringVar(&t.cert, "tls-cert", t.cert, "for tls://: `FILE` with your certificate")
	f.StringVar(&t.key, "tls-key", t.key, "for tls://: `FILE` with the key of your certificate")
	f.StringVar(&t.name, "tls-name", t.name, "for tls://: the `NAME` in the server's certificate (default: the host)")
	f.BoolVar(&t.insecure, "tls-insecure", t.insecure, "for tls://: trust any certificate, and so any server")
}

// config reads the files.
func (t *tlsFlags) config() (*tls.Config, error) {
	c := &tls.Config{ServerName: t.name, InsecureSkipVerify: t.insecure}
	if t.ca != "" {
		text, err := os.ReadFile(t.ca)
		if err != nil {
			return nil, unfit("", "--tls-ca: %v", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, unfit("", "--tls-ca %s: expected certificates in PEM", t.ca)
		}
	}
	switch {
	case t.cert == "" && t.key != "":
		return nil, unfit("", "--tls-key %s: expected --tls-cert as well, the certificate of the key", t.key)
	case t.cert != "" && t.key == "":
		return nil, unfit("", "--tls-cert %s: expected --tls-key as well, the key of the certificate", t.cert)
	case t.cert != "":
		pair, err := tls.LoadX509KeyPair(t.cert, t.key)
		if err != nil {
			return nil, unfit("", "--tls-cert %s, --tls-key %s: %v", t.cert, t.key, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// dial connects to a server that speaks Shiva.
func (c *cli) dial(addr string, options ...shiva.Option) (*shiva.Client, error) {
	if _, encrypted := cutTLS(addr); encrypted {
		config, err := c.tls.config()
		if err != nil {
			return nil, err
		}
		options = append(options, shiva.WithTLS(config))
	}
	return shiva.Dial(c.ctx, addr, append(options, shiva.WithTokenSource(c.token))...)
}

// cutTLS returns what follows "tls://" in an address.
func cutTLS(addr string) (rest string, ok bool) {
	if rest, ok = strings.CutPrefix(addr, "tls:"); ok {
		rest = strings.TrimPrefix(rest, "//")
	}
	return rest, ok
}

// untrusted explains a TLS error at addr; nil if err is not one that it knows.
func untrusted(err error, addr string) *failure {
	wrong := func(what, hint string) *failure {
		return &failure{"tls", addr + ": " + what, hint, exitUnreachable}
	}
	if e, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return wrong(e.Error(), "--tls-ca names the file of the CA that signed the server's certificate")
	}
	if e, ok := errors.AsType[x509.HostnameError](err); ok {
		return wrong(e.Error(), "--tls-name says which name the certificate has")
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		return wrong(e.Error(), "the server needs another certificate")
	}
	// net/http has an error of its own for an answer in HTTP.
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok || strings.Contains(err.Error(), "HTTP response to HTTPS client") {
		return wrong("it does not answer in TLS", "is that address plain? then leave tls:// out")
	}
	if text := err.Error(); strings.Contains(text, "remote error: tls: ") {
		_, text, _ = strings.Cut(text, "remote error: tls: ")
		return wrong(fmt.Sprintf("the server refuses this client: %s", text), "--tls-cert and --tls-key name the files of a certificate that it accepts")
	}
	return nil
}
