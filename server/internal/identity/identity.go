package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode"

	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/quota"
)

// Refusals, on all doors.
var (
	ErrUnauthenticated  = errors.New("unauthenticated")
	ErrPermissionDenied = errors.New("permission denied")
)

// Anonymous is the name of the identity that is everybody's who shows nothing. It has neither
// tokens nor certificates.
const Anonymous = "anonymous"

// A Declaration is an identity in the words of the configuration.
type Declaration struct {
	Name         string
	Tokens       []string // the SHA-256 of each, in hexadecimal
	Certificates []string // patterns of names in certificates
	May          []string
	Quota        quota.Limits
}

// maxName bounds the name of an identity, in bytes.
const maxName = 128

// Faults is what is wrong with it, by the names of the file. None shows a token, which somebody may
// have put in the place of its hash.
func (d Declaration) Faults() (fs setting.Faults) {
	switch {
	case d.Name == "":
		fs.Add("name", "missing: who it is, in errors, in logs and in status")
	case len(d.Name) > maxName:
		fs.Add("name", "it has %d bytes, the limit is %d", len(d.Name), maxName)
	case strings.ContainsFunc(d.Name, func(r rune) bool { return !unicode.IsPrint(r) }):
		fs.Add("name", "%q has characters that are not printable", d.Name)
	case d.Name == Anonymous && len(d.Tokens) > 0:
		fs.Add("token_sha256", "%q is whoever shows no token, and has none: give the identity another name", Anonymous)
	case d.Name == Anonymous && len(d.Certificates) > 0:
		fs.Add("certificate", "%q is whoever shows no certificate, and has none: give the identity another name", Anonymous)
	case d.Name != Anonymous && len(d.Tokens)+len(d.Certificates) == 0:
		fs.Add("token_sha256", "missing, and so is certificate: nobody could be %q; \"shivactl tokens new\" prints a token and its hash", d.Name)
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
		fs.Add("may", `missing: %q could do nothing; what it may is a list, as ["infer"] or ["infer:cat*", "admin:read"]`, d.Name)
	}
	for i, text := range d.May {
		_, err := parse(text)
		fs.Check("may["+strconv.Itoa(i)+"]", err)
	}
	for _, f := range d.Quota.Faults() {
		fs.Add("quota."+f.Key, "%s", f.Text)
	}
	return fs
}

// element is the name of one of a list, which the file may give as a single string.
func element(key string, list []string, i int) string {
	if len(list) > 1 {
		key += "[" + strconv.Itoa(i) + "]"
	}
	return key
}

type hash = [sha256.Size]byte

// parseHash reads a hash. Its error tells nothing of the text.
func parseHash(text string) (h hash, err error) {
	if len(text) != hex.EncodedLen(len(h)) {
		return h, fmt.Errorf("expected the SHA-256 of a token, %d hexadecimal digits as \"shivactl tokens new\" prints them, got %d characters", hex.EncodedLen(len(h)), len(text))
	}
	if _, err := hex.Decode(h[:], []byte(text)); err != nil {
		return h, fmt.Errorf("expected the SHA-256 of a token, %d hexadecimal digits, got %d characters of which some are others", hex.EncodedLen(len(h)), len(text))
	}
	return h, nil
}

// SameToken is the index of the declaration before the last that has a token of it, or -1.
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

// An Identity is who asks. It is immutable, but for Routes, and of one configuration: after a
// reload there are others.
type Identity struct {
	name   string
	grants [rights][]grant
	all    []grant // in the order of the file
	nobody string  // not "": it has no rights since nothing, or nothing known, was shown
	place  Place   // of Anonymous: where no token was shown

	account *quota.Account // nil: it is nobody

	// Routes is the gate's: what of its routes the identity may use.
	Routes atomic.Value
}

func (d Declaration) identity() *Identity {
	i := &Identity{name: d.Name}
	for _, text := range d.May {
		g, err := parse(text)
		if err != nil {
			continue // Faults has reported it
		}
		i.all = append(i.all, g)
		i.grants[g.right] = append(i.grants[g.right], g)
	}
	return i
}

// Name is that of the declaration; "" of nil and of nobody.
func (i *Identity) Name() string {
	if i == nil {
		return ""
	}
	return i.name
}

// Account is what connections of the identity count for; nil of nil and of nobody.
func (i *Identity) Account() *quota.Account {
	if i == nil {
		return nil
	}
	return i.account
}

// Payers are those that requests of the identity from an address are charged to: itself, and the
// address where that is all that is known of the client.
func (i *Identity) Payers(address *quota.Account) quota.Payers {
	switch {
	case i == nil || i.account == nil:
		return quota.Payers{address}
	case i.name == Anonymous:
		return quota.Payers{address, i.account}
	}
	return quota.Payers{i.account}
}

// A Description is an identity as it is told who it is.
type Description struct {
	// Identity is its name; none: the server declares no identities, and everybody may do
	// everything.
	Identity string   `json:"identity,omitempty"`
	May      []string `json:"may"` // its rights in the words of the configuration
}

// Describe tells an identity who it is.
func (i *Identity) Describe() Description {
	d := Description{May: []string{}}
	if i == nil {
		for r := range Right(rights) {
			d.May = append(d.May, r.String())
		}
		return d
	}
	d.Identity = i.name
	for _, g := range i.all {
		d.May = append(d.May, g.String())
	}
	return d
}

// May reports whether the identity has a right, of a name if it is one of names; Serve is of
// "name/version".
func (i *Identity) May(r Right, name string) bool {
	if i == nil {
		return true
	}
	for _, g := range i.grants[r] {
		if g.matches(name) {
			return true
		}
	}
	return r == AdminRead && i.May(AdminWrite, "")
}

// MayAny reports whether the identity has a right, of any name.
func (i *Identity) MayAny(r Right) bool { return i == nil || len(i.grants[r]) > 0 }

// Sees reports whether the identity may know of a model or an application of that name: it may use
// it, or read what operators see.
func (i *Identity) Sees(name string) bool {
	return i.May(Infer, name) || i.May(Feedback, name) || i.May(Load, name) || i.May(AdminRead, "")
}

// Check is the error for an identity that lacks a right; of names, with the name that it asked for.
// It does not depend on whether there is anything of that name.
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

// CheckAny is the error for an identity that has a right of no name at all.
func (i *Identity) CheckAny(r Right) error {
	if i.MayAny(r) {
		return nil
	}
	return i.Refuse("the right " + r.String())
}

// CheckSees is the error for an identity that may not know of a name.
func (i *Identity) CheckSees(name string) error {
	if i.Sees(name) {
		return nil
	}
	return i.Refuse("one of the rights infer, feedback and load of " + name)
}

// Refuse is the error for an identity that lacks what is named.
func (i *Identity) Refuse(lacks string) error {
	switch {
	case i.nobody != "":
		return fmt.Errorf("%w: %s", ErrUnauthenticated, i.nobody)
	case i.name == Anonymous:
		return fmt.Errorf("%w: it needs %s, which whoever shows no token in %v does not have", ErrUnauthenticated, lacks, i.place)
	}
	return fmt.Errorf("%w: identity %q lacks %s", ErrPermissionDenied, i.name, lacks)
}
