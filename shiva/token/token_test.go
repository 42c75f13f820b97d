package token_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/token"
)

func TestNew(t *testing.T) {
	one, other := token.New(), token.New()
	if one == other || len(one) < 40 || !strings.HasPrefix(one, "shiva_") {
		t.Errorf("%q, %q", one, other)
	}
	if got := token.Hash("abc"); got != "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" {
		t.Errorf("the SHA-256 of abc is %s", got)
	}
}

// The variable takes precedence over the file, surrounding white space is trimmed, and errors never
// contain the token.
func TestFromEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	for _, c := range []struct{ variable, file, want, wrong string }{
		{"", "", "", ""},
		{" secret ", "other", "secret", ""},
		{"", "secret\n", "secret", ""},
		{"", "\ufeffsecret\r\n", "secret", ""}, // as editors of Windows save it
		{"", "two secrets", "", "expected a token"},
		{"", "\n", "", "it has 0 bytes"},
		{"sécret", "", "", "$SHIVA_TOKEN: expected a token"},
		{strings.Repeat("secret", 300), "", "", "it has 1800 bytes"},
	} {
		t.Setenv(token.Env, c.variable)
		t.Setenv(token.FileEnv, "")
		if c.file != "" {
			if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv(token.FileEnv, file)
		}
		source, err := token.FromEnvironment()
		switch {
		case err == nil && (source.Token() != c.want || c.wrong != ""):
			t.Errorf("%+v: %q", c, source.Token())
		case err != nil && (c.wrong == "" || !strings.Contains(err.Error(), c.wrong) || strings.Contains(err.Error(), "secret")):
			t.Errorf("%+v: %v", c, err)
		}
	}
	t.Setenv(token.Env, "")
	t.Setenv(token.FileEnv, filepath.Join(t.TempDir(), "absent"))
	if _, err := token.FromEnvironment(); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("a file that there is not: %v", err)
	}
}

// A file is read for each connection. While it has no token, the previous one is shown.
func TestFileIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	s, err := token.FromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	expect := func(want string) {
		t.Helper()
		if got := s.Token(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	expect("first")
	write("second")
	expect("second")
	for _, half := range []string{"", "a b", strings.Repeat("x", 2000)} {
		write(half)
		expect("second")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	expect("second")
	write("third")
	expect("third")
}
