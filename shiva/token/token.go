// Package token is about the texts by which a server knows its clients and containers. Whoever has
// one is that client: a token is in a file or in the environment, and never on a command line,
// which every process of the machine can read.
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

// Environment variables with a token, and with the path of a file that has one. The first goes
// before the second.
const (
	Env     = "SHIVA_TOKEN"
	FileEnv = "SHIVA_TOKEN_FILE"
)

// maxBytes is the longest token that a server takes, in bytes.
const maxBytes = 1 << 10

// New makes a token of 32 random bytes. The beginning is for those who search for secrets that were
// published by mistake.
func New() string {
	var random [32]byte
	_, _ = rand.Read(random[:]) // it never fails
	return "shiva_" + base64.RawURLEncoding.EncodeToString(random[:])
}

// Hash is what the configuration of a server has of a token, for token_sha256.
func Hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// A Source is where a program has its token from. It is asked for each connection, so that the file
// of a token can be replaced while the program runs. Any goroutine may use it.
type Source struct {
	path string // "": the token stays as it is

	mu   sync.Mutex
	last string
}

// Fixed is the source of a token that stays; "" is none.
func Fixed(text string) *Source { return &Source{last: text} }

// FromEnvironment is the source of the process's token, which is "" if it has none. An error shows
// no token.
func FromEnvironment() (*Source, error) {
	if source, err := FromVariable(Env); source != nil {
		return source, err
	}
	if path := os.Getenv(FileEnv); path != "" {
		return FromFile(path)
	}
	return Fixed(""), nil
}

// FromVariable is the source of the token in an environment variable; nil if it is not set. An
// error shows no token.
func FromVariable(name string) (*Source, error) {
	token := strings.TrimSpace(os.Getenv(name))
	if token == "" {
		return nil, nil
	}
	return Fixed(token), check("$"+name, token)
}

// FromFile is the source of the token in a file, which has nothing else but white space around it.
// An error shows no token.
func FromFile(path string) (*Source, error) {
	token, err := read(path)
	return &Source{path: path, last: token}, err
}

// Token is the token that a file has now. While it has none, as when it is being replaced, it is
// the one before.
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
		return "", fmt.Errorf("a token is expected: %w", err)
	}
	token := strings.TrimSpace(string(text))
	return token, check(path, token)
}

// check is the error of what no server takes for a token.
func check(where, token string) error {
	printable := strings.IndexFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) < 0
	if token == "" || len(token) > maxBytes || !printable {
		return fmt.Errorf("%s: expected a token, which is 1 to %d printable ASCII characters without a space; it has %d bytes", where, maxBytes, len(token))
	}
	return nil
}
