package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/nearest"
	"github.com/shivad/shivad/shiva/token"
)

func (c *cli) tokensCommand() *cobra.Command {
	tokens := &cobra.Command{
		Use: "tokens new", Short: "create a token for a client",
		Long: `tokens new camera creates a token and prints it, once: it is stored nowhere, and the server only needs
its SHA-256. Below the token is the table for the server's file; add it, and reload. --may lists the rights of the
identity, by default "infer":

  infer, feedback, load, serve   for all models and applications, or for those that match a pattern: infer:cat*, serve:cat/2*
  admin:read, admin:write        reading with shivactl; also changing

--file writes the token into a new file that only you can read. Clients, containers and shivactl read it from the
variable SHIVA_TOKEN, or from the file that SHIVA_TOKEN_FILE names. No command takes a token as an argument, since
every process of a machine can read arguments.

With --json: {"name", "token" (absent with --file), "token_sha256", "may"}.
`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("tokens", "expected new")
			}
			return usage("tokens", "expected new, got %q", args[0])
		},
	}
	o := &tokenOptions{}
	create := &cobra.Command{
		Use: "new NAME", Short: "create a token, and the table of its identity",
		Args: oneArgument("the name of the identity"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.asks(func(c *cli, args []string) error { return c.newToken(o, args[0]) }),
	}
	create.Flags().StringVar(&o.may, "may", "infer", "the identity's `RIGHTS`, separated by commas")
	create.Flags().StringVar(&o.file, "file", "", "write the token to a new `FILE` instead of printing it")
	return with(tokens, create)
}

type tokenOptions struct{ may, file string }

func (c *cli) newToken(o *tokenOptions, name string) error {
	may := strings.FieldsFunc(o.may, func(r rune) bool { return r == ',' || r == ' ' })
	for _, right := range may {
		if err := checkRight(right); err != nil {
			return err
		}
	}
	secret := token.New()
	if o.file != "" {
		if err := writeNew(o.file, []byte(secret+"\n"), secretMode); err != nil {
			hint := ""
			if errors.Is(err, fs.ErrExist) {
				hint = "it may have a token that somebody uses: name another file, or remove this one"
			}
			return unfit(hint, "%v", err)
		}
	}
	if c.json {
		shown := map[string]any{"name": name, "token": secret, "token_sha256": token.Hash(secret), "may": may}
		if o.file != "" {
			delete(shown, "token")
		}
		return c.printJSON(shown)
	}
	if o.file == "" {
		fmt.Fprintf(c.stdout, "%s\n\n", secret)
	}
	quoted := make([]string, len(may))
	for i, right := range may {
		quoted[i] = strconv.Quote(right)
	}
	fmt.Fprintf(c.stdout, "[[identity]]\nname = %q\ntoken_sha256 = %q\nmay = [%s]\n", name, token.Hash(secret),
		strings.Join(quoted, ", "))
	return nil
}

// The rights of an identity; those that are patterned may name what they apply to.
var patterned, rights = []string{"infer", "feedback", "load", "serve"}, []string{"admin:read", "admin:write"}

// checkRight refuses what a server would refuse when it reads the table. The token would have been
// handed out by then.
func checkRight(right string) error {
	name, _, _ := strings.Cut(right, ":")
	if slices.Contains(patterned, name) || slices.Contains(rights, right) {
		return nil
	}
	all := slices.Concat(patterned, rights)
	hint := "shivactl help tokens lists the rights"
	if near := nearest.Names(right, all); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return &failure{"usage",
		fmt.Sprintf("--may: there is no right %q; the rights are %s", right, strings.Join(all, ", ")), hint, exitUsage}
}

// writeNew writes a new file; it fails if the file exists.
func writeNew(path string, text []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		os.Remove(path)
	}
	return err
}

func (c *cli) whoamiCommand() *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "show your identity and its rights",
		Long: `The command asks the Shiva endpoint, or the admin API if only its address is set. It shows the
token in SHIVA_TOKEN, or in the file that SHIVA_TOKEN_FILE names.

With --json: {"identity" (absent where the server declares no identities), "may"}.
`,
		Args: noArguments, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.asks(func(c *cli, _ []string) error { return c.showHolder() }),
	}
}

func (c *cli) showHolder() error {
	who, err := c.whoami()
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(who)
	}
	if who.Identity == "" {
		fmt.Fprintln(c.stdout, "The server declares no identities: everybody may do everything.")
		return nil
	}
	fmt.Fprintf(c.stdout, "%s, who may %s\n", who.Identity, strings.Join(who.May, ", "))
	return nil
}

// A holder is the identity of a token, and its rights.
type holder struct {
	Identity string   `json:"identity,omitempty"`
	May      []string `json:"may"`
}

func (c *cli) whoami() (who holder, err error) {
	if c.given["admin"] && !c.given["addr"] {
		err = c.get("/v1/whoami", &who)
		return who, err
	}
	client, err := c.dial(c.addr)
	if err != nil {
		return who, explain(err, "--addr", c.addr)
	}
	defer client.Close()
	answer, err := client.Do(c.ctx, &shiva.Message{Namespace: shiva.WhoAmINamespace})
	if err != nil {
		return who, explain(err, "--addr", c.addr)
	}
	defer answer.Release()
	err = json.Unmarshal(answer.Metadata, &who)
	return who, err
}

// show puts the current token into a request, and returns the token; "": none.
func show(r *http.Request, source *token.Source) (shown string) {
	if shown = source.Token(); shown != "" {
		r.Header.Set("Authorization", "Bearer "+shown)
	}
	return shown
}
