package access

import (
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"log/slog"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"
	"unicode/utf8"
)

// A Certificate is the verified certificate of a client: the names in it, and the identity that it
// was last matched to. Make one for each connection. It may be used from any goroutine.
type Certificate struct {
	names  map[field][]string
	label  string // for errors and logs
	fault  string // not "": why its names cannot be used
	holder atomic.Pointer[holder]
}

// A field is a part of a certificate that holds names.
type field string

// The fields: the common name, the whole subject as "CN=a,O=b", and the kinds of alternative names.
const (
	commonName field = "cn"
	subject    field = "subject"
	dnsName    field = "dns"
	email      field = "email"
	uri        field = "uri"
	ip         field = "ip"
)

var fields = []field{commonName, subject, dnsName, email, uri, ip}

// Bounds of the names of a certificate. A certificate above them belongs to nobody.
const (
	maxNames     = 100
	maxNameBytes = 1 << 10
)

// NewCertificate returns the Certificate of an X.509 certificate; nil for nil.
func NewCertificate(c *x509.Certificate) *Certificate {
	if c == nil {
		return nil
	}
	names := map[field][]string{email: c.EmailAddresses}
	add := func(f field, name string) { names[f] = append(names[f], name) }
	if text := c.Subject.String(); text != "" {
		add(subject, text)
	}
	for _, attribute := range c.Subject.Names {
		if attribute.Type.Equal(asn1.ObjectIdentifier{2, 5, 4, 3}) {
			add(commonName, fmt.Sprint(attribute.Value))
		}
	}
	for _, name := range c.DNSNames {
		add(dnsName, strings.ToLower(name))
	}
	for _, u := range c.URIs {
		add(uri, u.String())
	}
	for _, a := range c.IPAddresses {
		add(ip, a.String())
	}
	out := &Certificate{names: names, fault: nameFault(names)}
	for _, f := range []field{subject, dnsName, email, uri, ip} {
		if len(names[f]) > 0 && out.label == "" {
			out.label = fmt.Sprintf("%.200q", names[f][0])
		}
	}
	if out.label == "" {
		out.label = fmt.Sprintf("number %.40x", c.SerialNumber)
	}
	return out
}

// nameFault says what is wrong with the names of a certificate. One program may take a control
// character for the end of a name where another program reads on, so a certificate with such a name
// belongs to nobody.
func nameFault(names map[field][]string) string {
	all := 0
	for _, f := range fields {
		all += len(names[f])
		for _, name := range names[f] {
			switch {
			case name == "":
				return fmt.Sprintf("one of its %s names is empty", f)
			case len(name) > maxNameBytes:
				return fmt.Sprintf("one of its %s names has %d bytes, the limit is %d", f, len(name), maxNameBytes)
			case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool {
				return !unicode.IsPrint(r)
			}):
				return fmt.Sprintf("one of its %s names, %.100q, has characters that are not printable", f, name)
			}
		}
	}
	switch {
	case all == 0:
		return "it has no name"
	case all > maxNames:
		return fmt.Sprintf("it has %d names, the limit is %d", all, maxNames)
	case len(names[commonName]) > 1:
		return fmt.Sprintf("it has %d common names", len(names[commonName]))
	}
	return ""
}

// A pattern matches the certificates of an identity, such as "cn:camera-*".
type pattern struct {
	field field
	text  string // as path.Match takes it
}

// parsePattern parses one element of the setting certificate.
func parsePattern(text string) (p pattern, err error) {
	for _, f := range fields {
		name, ok := strings.CutPrefix(text, string(f)+":")
		if !ok {
			continue
		}
		if f == dnsName {
			name = strings.ToLower(name)
		}
		p = pattern{f, name}
		switch _, err := path.Match(name, ""); {
		case name == "":
			return p, fmt.Errorf("%q: a pattern of 0 bytes matches nothing", text)
		case len(name) > maxNameBytes:
			return p, fmt.Errorf("a pattern of %d bytes matches nothing: names of certificates have at most %d",
				len(name), maxNameBytes)
		case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
			return p, fmt.Errorf("%.100q has characters that are not printable, so it matches no usable name", text)
		case err != nil:
			return p, fmt.Errorf("%.100q: a bracket is not closed, or no character follows a backslash", text)
		}
		return p, nil
	}
	return p, fmt.Errorf(`%.100q is not a certificate pattern: expected cn:, subject:, dns:, email:, uri: or ip: and a name, such as "cn:camera-*" or "dns:*.cameras.example.org"`, text)
}

func (p pattern) matches(c *Certificate) bool {
	for _, name := range c.names[p.field] {
		if ok, _ := path.Match(p.text, name); ok {
			return true
		}
	}
	return false
}

// overlaps reports whether two patterns certainly match a common name: they are equal, or one has
// no wildcards and the other matches it. Two patterns with wildcards may overlap undetected;
// Identities.Who refuses certificates that match both.
func (p pattern) overlaps(other pattern) bool {
	if p.field != other.field {
		return false
	}
	in, _ := path.Match(p.text, other.text)
	contains, _ := path.Match(other.text, p.text)
	return p.text == other.text || in && other.literal() || contains && p.literal()
}

func (p pattern) literal() bool { return !strings.ContainsAny(p.text, `*?[\`) }

// SameCertificate finds a pattern of the last declaration that overlaps one of an earlier
// declaration. It returns the index of that declaration, or -1, and both patterns.
func SameCertificate(list []Declaration) (i int, mine, theirs string) {
	last := list[len(list)-1]
	for i, other := range list[:len(list)-1] {
		for _, mine := range last.Certificates {
			for _, theirs := range other.Certificates {
				a, wrong := parsePattern(mine)
				b, bad := parsePattern(theirs)
				if wrong == nil && bad == nil && a.overlaps(b) {
					return i, mine, theirs
				}
			}
		}
	}
	return -1, "", ""
}

// A holder is the identity that a table gives a certificate.
type holder struct {
	table    *table
	identity *Identity
}

// A claim is a pattern and its identity.
type claim struct {
	pattern
	identity *Identity
}

// holder returns the identity of a certificate, or nobody. It returns nil if there is no
// certificate, or if no identity is declared with certificates, so that they identify no client.
func (t *table) holder(c *Certificate) *Identity {
	if c == nil || len(t.claims) == 0 {
		return nil
	}
	if f := c.holder.Load(); f != nil && f.table == t {
		return f.identity
	}
	f := &holder{t, t.match(c)}
	c.holder.Store(f)
	return f.identity
}

func (t *table) match(c *Certificate) *Identity {
	if c.fault != "" {
		return &Identity{rejection: "the presented certificate, " + c.label + ", identifies no client: " + c.fault}
	}
	var who *Identity
	for _, one := range t.claims {
		switch {
		case who == one.identity || !one.matches(c):
		case who == nil:
			who = one.identity
		default:
			t.ambiguous.warn(c.label, who.name, one.identity.name)
			return &Identity{rejection: "the presented certificate, " + c.label + ", matches more than one identity of this server, so it is refused"}
		}
	}
	if who == nil {
		return &Identity{rejection: "the presented certificate, " + c.label + ", matches no identity of this server"}
	}
	return who
}

// ambiguous logs certificates that match patterns of two identities, each once: overlaps cannot
// find all of them in the configuration.
type ambiguous struct {
	log *slog.Logger

	mu   sync.Mutex
	seen map[string]bool
}

func (a *ambiguous) warn(label, first, second string) {
	const most = 100
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.log == nil || a.seen[label] || len(a.seen) >= most {
		return
	}
	if a.seen == nil {
		a.seen = map[string]bool{}
	}
	a.seen[label] = true
	a.log.Warn("a certificate matches the patterns of two identities, and is refused", "certificate", label,
		"identities", strconv.Quote(first)+" and "+strconv.Quote(second))
}
