package naming_test

import (
	"strings"
	"testing"

	"github.com/shivad/shivad/scheduler/naming"
)

func TestNames(t *testing.T) {
	for _, name := range []string{
		"digits", "a", "a b", "digits-2.1_final", "v3", "...", "Größe", "модель-7", "猫とdog", "고양이 cat",
		strings.Repeat("x", 128), "día", "1",
	} {
		if err := naming.CheckModel(name); err != nil {
			t.Errorf("model %q: %v", name, err)
		}
		if err := naming.CheckVersion(name); err != nil {
			t.Errorf("version %q: %v", name, err)
		}
	}
	for name, want := range map[string]string{
		"":                       "is empty",
		".":                      "directory",
		"..":                     "directory",
		" a":                     "begins or ends with a space",
		"a ":                     "begins or ends with a space",
		"a/b":                    "'/'",
		"a\nb":                   "unprintable character at byte 1",
		"a\u00a0b":               "unprintable",
		"a\u200bb":               "unprintable",
		"\xff":                   "not UTF-8",
		strings.Repeat("x", 129): "has 129 bytes, limit 128",
		"p\u0430ypal":            "several scripts (Cyrillic, Latin)",
		"\u0391pple":             "several scripts (Greek, Latin)",
		"\u0441\u732b":           "several scripts (Cyrillic, Han)",
		"cafe\u0301":             "looks like \"café\"",
		"\uff44\uff49\uff47":     "looks like \"dig\"",
		"\u212bngstr\u00f6m":     "looks like",
		"\u30ab\ud55c":           "several scripts (Hangul, Katakana)",
	} {
		for _, check := range []func(string) error{naming.CheckModel, naming.CheckVersion} {
			if err := check(name); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want something of %q", name, err, want)
			}
		}
	}
	for _, name := range []string{"v2", "stats", "!x"} {
		if naming.CheckModel(name) == nil || naming.CheckVersion(name) != nil {
			t.Errorf("%q: %v, %v", name, naming.CheckModel(name), naming.CheckVersion(name))
		}
	}
	for _, version := range []string{"update", "*"} {
		if naming.CheckVersion(version) == nil {
			t.Errorf("version %q is allowed", version)
		}
	}
}
