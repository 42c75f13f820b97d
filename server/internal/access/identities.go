package access

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
)

// Identities has the identities of a server. The zero Identities has none.
type Identities struct {
	// Log receives certificates that match patterns of two identities; nil: no log. Set it before
	// the first Replace.
	Log *slog.Logger

	table    atomic.Pointer[table] // nil: no identity is declared
	accounts identityAccounts
}

// A table has the identities of one configuration. It is immutable.
type table struct {
	tokens         map[hash]*Identity
	claims         []claim // on certificates, in the order of the file
	list           []*Identity
	noToken        [places]*Identity // for clients that present no token there
	unknown        *Identity         // for clients with an undeclared token
	malformedToken [places]*Identity // for clients with a malformed token
	mismatch       *Identity         // for a token of one identity and a certificate of another

	ambiguous ambiguous
}

// Replace installs the declarations, which must have no Faults. The identity of an open connection
// is looked up again at its next request.
func (r *Identities) Replace(list []Declaration) {
	limits := make(map[string]Limits, len(list))
	for _, d := range list {
		limits[d.Name] = d.Quota
	}
	accounts := r.accounts.Replace(limits)
	if len(list) == 0 {
		r.table.Store(nil)
		return
	}
	t := &table{
		tokens:   make(map[hash]*Identity),
		unknown:  &Identity{rejection: "the presented token belongs to no identity of this server"},
		mismatch: &Identity{rejection: "the presented token belongs to one identity and the certificate to another: present one of them, or both of the same identity"},

		ambiguous: ambiguous{log: r.Log},
	}
	for at := range places {
		t.noToken[at] = &Identity{rejection: fmt.Sprintf("this server requires a token in %v, but none was presented", at)}
		t.malformedToken[at] = &Identity{rejection: fmt.Sprintf("expected one token in %v, of 1 to 1024 printable ASCII characters, got something else", at)}
	}
	for _, d := range list {
		i := d.identity()
		i.account = accounts[d.Name]
		t.list = append(t.list, i)
		if d.Name == Anonymous {
			for at := range places {
				t.noToken[at] = d.identity()
				t.noToken[at].account, t.noToken[at].place = i.account, at
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

// Declared reports whether identities are declared. Otherwise every client may do everything.
func (r *Identities) Declared() bool { return r.table.Load() != nil }

// AnyServes reports whether any identity may serve a model, "name" or "name/version". Without
// declared identities any container may.
func (r *Identities) AnyServes(id string) bool {
	t := r.table.Load()
	may := func(g grant) bool { return g.pattern == "" || ServesSome(g.pattern, id) }
	return t == nil || slices.ContainsFunc(t.list, func(i *Identity) bool {
		return slices.ContainsFunc(i.grants[Serve], may)
	})
}

// Usage returns what identities have used of their quotas, by name.
func (r *Identities) Usage() map[string]Usage { return r.accounts.Usage() }

// Unmatched returns, by identity, the rights whose patterns match none of the names.
func (r *Identities) Unmatched(names []string) map[string][]string {
	all := make(map[string][]string)
	if t := r.table.Load(); t != nil {
		for _, i := range t.list {
			for _, g := range unmatched(i.grantList, names) {
				all[i.name] = append(all[i.name], g.String())
			}
		}
	}
	return all
}

// Strangers returns the identity of clients that present nothing.
func (r *Identities) Strangers() *Identity {
	if t := r.table.Load(); t != nil {
		return t.noToken[InMessage]
	}
	return nil
}

// A TokenPlace is where a door looks for a token. Refusals name it, since a token anywhere else
// does not count.
type TokenPlace uint8

// The places, by the doors.
const (
	InMessage  TokenPlace = iota // of Shiva
	InHeader                     // of HTTP
	InMetadata                   // of gRPC
	InHello                      // of a container
	places
)

func (p TokenPlace) String() string {
	return [...]string{
		`metadata "token" of the connection's first message`, `the header "Authorization: Bearer TOKEN"`,
		`the call's metadata "authorization: Bearer TOKEN"`, `"token" of the container's hello`,
	}[p]
}

// Credentials holds the credentials that a client has presented. The zero Credentials has none,
// over Shiva. Only one goroutine at a time may use it.
type Credentials struct {
	Certificate *Certificate // of the connection; nil: none
	Place       TokenPlace   // where the token is, or was expected

	kind  kind
	token hash

	table    *table // the table that identity is from; nil: none yet
	identity *Identity
}

type kind uint8

const (
	noToken kind = iota
	validToken
	malformedToken // text that cannot be a token
)

// maxToken bounds a token, in bytes. Longer texts are not hashed.
const maxToken = 1 << 10

// Token returns the Credentials of a token. It does not retain the text.
func Token(text string) Credentials {
	if text == "" || len(text) > maxToken ||
		strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return Credentials{kind: malformedToken}
	}
	return Credentials{kind: validToken, token: sha256.Sum256([]byte(text))}
}

// Bearer returns the Credentials of an HTTP request's Authorization headers, or of gRPC metadata of
// that name. A valid request has at most one.
func Bearer(at TokenPlace, values []string) Credentials {
	shown := Credentials{kind: malformedToken}
	switch len(values) {
	case 0:
		shown.kind = noToken
	case 1:
		scheme, token, ok := strings.Cut(values[0], " ")
		if ok && strings.EqualFold(scheme, "Bearer") {
			shown = Token(strings.TrimLeft(token, " "))
		}
	}
	shown.Place = at
	return shown
}

// Challenge is the WWW-Authenticate header of a response that asks for a token.
const Challenge = `Bearer realm="shivad"`

// Same reports whether both have the same token, or neither has one.
func (s *Credentials) Same(other *Credentials) bool {
	return s != nil && s.kind == other.kind && s.token == other.token
}

// Who returns the current identity of a client that has presented s, which may be nil. It costs an
// atomic load unless the configuration has changed since the last call. The result is nil only if
// no identities are declared; Enter reports whether the result is nobody.
func (r *Identities) Who(s *Credentials) *Identity {
	if s == nil {
		return r.Strangers()
	}
	t := r.table.Load()
	if t == s.table { // both nil: no identities are declared, and the result is nil
		return s.identity
	}
	s.table, s.identity = t, t.find(s)
	return s.identity
}

func (t *table) find(s *Credentials) *Identity {
	if t == nil {
		return nil
	}
	holder := t.holder(s.Certificate)
	switch {
	case s.kind == malformedToken:
		return t.malformedToken[s.Place]
	case s.kind == noToken && holder != nil:
		return holder
	case s.kind == noToken:
		return t.noToken[s.Place]
	}
	switch i := t.tokens[s.token]; {
	case i == nil:
		return t.unknown
	case holder != nil && holder.rejection == "" && holder != i:
		return t.mismatch
	default:
		// Also if the certificate belongs to nobody: it may serve only the handshake.
		return i
	}
}

// Named returns the present identity of the client that had the identity of that name; "": that had
// none. The result is nil only if no identities are declared.
func (r *Identities) Named(name string) *Identity {
	t := r.table.Load()
	if t == nil {
		return nil
	}
	if name == "" || name == Anonymous {
		return t.noToken[InMessage]
	}
	at := slices.IndexFunc(t.list, func(i *Identity) bool { return i.name == name })
	if at < 0 {
		return t.unknown
	}
	return t.list[at]
}

// Enter returns an error if the identity is nobody: the client presented nothing and there is no
// [Anonymous], or it presented a token or a certificate that is not declared.
func (i *Identity) Enter() error {
	if i == nil || i.rejection == "" {
		return nil
	}
	return i.Refuse("")
}
