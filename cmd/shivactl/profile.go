package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"

	"github.com/shivad/shivad/shiva/token"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// Environment variables for flags, for a token, and for the file of profiles.
const (
	addrEnv     = "SHIVACTL_ADDR"
	adminEnv    = "SHIVACTL_ADMIN"
	tokenEnv    = "SHIVACTL_TOKEN"
	profileEnv  = "SHIVACTL_PROFILE"
	profilesEnv = "SHIVACTL_PROFILES"
)

// A profile is a table of the file of profiles: a server, and the credentials for it. It has the
// name of a token's file instead of the token, since a file of profiles is often shown and copied.
// File names are relative to the directory of the file of profiles.
type profile struct {
	Addr      string `toml:"addr" json:"addr,omitempty"`
	Admin     string `toml:"admin" json:"admin,omitempty"`
	TokenFile string `toml:"token_file" json:"token_file,omitempty"`
	TLSCA     string `toml:"tls_ca" json:"tls_ca,omitempty"`
	TLSCert   string `toml:"tls_cert" json:"tls_cert,omitempty"`
	TLSKey    string `toml:"tls_key" json:"tls_key,omitempty"`
	TLSName   string `toml:"tls_name" json:"tls_name,omitempty"`
}

func (c *cli) profilesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "profiles", Short: "list the servers that you can name with --profile",
		Long: `Profiles are tables in a file of yours, by default ~/.config/shivactl.toml on Linux, or the file that
SHIVACTL_PROFILES names:

  [production]
  admin = "tls://shiva.example:8002"
  addr = "tls://shiva.example:6174"
  token_file = "production.token"        # paths are relative to this file
  tls_ca = "ca.pem"                      # likewise tls_cert, tls_key; and tls_name

You may omit any of these keys. The first of these wins: a flag; --profile NAME; the variables SHIVACTL_ADDR,
SHIVACTL_ADMIN and SHIVACTL_TOKEN; the profile that SHIVACTL_PROFILE names; the default. With --profile the variables
are ignored, since they may belong to another server. If none of these gives a token, shivactl reads SHIVA_TOKEN or
SHIVA_TOKEN_FILE, like all clients.

With --json: {"file", "profiles": {"NAME": {"addr", "admin", "token_file", "tls_ca", "tls_cert", "tls_key", "tls_name"}}}; what is
empty is left out
`,
		Args: noArguments, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.asks(func(c *cli, _ []string) error { return c.listProfiles() }),
	}
}

func (c *cli) listProfiles() error {
	path, all, err := profiles()
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(map[string]any{"file": path, "profiles": all})
	}
	if len(all) == 0 {
		fmt.Fprintf(c.stdout, "no profiles: %s has none; shivactl help profiles tells how to write one\n", path)
		return nil
	}
	g := newGrid("PROFILE\tADMIN\tADDR\tTOKEN FILE", "TOKEN FILE")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p := all[name]
		g.add("%s\t%s\t%s\t%s", name, cmp.Or(p.Admin, "-"), cmp.Or(p.Addr, "-"), cmp.Or(p.TokenFile, "-"))
	}
	return g.write(c.stdout, c.width())
}

// profiles reads the file of profiles; a missing file has none.
func profiles() (path string, all map[string]profile, err error) {
	if path = os.Getenv(profilesEnv); path == "" {
		dir, err := os.UserConfigDir()
		if err != nil {
			return "", nil, unfit("$"+profilesEnv+" names the file of profiles", "there is no place for a file of profiles: %v", err)
		}
		path = filepath.Join(dir, "shivactl.toml")
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return path, map[string]profile{}, nil
	}
	if err != nil {
		return path, nil, unfit("", "%v", err)
	}
	d := toml.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&all); err != nil {
		return path, nil, unfit("shivactl help profiles shows such a file", "%s: %s", path, faultOf(err))
	}
	for name, p := range all {
		for _, file := range []*string{&p.TokenFile, &p.TLSCA, &p.TLSCert, &p.TLSKey} {
			if *file != "" && !filepath.IsAbs(*file) {
				*file = filepath.Join(filepath.Dir(path), *file)
			}
		}
		all[name] = p
	}
	return path, all, nil
}

// faultOf returns an error of the decoder with its line.
func faultOf(err error) string {
	if e, ok := errors.AsType[*toml.StrictMissingError](err); ok && len(e.Errors) > 0 {
		line, _ := e.Errors[0].Position()
		return fmt.Sprintf("line %d: there is no setting %q", line, strings.Join(e.Errors[0].Key(), "."))
	}
	if e, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, _ := e.Position()
		text := strings.TrimPrefix(e.Error(), "toml: ")
		if kind, ok := strings.CutPrefix(text, "cannot decode TOML "); ok {
			kind, _, _ = strings.Cut(kind, " into ")
			want := "a string"
			if len(e.Key()) < 2 {
				want = "a table, which is a profile"
			}
			text = fmt.Sprintf("%s: expected %s, got a value of type %s", strings.Join(e.Key(), "."), want, kind)
		}
		return fmt.Sprintf("line %d: %s", line, text)
	}
	return err.Error()
}

// applyProfile finds the addresses and the credentials that no flag sets. See the help of profiles.
func (c *cli) applyProfile() error {
	flagged := c.given["profile"]
	if !flagged {
		c.profile = os.Getenv(profileEnv)
	}
	var p profile
	if c.profile != "" {
		path, all, err := profiles()
		if err != nil {
			return err
		}
		var ok bool
		if p, ok = all[c.profile]; !ok {
			hint := cmp.Or(didYouMean(c.profile, slices.Sorted(maps.Keys(all))), "shivactl profiles lists those that there are")
			return unfit(hint, "there is no profile %q in %s", c.profile, path)
		}
	}
	for _, s := range []struct {
		flag, variable, ofProfile string
		to                        *string
	}{
		{"addr", addrEnv, p.Addr, &c.addr}, {"admin", adminEnv, p.Admin, &c.admin},
		{"tls-ca", "", p.TLSCA, &c.tls.ca}, {"tls-cert", "", p.TLSCert, &c.tls.cert},
		{"tls-key", "", p.TLSKey, &c.tls.key}, {"tls-name", "", p.TLSName, &c.tls.name},
	} {
		if c.given[s.flag] {
			continue
		}
		text, from := s.ofProfile, "profile "+c.profile+": "+s.flag
		if variable := os.Getenv(s.variable); variable != "" && !flagged {
			text, from = variable, "$"+s.variable
		}
		if text == "" {
			continue
		}
		*s.to, c.given[s.flag] = text, true
		if s.variable == "" {
			continue
		}
		if err := unixsocket.CheckAddress(text); err != nil {
			return unfit("", "%s: %v", from, err)
		}
	}
	return c.findToken(p.TokenFile, flagged)
}

// findToken takes the token with the highest precedence: from shivactl's variable, unless --profile
// is given; from the profile's file; or from the variables of all clients.
func (c *cli) findToken(file string, flagged bool) (err error) {
	switch {
	case os.Getenv(tokenEnv) != "" && !flagged:
		c.token, err = token.FromVariable(tokenEnv)
	case file != "":
		c.token, err = token.FromFile(file)
	default:
		c.token, err = token.FromEnvironment()
	}
	if err != nil {
		return unfit("", "%v", err)
	}
	return nil
}
