package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/shivad/shivad/server/admin"
)

var exportCommand = command{
	name: "export", args: "FILE", short: "write applications, what was learned and changed settings to a file",
	help: `FILE is one JSON document with the state of the server, or of the servers that share it: the applications, what their policies
have learned, and the settings of models that were changed while running. - is standard output.
shivactl import brings it to another server. What is in the server's own file is not in it.

With --json: {"file", "applications", "policies", "settings"}, how many of each; with - the document
`,
	takes: []kind{aFile, nothing},
	run: func(c *cli, _ any, args []string) error {
		file, err := oneArgument("export", "a file", args)
		if err != nil {
			return err
		}
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
			return c.printJSON(map[string]any{"file": file, "applications": len(d.Applications), "policies": len(d.Policies), "settings": len(d.Settings)})
		}
		fmt.Fprintf(c.stdout, "%s: %s, %s, settings of %s\n", file, plural(len(d.Applications), "application"), plural(len(d.Policies), "policy state"), plural(len(d.Settings), "model"))
		return nil
	},
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

type importOptions struct{ dry, discard *bool }

var importCommand = command{
	name: "import", args: "FILE", short: "make applications, what was learned and settings as in a file",
	help: `FILE is what shivactl export has written; - is standard input. All of it is looked at before anything is changed, and all
that is wrong is reported at once. What the file names is made or replaced; the rest stays. --dry-run only reports what
would change. If that would lose what was learned for a user, nothing changes without --discard.

With --json: {"dry_run", "changes": [{"what", "name", "before", "after", "loses"}]}; what is there already as in the file is no change
`,
	takes: []kind{aFile, nothing},
	flags: func(f *flag.FlagSet) any {
		return &importOptions{f.Bool("dry-run", false, "change nothing, and report what would change"), f.Bool("discard", false, "lose what was learned and is not in the file")}
	},
	run: func(c *cli, opts any, args []string) error {
		file, err := oneArgument("import", "a file", args)
		if err != nil {
			return err
		}
		var text []byte
		if file == "-" {
			text, err = io.ReadAll(c.stdin)
		} else {
			text, err = os.ReadFile(file)
		}
		if err != nil {
			return unfit("", "%v", err)
		}
		how := opts.(*importOptions)
		query := url.Values{}
		if *how.dry {
			query.Set("dry_run", "true")
		}
		if *how.discard {
			query.Set("discard", "true")
		}
		path := "/v1/import"
		if len(query) > 0 {
			path += "?" + query.Encode()
		}
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
		w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
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
			fmt.Fprintf(w, "%s\t%s\t%s\n", one.What, one.Name, how)
		}
		return w.Flush()
	},
}
