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
		Use: "export FILE", Short: "write applications, what was learned and settings to a file",
		Long: `FILE is one JSON document with the state of the server, or of the servers that share it: the applications, what their policies
have learned, the pipelines, and the settings of models that were changed while running. - is standard output.
shivactl import brings it to another server. What is in the server's own file is not in it.

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
		Use: "import FILE", Short: "restore applications, what was learned and settings from a file",
		Long: `FILE is what shivactl export has written; - is standard input. All of it is looked at before anything is changed, and all
that is wrong is reported at once. What the file names is made or replaced; the rest stays. --dry-run only reports what
would change. If that would lose what was learned for a user, nothing changes without --discard.

With --json: {"dry_run", "changes": [{"what", "name", "before", "after", "loses"}]}; what is there already as in the file is no change
`,
		Args: oneArgument("a file"), ValidArgsFunction: c.completes(anyFile),
		RunE: c.asks(func(c *cli, args []string) error { return c.importFrom(args[0], o) }),
	}
	cmd.Flags().BoolVar(&o.dry, "dry-run", false, "change nothing, and report what would change")
	cmd.Flags().BoolVar(&o.discard, "discard", false, "lose what was learned and is not in the file")
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
	var done admin.Imported
	if err := c.call(http.MethodPost, path, text, &done); err != nil {
		return err
	}
	if c.json {
		return c.printJSON(done)
	}
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
}
