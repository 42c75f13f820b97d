// Package token handles the secrets that identify clients and containers to a server. Possession is
// identity: keep a token in a file or in the environment, never on a command line, which every
// process of the machine can read.
package token

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"sync"
)

// Environment variables with a token, and with the path of a file that has one. Env takes
// precedence.
const (
	Env     = "SHIVA_TOKEN"
	FileEnv = "SHIVA_TOKEN_FILE"
)

// maxBytes is the length in bytes of the longest token that a server accepts.
const maxBytes = 1 << 10

// New makes a token of 32 random bytes. Its prefix lets secret scanners find tokens that were
// published by mistake.
func New() string {
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails
	return "shiva_" + base64.RawURLEncoding.EncodeToString(random[:])
}

// Hash returns the hash of a token that a server's configuration has as token_sha256.
func Hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// A Source provides a program's token. It is read for each connection, so that the file of a token
// can be replaced while the program runs. Any goroutine may use it.
type Source struct {
	path string // "": the token is fixed

	mu   sync.Mutex
	last string
}

// Fixed returns a source that always provides text; "" means no token.
func Fixed(text string) *Source { return &Source{last: text} }

// FromEnvironment returns the source of the process's token, which is "" if it has none. Errors
// never contain the token.
func FromEnvironment() (*Source, error) {
	if source, err := FromVariable(Env); source != nil {
		return source, err
	}
	if path := os.Getenv(FileEnv); path != "" {
		return FromFile(path)
	}
	return Fixed(""), nil
}

// FromVariable returns the source of the token in an environment variable; nil if the variable is
// not set or blank. Errors never contain the token.
func FromVariable(name string) (*Source, error) {
	token := strings.TrimSpace(os.Getenv(name))
	if token == "" {
		return nil, nil
	}
	return Fixed(token), check("$"+name, token)
}

// FromFile returns the source of the token in a file, which may have only white space around it.
// Errors never contain the token.
func FromFile(path string) (*Source, error) {
	token, err := read(path)
	return &Source{path: path, last: token}, err
}

// Token returns the current token: that of the file, if there is one. While the file has no valid
// token, as during its replacement, Token returns the previous one.
func (s *Source) Token() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path != "" {
		if token, err := read(s.path); err == nil {
			s.last = token
		}
	}
	return s.last
}

func read(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	// Editors of Windows write a byte order mark.
	token := strings.TrimSpace(strings.TrimPrefix(string(text), "\ufeff"))
	return token, check(path, token)
}

// check returns an error if no server would accept token.
func check(where, token string) error {
	printable := strings.IndexFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) < 0
	if token == "" || len(token) > maxBytes || !printable {
		return fmt.Errorf("%s: expected a token, which is 1 to %d printable ASCII characters without a space; it has %d bytes",
			where, maxBytes, len(token))
	}
	return nil
}
