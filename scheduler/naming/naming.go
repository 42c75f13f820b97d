// Package naming has the rules for the names of models, versions and applications. They are the
// same for names from containers, files and operators: a name becomes a path element of a route,
// the label of a metric, a key in the store and a word in a log line, and operators tell models
// apart by their names.
//
// A name has 1 to 128 bytes of printable characters without a slash. It neither begins nor ends
// with a space, and is neither "." nor "..", which HTTP clients and proxies treat as directories.
// It must not be confusable with another name. So it must be in Unicode form NFKC, which has a
// single spelling for "é" (one character or two) and for full-width letters, and all its letters
// must be of one script, which rejects "pаypal" with a Cyrillic а. Latin letters may be mixed with
// Chinese, Japanese or Korean ones, with which they are never confused. Source: Unicode Technical
// Standard 39, "Highly Restrictive". Two names that look alike as a whole, each in a script of its
// own, are not detected.
package naming

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// MaxBytes is the length of the longest name.
const MaxBytes = 128

// CheckModel returns an error that says why no model, application or pipeline may have the name,
// or nil. Names that begin with '!' and those of the doors' own routes are reserved for the server.
func CheckModel(name string) error {
	if strings.HasPrefix(name, "!") {
		return fmt.Errorf("%q begins with '!', which is reserved for the server", name)
	}
	if name == "v2" || name == "stats" {
		return fmt.Errorf("%q is reserved: the server has routes of this name", name)
	}
	return check(name)
}

// CheckVersion returns an error that says why no version of a model may have the name, or nil.
// "name/update" is the route of feedback, and "name/*" stands for all versions of a model.
func CheckVersion(version string) error {
	if version == "update" || version == "*" {
		return fmt.Errorf("%q is reserved: in routes it means something other than a version", version)
	}
	return check(version)
}

func check(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("is empty, expected 1 to %d bytes", MaxBytes)
	case len(name) > MaxBytes:
		return fmt.Errorf("%.32q… has %d bytes, limit %d", name, len(name), MaxBytes)
	case !utf8.ValidString(name):
		return fmt.Errorf("%q is not UTF-8", name)
	case name == "." || name == "..":
		return fmt.Errorf("%q is not allowed: in file paths it means a directory", name)
	case name[0] == ' ' || name[len(name)-1] == ' ':
		return fmt.Errorf("%q begins or ends with a space", name)
	case strings.Contains(name, "/"):
		return fmt.Errorf("%q has a '/', which separates model and version in a route", name)
	}
	if i := strings.IndexFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
		return fmt.Errorf("%q has an unprintable character at byte %d", name, i)
	}
	if plain := norm.NFKC.String(name); plain != name {
		return fmt.Errorf("%q looks like %q: use that (Unicode form NFKC)", name, plain)
	}
	if scripts := scriptsOf(name); !together(scripts) {
		return fmt.Errorf("%q has letters of several scripts (%s), which look alike: use one",
			name, strings.Join(scripts, ", "))
	}
	return nil
}

// families are the sets of scripts that one language mixes.
var families = [][]string{
	{"Latin", "Han", "Hiragana", "Katakana"},
	{"Latin", "Han", "Hangul"},
	{"Latin", "Han", "Bopomofo"},
}

// together reports whether one name may have letters of all these scripts.
func together(scripts []string) bool {
	if len(scripts) <= 1 {
		return true
	}
	return slices.ContainsFunc(families, func(family []string) bool {
		return !slices.ContainsFunc(scripts, func(s string) bool { return !slices.Contains(family, s) })
	})
}

// scriptsOf returns the scripts of a name's letters, each once, sorted. Digits, punctuation and
// marks belong to all scripts.
func scriptsOf(name string) []string {
	var scripts []string
	for _, r := range name {
		if r < utf8.RuneSelf {
			if unicode.IsLetter(r) {
				scripts = append(scripts, "Latin")
			}
			continue
		}
		for script, table := range unicode.Scripts {
			if script != "Common" && script != "Inherited" && unicode.Is(table, r) {
				scripts = append(scripts, script)
			}
		}
	}
	slices.Sort(scripts)
	return slices.Compact(scripts)
}
