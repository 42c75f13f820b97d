package access

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode"

	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/fault"
)

// Anonymous is the name of the identity of clients that present nothing. It has neither tokens nor
// certificates.
const Anonymous = "anonymous"

// A Declaration is an identity as the configuration declares it.
type Declaration struct {
	Name         string
	Tokens       []string // the SHA-256 of each, in hexadecimal
	Certificates []string // patterns of names in certificates
	May          []string
	Regions      []string // patterns of keys of shared memory
	Quota        Limits
}

// Infers reports whether the identity may ask some model.
func (d Declaration) Infers() bool { return d.identity().MayAny(Infer) }

// maxName bounds the name of an identity, in bytes.
const maxName = 128

// Faults lists what is wrong with the declaration, by the names of the file. No text contains the
// value of token_sha256, which may be a token put there by mistake.
func (d Declaration) Faults() (fs setting.Faults) {
	switch {
	case d.Name == "":
		fs.Add("name", "missing: errors, logs and status name the identity by it")
	case len(d.Name) > maxName:
		fs.Add("name", "it has %d bytes, the limit is %d", len(d.Name), maxName)
	case strings.ContainsFunc(d.Name, func(r rune) bool { return !unicode.IsPrint(r) }):
		fs.Add("name", "%q has characters that are not printable", d.Name)
	case d.Name == Anonymous && len(d.Tokens) > 0:
		fs.Add("token_sha256", "%q is the identity of clients without a token, and cannot have one: give the identity another name", Anonymous)
	case d.Name == Anonymous && len(d.Certificates) > 0:
		fs.Add("certificate", "%q is the identity of clients without a certificate, and cannot have one: give the identity another name", Anonymous)
	case d.Name != Anonymous && len(d.Tokens)+len(d.Certificates) == 0:
		fs.Add("token_sha256", "missing, as is certificate: no client could be identified as %q; \"shivactl tokens new\" prints a token and its hash", d.Name)
	}
	for i, text := range d.Tokens {
		if _, err := parseHash(text); err != nil {
			fs.Check(element("token_sha256", d.Tokens, i), err)
		}
	}
	for i, text := range d.Certificates {
		_, err := parsePattern(text)
		fs.Check(element("certificate", d.Certificates, i), err)
	}
	if len(d.May) == 0 {
		fs.Add("may", `missing: %q could do nothing; expected a list of rights, such as ["infer"] or ["infer:cat*", "admin:read"]`, d.Name)
	}
	for i, text := range d.May {
		_, err := parseGrant(text)
		fs.Check("may["+strconv.Itoa(i)+"]", err)
	}
	for _, f := range d.Quota.Faults() {
		fs.Add("quota."+f.Key, "%s", f.Text)
	}
	return fs
}

// element names an element of a list, which the file may give as a single string.
func element(key string, list []string, i int) string {
	if len(list) > 1 {
		key += "[" + strconv.Itoa(i) + "]"
	}
	return key
}

type hash = [sha256.Size]byte

// parseHash parses the hash of a token. Its error does not contain the text.
func parseHash(text string) (h hash, err error) {
	if len(text) != hex.EncodedLen(len(h)) {
		return h, fmt.Errorf("expected the SHA-256 of a token, %d hexadecimal digits as \"shivactl tokens new\" prints them, got %d characters",
			hex.EncodedLen(len(h)), len(text))
	}
	if _, err := hex.Decode(h[:], []byte(text)); err != nil {
		return h, fmt.Errorf("expected the SHA-256 of a token, %d hexadecimal digits, got %d characters, not all of them hexadecimal",
			hex.EncodedLen(len(h)), len(text))
	}
	return h, nil
}

// SameToken returns the index of an earlier declaration that shares a token with the last, or -1.
func SameToken(list []Declaration) int {
	last := list[len(list)-1]
	for i, other := range list[:len(list)-1] {
		for _, a := range last.Tokens {
			for _, b := range other.Tokens {
				if strings.EqualFold(a, b) {
					return i
				}
			}
		}
	}
	return -1
}

// An Identity is an authenticated client or container. Except for Routes it is immutable; a reload
// makes new identities.
type Identity struct {
	name      string
	grants    [rights][]grant
	grantList []grant    // in the order of the file
	rejection string     // not "": the identity is nobody, for this reason
	place     TokenPlace // of Anonymous: where no token was presented

	account *Account // nil for nobody

	// Routes belongs to the gate: the routes that the identity may use.
	Routes atomic.Value
}

func (d Declaration) identity() *Identity {
	i := &Identity{name: d.Name}
	for _, text := range d.May {
		g, err := parseGrant(text)
		if err != nil {
			continue // Faults has reported it
		}
		i.grantList = append(i.grantList, g)
		i.grants[g.right] = append(i.grants[g.right], g)
	}
	return i
}

// Name is the declared name; "" for nil and nobody.
func (i *Identity) Name() string {
	if i == nil {
		return ""
	}
	return i.name
}

// Account is the quota account of the identity; nil for nil and nobody.
func (i *Identity) Account() *Account {
	if i == nil {
		return nil
	}
	return i.account
}

// Payers are the accounts that pay for requests of the identity from an address: its own, and the
// address's if nothing else is known about the client.
func (i *Identity) Payers(address *Account) Payers {
	switch {
	case i == nil || i.account == nil:
		return Payers{address}
	case i.name == Anonymous:
		return Payers{address, i.account}
	}
	return Payers{i.account}
}

// A Description is what an identity is told about itself.
type Description struct {
	// Identity is its name; empty: the server declares no identities, and every client may do
	// everything.
	Identity string   `json:"identity,omitempty"`
	May      []string `json:"may"` // its rights in the words of the configuration
}

// Describe returns the identity's name and rights.
func (i *Identity) Describe() Description {
	d := Description{May: []string{}}
	if i == nil {
		for r := range Right(rights) {
			d.May = append(d.May, r.String())
		}
		return d
	}
	d.Identity = i.name
	for _, g := range i.grantList {
		d.May = append(d.May, g.String())
	}
	return d
}

// May reports whether the identity has a right for a name. The name is ignored for the admin
// rights, and is "name/version" for Serve.
func (i *Identity) May(r Right, name string) bool {
	holds := func(g grant) bool { return g.matches(name) }
	return i == nil || slices.ContainsFunc(i.grants[r], holds) || r == AdminRead && i.May(AdminWrite, "")
}

// MayAny reports whether the identity has a right for some name.
func (i *Identity) MayAny(r Right) bool { return i == nil || len(i.grants[r]) > 0 }

// Sees reports whether the identity may know of a model or application: it has a right to use that
// one, or has admin:read.
func (i *Identity) Sees(name string) bool {
	return i.May(Infer, name) || i.May(Feedback, name) || i.May(Load, name) || i.May(AdminRead, "")
}

// Check returns an error if the identity lacks a right for a name. The result does not depend on
// whether anything of that name exists.
func (i *Identity) Check(r Right, name string) error {
	if i.May(r, name) {
		return nil
	}
	right := r.String()
	if r.named() && name != "" {
		right += ":" + name
	}
	return i.Refuse("the right " + right)
}

// CheckAny returns an error if the identity has a right for no name at all.
func (i *Identity) CheckAny(r Right) error {
	if i.MayAny(r) {
		return nil
	}
	return i.Refuse("the right " + r.String())
}

// CheckSees returns an error if the identity may not know of a name; see Sees.
func (i *Identity) CheckSees(name string) error {
	if i.Sees(name) {
		return nil
	}
	return i.Refuse("one of the rights infer, feedback and load of " + name)
}

// Refuse returns the error for an identity that lacks something, such as "the right infer".
func (i *Identity) Refuse(lacks string) error {
	switch {
	case i.rejection != "":
		return fmt.Errorf("%w: %s", fault.ErrUnauthenticated, i.rejection)
	case i.name == Anonymous:
		return fmt.Errorf("%w: %s is required, which clients without a token in %v do not have",
			fault.ErrUnauthenticated, lacks, i.place)
	}
	return fmt.Errorf("%w: identity %q lacks %s", fault.ErrPermissionDenied, i.name, lacks)
}
