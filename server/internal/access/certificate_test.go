package access

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shivad/shivad/server/internal/fault"
)

func certificate(change func(*x509.Certificate)) *Certificate {
	c := &x509.Certificate{Subject: pkix.Name{CommonName: "camera-7", Organization: []string{"Cameras"}},
		DNSNames:       []string{"Seven.example.org"},
		EmailAddresses: []string{"seven@example.org"},
		URIs:           []*url.URL{{Scheme: "spiffe", Host: "example.org", Path: "/cameras/7"}},
		IPAddresses:    []net.IP{net.IPv4(10, 0, 0, 7)}}
	if change != nil {
		change(c)
	}
	// As the parser returns it.
	c.Subject.Names = nil
	for _, cn := range strings.Split(c.Subject.CommonName, "|") {
		if cn != "" {
			c.Subject.Names = append(c.Subject.Names,
				pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: cn})
		}
	}
	return NewCertificate(c)
}

func known(name string, patterns ...string) Declaration {
	return Declaration{Name: name, Certificates: patterns, May: []string{"infer"}}
}

func TestCertificatePatterns(t *testing.T) {
	c := certificate(nil)
	for text, want := range map[string]bool{
		"cn:camera-7": true, "cn:camera-*": true, "cn:camera-?": true, "cn:Camera-7": false, "cn:camera": false,
		"cn:*": true, "dns:camera-7": false,
		"subject:CN=camera-7,O=Cameras": true, "subject:CN=*,O=Cameras": true, "subject:CN=*,O=Lamps": false,
		"dns:seven.example.org": true, "dns:*.EXAMPLE.org": true, "dns:example.org": false, "email:*@example.org": true,
		"email:*@example.com":                false,
		"uri:spiffe://example.org/cameras/*": true, "uri:spiffe://example.org/*": false, "ip:10.0.0.*": true, "ip:10.0.0.8": false,
	} {
		r := registry(known("a", text))
		if got := r.Who(&Credentials{Certificate: c}); (got.Name() == "a") != want || (got.Enter() == nil) != want {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

// The identity from a certificate together with a token, also after a change of the table.
func TestWhoHoldsCertificates(t *testing.T) {
	c := certificate(nil)
	with := func(c *Certificate, token string) *Credentials {
		s := Credentials{}
		if token != "" {
			s = Token(token)
		}
		s.Certificate = c
		return &s
	}
	var log bytes.Buffer
	r := &Identities{Log: slog.New(slog.NewTextHandler(&log, nil))}
	byToken := []Declaration{declare("token", "one", "infer"), {Name: "anonymous", May: []string{"feedback"}}}
	r.Replace(byToken)
	if got := r.Who(with(c, "")); got.Name() != "anonymous" {
		t.Errorf("where no identity is known by one: %+v", got)
	}
	r.Replace(append(byToken, known("camera", "cn:camera-*")))
	other := certificate(func(c *x509.Certificate) { c.Subject.CommonName = "lamp" })
	for _, step := range []struct {
		shown *Credentials
		want  string // "": nobody
		says  string
	}{
		{with(c, ""), "camera", ""},
		{with(nil, ""), "anonymous", ""},
		{with(nil, "one"), "token", ""},
		{with(other, ""), "", `the presented certificate, "CN=lamp,O=Cameras", matches no identity of this server`},
		{with(other, "one"), "token", ""},
		{with(c, "one"), "", "the presented token belongs to one identity and the certificate to another"},
		{with(c, "two"), "", "the presented token belongs to no identity of this server"},
		{with(c, "a b"), "", `expected one token in metadata "token" of the connection's first message`},
	} {
		who := r.Who(step.shown)
		err := who.Enter()
		if who.Name() != step.want || (err == nil) != (step.want != "") ||
			err != nil &&
				(!errors.Is(err, fault.ErrUnauthenticated) || !strings.Contains(err.Error(), step.says) ||
					who.May(Infer, "x")) {
			t.Errorf("%+v: %q, %v, expected %q %s", step.shown, who.Name(), err, step.want, step.says)
		}
	}

	both := known("both", "cn:camera-*")
	both.Tokens = declare("", "one").Tokens
	r.Replace([]Declaration{both})
	if got := r.Who(with(c, "one")); got.Name() != "both" {
		t.Errorf("a token and a certificate of one identity: %+v", got)
	}
	r.Replace([]Declaration{known("cams", "cn:cam*"), known("sevens", "cn:*7"), declare("token", "one", "infer")})
	for range 3 { // one connection each
		c = certificate(nil)
		if got := r.Who(with(c, "")); !errors.Is(got.Enter(), fault.ErrUnauthenticated) ||
			strings.Contains(got.Enter().Error(), "sevens") {
			t.Errorf("of two identities: %v", got.Enter())
		}
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "cams") ||
		!strings.Contains(text, "sevens") || !strings.Contains(text, "camera-7") {
		t.Errorf("the log has %s", text)
	}
	if got := r.Who(with(c, "one")); got.Name() != "token" {
		t.Errorf("a token beside a certificate of two: %+v", got)
	}
	r.Replace(nil)
	if r.Who(with(c, "")) != nil {
		t.Error("somebody after the last declaration has gone")
	}
}

// A certificate whose names two programs could read differently belongs to nobody, whatever else it
// has.
func TestUnusableNames(t *testing.T) {
	r := registry(known("a", "cn:*", "dns:*", "email:*", "subject:*"))
	for what, change := range map[string]func(*x509.Certificate){
		"NUL":        func(c *x509.Certificate) { c.DNSNames = []string{"good.example.org", "good.example.org\x00.evil"} },
		"a newline":  func(c *x509.Certificate) { c.Subject.CommonName = "camera-7\nidentity=admin" },
		"not UTF-8":  func(c *x509.Certificate) { c.EmailAddresses = []string{"a\xff"} },
		"long":       func(c *x509.Certificate) { c.DNSNames = []string{strings.Repeat("a", 1<<20)} },
		"empty":      func(c *x509.Certificate) { c.DNSNames = []string{""} },
		"two common": func(c *x509.Certificate) { c.Subject.CommonName = "camera-7|admin" },
		"many": func(c *x509.Certificate) {
			for i := range 200 {
				c.DNSNames = append(c.DNSNames, fmt.Sprint(i))
			}
		},
		"none": func(c *x509.Certificate) { *c = x509.Certificate{} },
	} {
		got := r.Who(&Credentials{Certificate: certificate(change)})
		err := got.Enter()
		if !errors.Is(err, fault.ErrUnauthenticated) || len(err.Error()) > 500 || !utf8.ValidString(err.Error()) ||
			strings.ContainsAny(err.Error(), "\n\x00") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if NewCertificate(nil) != nil {
		t.Error("a certificate of nothing")
	}
}

// Requests on a connection with a client certificate allocate nothing for it.
func TestCertificateAllocates(t *testing.T) {
	r, c := registry(known("a", "cn:camera-*")), certificate(nil)
	if n := testing.AllocsPerRun(100, func() {
		shown := Credentials{Certificate: c}
		if r.Who(&shown).Check(Infer, "m") != nil {
			t.Fail()
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
