package config

import (
	"github.com/shivad/shivad/server/internal/access"
)

// An Identity is a client, an operator or a container, or several of one kind, with its rights.
type Identity struct {
	// Name appears in errors, logs and status; unique. Callers without a token or certificate are
	// access.Anonymous.
	Name string `toml:"name"`
	// TokenSHA256 has the SHA-256 hashes of its tokens in hexadecimal, as "shivactl tokens new"
	// prints them; a string, or a list while one token replaces another.
	TokenSHA256 Hashes `toml:"token_sha256"`
	// Certificate has patterns for names in the certificates of its clients, each prefixed with the
	// part of the certificate: "cn:camera-*", "subject:CN=*,O=Cameras", "dns:*.example.org",
	// "email:", "uri:" or "ip:"; a string, or a list. A * stands for any characters except a slash.
	// Doors whose client_auth is not "none" verify certificates.
	Certificate Patterns `toml:"certificate"`
	// May lists its rights: "infer", "feedback", "load", "serve", each for all names or, after a
	// colon, for names that match a pattern ("infer:cat*", "serve:cat/2*"), "admin:read" and
	// "admin:write".
	May []string `toml:"may"`
	// Regions has patterns for the keys of shared memory that its clients may register, such as
	// "/camera-*", besides files that their user may open: see [shared_memory].
	Regions []string `toml:"regions"`
	// Quota is shared by all of its clients, through all doors.
	Quota IdentityQuota `toml:"quota"`
}

// An IdentityQuota is the quota of an identity.
type IdentityQuota struct {
	Quota
	Connections int `toml:"connections"` // through all doors
}

// Hashes is a list of hashes; the file may give a single string.
type Hashes []string

// Patterns is a list of patterns; the file may give a single string.
type Patterns []string

// Declarations returns the identities in the form of package access.
func (c Config) Declarations() (list []access.Declaration) {
	for _, i := range c.Identities {
		limits := i.Quota.limits()
		limits.Of[access.Connections] = int64(i.Quota.Connections)
		list = append(list, access.Declaration{Name: i.Name, Tokens: i.TokenSHA256, Certificates: i.Certificate,
			May: i.May, Regions: i.Regions, Quota: limits})
	}
	return list
}
