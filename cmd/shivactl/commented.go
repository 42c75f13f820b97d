package main

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/shivad/shivad/server/manual"
)

// A table has some settings of the server's file, as TOML.
type table struct {
	heading  string      // such as "[tcp]" or "[[identity]]"
	settings [][2]string // keys and values
}

const commentedHead = `# shivad.toml: settings of shivad that differ from its defaults, written by shivactl init. All
# settings: shivactl manual settings. "shivad --config FILE --check" checks this file, and
# "shivactl reload" or "systemctl reload shivad" applies it.
`

// commented writes a file with tables, and with what the manual says of each setting above it.
func commented(tables []table) (string, error) {
	page, ok := manual.Find("settings")
	if !ok {
		return "", fmt.Errorf("the manual has no settings")
	}
	var out strings.Builder
	out.WriteString(commentedHead)
	told := map[string]bool{} // of a table that comes twice, only once
	for _, t := range tables {
		out.WriteString("\n" + t.heading + "\n")
		known := meanings(page.Text, t.heading)
		for _, s := range t.settings {
			meaning, ok := known[s[0]]
			if !ok {
				return "", fmt.Errorf("the manual has no setting %s of %s", s[0], t.heading)
			}
			if key := t.heading + s[0]; !told[key] {
				told[key] = true
				wrapComment(&out, meaning)
			}
			out.WriteString(s[0] + " = " + s[1] + "\n")
		}
	}
	return out.String(), nil
}

var (
	settingLine = regexp.MustCompile(`^#?([a-z0-9_]+) = `)
	// remark is the comment after a value, in which a number sign stands in quotes.
	remark    = regexp.MustCompile(`^(?:[^"#]|"[^"]*")* # (.*)$`)
	hangingOn = regexp.MustCompile(`^#? {4,}# ?(.*)$`)
)

// meanings returns what the page of settings says of those of a table, by key: the comment lines
// above a setting, and what follows its value.
func meanings(page, heading string) map[string]string {
	known := map[string]string{}
	_, block, _ := strings.Cut(page, "\n## "+heading+"\n")
	_, block, _ = strings.Cut(block, "```toml\n")
	block, _, _ = strings.Cut(block, "\n```")
	var above []string
	last := ""
	for line := range strings.SplitSeq(block, "\n") {
		switch found, more := settingLine.FindStringSubmatch(line), hangingOn.FindStringSubmatch(line); {
		case more != nil && last != "":
			known[last] = strings.TrimSpace(known[last] + " " + more[1])
		case found != nil:
			last = found[1]
			parts := above
			if after := remark.FindStringSubmatch(strings.TrimPrefix(line, "#")); after != nil {
				parts = append(parts, after[1])
			}
			known[last], above = strings.Join(parts, " "), nil
		case strings.HasPrefix(line, "# "):
			above = append(above, line[2:])
		default: // a heading, whose comments are of the table
			above = nil
		}
	}
	return known
}

// wrapComment writes a text as comment lines of at most 100 columns.
func wrapComment(out *strings.Builder, text string) {
	column := 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		if column > 0 && column+1+n > 100 {
			out.WriteString("\n")
			column = 0
		}
		if column == 0 {
			out.WriteString("#")
			column = 1
		}
		out.WriteString(" " + word)
		column += 1 + n
	}
	if column > 0 {
		out.WriteString("\n")
	}
}
