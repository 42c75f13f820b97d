package config

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/manual/manualtest"
)

// The manual has every setting, as the sample file has it. TestSample shows that the file has all.
func TestManual(t *testing.T) {
	text, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	page.WriteString(`# Settings

<!-- words: settings, configuration file, shivad.toml, toml -->

This page has every setting of ` + "`shivad.toml`" + `, with its default and its meaning. A file needs only
the lines that differ. ` + "`shivad --config FILE --check`" + ` checks a file, and ` + "`shivactl config`" + `
shows the values in effect. [Configuration](configuration.md) says which settings a reload changes.
`)
	// A table begins with the comments above its heading, also if it is itself a comment.
	heading := regexp.MustCompile(`(?m)^#?(\[+[a-z_.]+\]+)$`)
	for _, part := range strings.Split(string(text), "\n\n")[1:] {
		if found := heading.FindStringSubmatch(part); found != nil {
			page.WriteString("\n## " + found[1] + "\n")
		}
		page.WriteString("\n```toml\n" + strings.TrimRight(part, "\n") + "\n```\n")
	}
	manualtest.Page(t, "../manual/settings.md", page.String())
}
