package identity

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/shivad/shivad/server/internal/quota"
)

// A Registry has the identities of a server. The zero Registry has none.
type Registry struct {
	// Log is told of certificates that match the patterns of two identities; nil: nobody is. It is
	// set before the first Replace.
	Log *slog.Logger

	table    atomic.Pointer[table] // nil: no identity is declared
	accounts quota.Identities
}

// A table is the identities of one configuration. Immutable.
type table struct {
	tokens  map[hash]*Identity
	claims  []claim // to certificates, in the order of the file
	list    []*Identity
	silent  [places]*Identity // who shows nothing there
	unknown *Identity         // who shows what is no token of these
	unfit   [places]*Identity // who shows what no token can be
	torn    *Identity         // who shows the token of one and the certificate of another

	ambiguous ambiguous
}

// Replace makes the declarations hold, which have no Faults, for everybody at once: what a
// connection has shown is looked up again at its next request.
func (r *Registry) Replace(list []Declaration) {
	limits := make(map[string]quota.Limits, len(list))
	for _, d := range list {
		limits[d.Name] = d.Quota
	}
	accounts := r.accounts.Replace(limits)
	if len(list) == 0 {
		r.table.Store(nil)
		return
	}
	t := &table{
		tokens:  make(map[hash]*Identity),
		unknown: &Identity{nobody: "the token that was shown is none of this server's"},
		torn:    &Identity{nobody: "the token that was shown is of one identity and the certificate of another: show one of them, or both of one"},

		ambiguous: ambiguous{log: r.Log},
	}
	for at := range places {
		t.silent[at] = &Identity{nobody: fmt.Sprintf("this server asks for a token in %v, and none was shown there", at)}
		t.unfit[at] = &Identity{nobody: fmt.Sprintf("what was shown in %v is not one token: it is a text of 1 to 1024 printable ASCII characters, shown once", at)}
	}
	for _, d := range list {
		i := d.identity()
		i.account = accounts[d.Name]
		t.list = append(t.list, i)
		if d.Name == Anonymous {
			for at := range places {
				t.silent[at] = d.identity()
				t.silent[at].account, t.silent[at].place = i.account, at
			}
		}
		for _, text := range d.Tokens {
			if h, err := parseHash(text); err == nil {
				t.tokens[h] = i
			}
		}
		for _, text := range d.Certificates {
			if p, err := parsePattern(text); err == nil {
				t.claims = append(t.claims, claim{p, i})
			}
		}
	}
	r.table.Store(t)
}

// Declared reports whether there are identities. Without any everybody may do everything.
func (r *Registry) Declared() bool { return r.table.Load() != nil }

// Usage is what identities have taken of their quotas, by name.
func (r *Registry) Usage() map[string]quota.Usage { return r.accounts.Usage() }

// Unmatched are the rights of each identity, by its name, whose patterns match none of the names.
func (r *Registry) Unmatched(names []string) map[string][]string {
	all := make(map[string][]string)
	if t := r.table.Load(); t != nil {
		for _, i := range t.list {
			for _, g := range unmatched(i.all, names) {
				all[i.name] = append(all[i.name], g.String())
			}
		}
	}
	return all
}

// Strangers is the identity of whoever shows nothing.
func (r *Registry) Strangers() *Identity {
	if t := r.table.Load(); t != nil {
		return t.silent[InMessage]
	}
	return nil
}

// A Place is where a door looks for a token. Refusals name it, since a token elsewhere is none.
type Place uint8

// The places, by the doors.
const (
	InMessage  Place = iota // of Shiva
	InHeader                // of HTTP
	InMetadata              // of gRPC
	InHello                 // of a container
	places
)

func (p Place) String() string {
	return [...]string{
		`metadata "token" of the connection's first message`, `the header "Authorization: Bearer TOKEN"`,
		`the call's metadata "authorization: Bearer TOKEN"`, `"token" of the container's hello`,
	}[p]
}

// Shown is what one end of a connection has shown of itself. The zero Shown is nothing, over Shiva.
// It is for one goroutine at a time.
type Shown struct {
	Certificate *Certificate // of the connection; nil: none
	Place       Place        // of the token, or where there is none

	kind  kind
	token hash

	table *table // in which who was looked up; nil: in none yet
	who   *Identity
}

type kind uint8

const (
	nothing kind = iota
	aToken
	unfit // nothing that can be looked up
)

// maxToken bounds a token, in bytes. What is longer is not hashed.
const maxToken = 1 << 10

// Token is Shown for a token. The text is not kept.
func Token(text string) Shown {
	if text == "" || len(text) > maxToken || strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return Shown{kind: unfit}
	}
	return Shown{kind: aToken, token: sha256.Sum256([]byte(text))}
}

// Bearer is Shown for the values of an HTTP header Authorization, or of gRPC's metadata of that
// name, of which a request has none or one.
func Bearer(at Place, values []string) Shown {
	shown := Shown{kind: unfit}
	switch len(values) {
	case 0:
		shown.kind = nothing
	case 1:
		scheme, token, ok := strings.Cut(values[0], " ")
		if ok && strings.EqualFold(scheme, "Bearer") {
			shown = Token(strings.TrimLeft(token, " "))
		}
	}
	shown.Place = at
	return shown
}

// Challenge is the header WWW-Authenticate of an answer that asks for a token.
const Challenge = `Bearer realm="shivad"`

// Same reports whether two have shown the same token, or neither any.
func (s *Shown) Same(other *Shown) bool {
	return s != nil && s.kind == other.kind && s.token == other.token
}

// Who is the identity of whoever has shown that, or nothing if it is nil, as of now. It costs a
// load unless the configuration has changed since it was called last. It is never nil where
// identities are declared; Enter says whether it is anybody.
func (r *Registry) Who(s *Shown) *Identity {
	if s == nil {
		return r.Strangers()
	}
	t := r.table.Load()
	if t == s.table { // nil: nobody is declared, and nil may do everything
		return s.who
	}
	s.table, s.who = t, t.find(s)
	return s.who
}

func (t *table) find(s *Shown) *Identity {
	if t == nil {
		return nil
	}
	holder := t.holder(s.Certificate)
	switch {
	case s.kind == unfit:
		return t.unfit[s.Place]
	case s.kind == nothing && holder != nil:
		return holder
	case s.kind == nothing:
		return t.silent[s.Place]
	}
	switch i := t.tokens[s.token]; {
	case i == nil:
		return t.unknown
	case holder != nil && holder.nobody == "" && holder != i:
		return t.torn
	default:
		// Even if its certificate is nobody's: that may be there for the handshake alone.
		return i
	}
}

// Enter is the error for whoever is nobody: it showed nothing and there is no [Anonymous], or a
// token or a certificate that is not declared.
func (i *Identity) Enter() error {
	if i == nil || i.nobody == "" {
		return nil
	}
	return i.Refuse("")
}
