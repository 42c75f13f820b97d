package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/plural"
)

func (c *cli) exportCommand() *cobra.Command {
	return &cobra.Command{
		Use: "export FILE", Short: "write applications, learned state and settings to a file",
		Long: `FILE becomes a JSON document with the state of the server, or of all servers that share this state:
applications, what their policies have learned, pipelines, and model settings that were changed at run time. - is
standard output. shivactl import restores it on another server. The export does not contain the server's configuration
file.

With --json: {"file", "applications", "policies", "pipelines", "settings"}, how many of each; with - the document
`,
		Args: oneArgument("a file"), ValidArgsFunction: c.completes(anyFile),
		RunE: c.asks(func(c *cli, args []string) error { return c.export(args[0]) }),
	}
}

func (c *cli) export(file string) error {
	c.doing = "export"
	var text json.RawMessage
	if err := c.get("/v1/export", &text); err != nil {
		return err
	}
	text = append(text, '\n')
	if file == "-" {
		_, err := c.stdout.Write(text)
		return err
	}
	var d admin.Document
	if err := json.Unmarshal(text, &d); err != nil {
		return err
	}
	if err := writeWhole(file, text); err != nil {
		return unfit("", "%s cannot be written: %v", file, err)
	}
	if c.json {
		return c.printJSON(map[string]any{"file": file,
			"applications": len(d.Applications), "policies": len(d.Policies),
			"pipelines": len(d.Pipelines), "settings": len(d.Settings)})
	}
	fmt.Fprintf(c.stdout, "%s: %s, %s, %s, settings of %s\n", file, plural.Of(len(d.Applications), "application"),
		plural.Of(len(d.Policies), "policy state"), plural.Of(len(d.Pipelines), "pipeline"), plural.Of(len(d.Settings), "model"))
	return nil
}

// writeWhole replaces a file atomically: it has either the whole text or its previous content.
func writeWhole(name string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err // without the name, which the user did not choose
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

type importOptions struct{ dry, discard bool }

func (c *cli) importCommand() *cobra.Command {
	o := importOptions{}
	cmd := &cobra.Command{
		Use: "import FILE", Short: "restore applications, learned state and settings from a file",
		Long: `FILE is a file that shivactl export wrote; - is standard input. The server checks the whole file first,
and reports all errors at once. Then it creates or replaces what the file names; the rest stays. --dry-run only shows
what would change. If the import would delete what was learned for a user, it changes nothing unless you give
--discard.

With --json: {"dry_run", "changes": [{"what", "name", "before", "after", "loses"}]}; what is there already as in the file is no change
`,
		Args: oneArgument("a file"), ValidArgsFunction: c.completes(anyFile),
		RunE: c.asks(func(c *cli, args []string) error { return c.importFrom(args[0], o) }),
	}
	cmd.Flags().BoolVar(&o.dry, "dry-run", false, "show what would change, and change nothing")
	cmd.Flags().BoolVar(&o.discard, "discard", false, "delete what was learned and is not in the file")
	return cmd
}

func (c *cli) importFrom(file string, how importOptions) (err error) {
	var text []byte
	if file == "-" {
		text, err = io.ReadAll(c.stdin)
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return unfit("", "%v", err)
	}
	query := url.Values{}
	if how.dry {
		query.Set("dry_run", "true")
	}
	if how.discard {
		query.Set("discard", "true")
	}
	path := "/v1/import"
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	c.doing = "import"
	return order(c, http.MethodPost, path, text, func(done admin.Imported) error {
		if len(done.Changes) == 0 {
			fmt.Fprintln(c.stdout, "no changes: all of it is there already")
			return nil
		}
		g := newGrid("\t\t", "")
		for _, one := range done.Changes {
			how := "made"
			if one.Before != nil {
				how = "replaced"
			}
			if done.DryRun {
				how = "would be " + how
			}
			if one.Loses != "" {
				how += ", losing " + one.Loses
			}
			g.add("%s\t%s\t%s", one.What, one.Name, how)
		}
		return g.write(c.stdout, c.width())
	})
}
