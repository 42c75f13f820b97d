package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/shivad/shivad/server/build"
)

// manCommand writes what packages have of shivactl beside the program: manual pages and
// completion. Their date is SOURCE_DATE_EPOCH, or today.
func manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Hidden: true, Short: "write manual pages, and the completion of each shell, to a folder",
		Args: oneArgument("a folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			for _, s := range shells {
				f, err := os.Create(filepath.Join(args[0], s.file))
				if err != nil {
					return unfit("", "%v", err)
				}
				if err := s.write(root, f); err != nil {
					return err
				}
				if err := f.Close(); err != nil {
					return err
				}
			}
			date := time.Now()
			if seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
				date = time.Unix(seconds, 0)
			}
			date = date.UTC()
			return writePages(root, args[0], doc.GenManHeader{Date: &date, Source: "shivad " + build.Version, Manual: "shivactl"})
		},
	}
}

// writePages writes the page of a command and those of its verbs. The flags of all commands are in
// the first page alone.
func writePages(cmd *cobra.Command, dir string, header doc.GenManHeader) error {
	f, err := os.Create(filepath.Join(dir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"))
	if err != nil {
		return unfit("", "%v", err)
	}
	cmd.Long = markdown(cmd.Long)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { f.Usage = escape(f.Usage) })
	cmd.DisableAutoGenTag = true // which would have today's date
	of := header
	if err := doc.GenMan(cmd, &of, f); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	cmd.PersistentFlags().VisitAll(func(f *pflag.Flag) { f.Hidden = true })
	for _, sub := range cmd.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		if err := writePages(sub, dir, header); err != nil {
			return fmt.Errorf("%s: %w", sub.CommandPath(), err)
		}
	}
	return nil
}

// special are the characters that Markdown, which GenMan takes a text for, would not print.
var special = regexp.MustCompile(`[\\*_{}\[\]<>#]`)

// escape has Markdown print a line as it is, but for names of values, which are in backquotes.
func escape(line string) string {
	parts := strings.Split(line, "`")
	for i := 0; i < len(parts); i += 2 {
		parts[i] = special.ReplaceAllString(parts[i], `\$0`)
	}
	return strings.Join(parts, "`")
}

// markdown marks the indented lines of a text as they are, and escapes the rest.
func markdown(text string) string {
	var out strings.Builder
	indented := false
	for line := range strings.Lines(text) {
		switch in := strings.HasPrefix(line, " "); {
		case in:
			if !indented {
				out.WriteString("\n")
			}
			out.WriteString("    " + line)
			indented = true
		default:
			if indented {
				out.WriteString("\n")
			}
			out.WriteString(escape(line))
			indented = false
		}
	}
	return out.String()
}
