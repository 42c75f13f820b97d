package access

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/shivad/shivad/scheduler/naming"
)

// A Right is a kind of action.
type Right uint8

// The rights. Those up to Serve apply to names, by pattern.
const (
	Infer      Right = iota // send requests to a model or an application
	Feedback                // tell an application the outcome of a request
	Load                    // load and unload a model
	Serve                   // register as a container of a version of a model
	AdminRead               // see what the admin door shows
	AdminWrite              // change what the admin door changes, and see it
	rights     = iota
)

func (r Right) String() string {
	return [...]string{"infer", "feedback", "load", "serve", "admin:read", "admin:write"}[r]
}

// named reports whether a right applies to names.
func (r Right) named() bool { return r <= Serve }

// A grant is one right of an identity and the names that it applies to: "infer:cat*".
type grant struct {
	right   Right
	pattern string // for path.Match: of names, or "name/version" for Serve; "": all
}

// parseGrant parses one element of the setting may.
func parseGrant(text string) (grant, error) {
	for r := range Right(rights) {
		pattern, given := "", false
		if text != r.String() {
			if pattern, given = strings.CutPrefix(text, r.String()+":"); !given {
				continue
			}
		}
		g := grant{r, pattern}
		if !given {
			return g, nil
		}
		return g, g.check()
	}
	return grant{}, fmt.Errorf(`%.100q is not a right: expected infer, feedback, load or serve, for all names or with a pattern, such as "infer:cat*" or "serve:cat/2*"; or admin:read or admin:write`, text)
}

// check returns an error if the pattern can match nothing.
func (g grant) check() error {
	if !g.right.named() {
		return fmt.Errorf("%s takes no pattern, got %.100q", g.right, g.pattern)
	}
	name, version, versioned := strings.Cut(g.pattern, "/")
	if versioned && g.right != Serve {
		return fmt.Errorf("%s applies to names, but %.100q has a version: only serve takes one", g.right, g.pattern)
	}
	for _, part := range []struct {
		text  string
		check func(string) error
	}{{name, naming.CheckModel}, {version, naming.CheckVersion}} {
		if part.text == "" && (versioned || part.text == g.pattern) {
			return fmt.Errorf("%s: %.100q: a pattern of 0 bytes matches nothing; without a colon the right applies to all names",
				g.right, g.pattern)
		}
		if _, err := path.Match(part.text, ""); err != nil {
			return fmt.Errorf("%s: pattern %.100q: a bracket is not closed, or no character follows a backslash",
				g.right, part.text)
		}
		if part.text != "" && !strings.ContainsAny(part.text, `*?[\`) {
			if err := part.check(part.text); err != nil {
				return fmt.Errorf("%s: no model or version can have this name: %w", g.right, err)
			}
		}
	}
	return nil
}

// CheckServe returns an error if no model can match a pattern of [Serve], such as "cat*" or
// "cat/2*".
func CheckServe(pattern string) error { return grant{Serve, pattern}.check() }

// Serves reports whether a pattern of [Serve] applies to "name/version".
func Serves(pattern, model string) bool { return pattern != "" && grant{Serve, pattern}.matches(model) }

// ServesSome is Serves for a model of which a client may have named no version: "name" or
// "name/version".
func ServesSome(pattern, id string) bool {
	if name, _, versioned := strings.Cut(pattern, "/"); versioned && !strings.Contains(id, "/") {
		pattern = name
	}
	return Serves(pattern, id)
}

func (g grant) String() string {
	if g.pattern == "" {
		return g.right.String()
	}
	return g.right.String() + ":" + g.pattern
}

// matches reports whether the grant applies to a name, which is "name/version" for Serve.
func (g grant) matches(name string) bool {
	if g.pattern == "" {
		return true
	}
	pattern := g.pattern
	if g.right == Serve && !strings.Contains(pattern, "/") {
		name, _, _ = strings.Cut(name, "/")
	}
	ok, _ := path.Match(pattern, name)
	return ok
}

// unmatched returns the grants that match none of the names. Versions in patterns are ignored.
func unmatched(grants []grant, names []string) (list []grant) {
	for _, g := range grants {
		byName := g
		byName.pattern, _, _ = strings.Cut(g.pattern, "/")
		if g.pattern != "" && !slices.ContainsFunc(names, byName.matches) {
			list = append(list, g)
		}
	}
	return list
}
