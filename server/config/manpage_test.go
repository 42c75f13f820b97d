package config

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/manual/manualtest"
)

// manHead and manTail are what shivad.toml(5) has besides the settings.
const manHead = `.TH SHIVAD.TOML 5
.SH NAME
shivad.toml \- configuration of shivad, the inference server
.SH SYNOPSIS
.B shivad \-\-config
.I FILE
.SH DESCRIPTION
shivad reads its settings from a file in TOML. A file needs only the lines that differ from the
defaults, which are shown here; the tables that are marked as examples have none.
`

const manTail = `.SH FILES
.TP
.I /etc/shivad/shivad.toml
the configuration of the service
.TP
.I /usr/share/doc/shivad/shivad.toml
every setting, as a file to copy lines from
.TP
.I /var/lib/shivad
the service's folder for state.at
.TP
.I /run/shivad
its folder for Unix sockets
.SH SEE ALSO
.BR shivad (8),
.BR shivactl (1),
.BR shivactl\-doctor (1)
`

// manExamples are files, with what each is for. TestManPage shows that they are valid.
var manExamples = []struct{ what, text string }{
	{"A model file, for clients on other machines:", `[tcp]
listen = ":6174"

[[model_file]]
path = "/srv/models/yolo11n.onnx"
`},
	{"Two servers that share applications, and what these learn:", `[state]
at = "redis://redis.example.org:6379/0"
`},
	{"Answers within 50 ms, from two processes:", `[model.digits]
objective = "50ms"

[[container]]
name = "digits"
command = ["/usr/bin/python3", "/srv/digits.py"]
replicas = 2
`},
}

// The packages have every setting as a page of the manual of the system.
func TestManPage(t *testing.T) {
	text, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	page.WriteString(manHead)
	_, rest, found := strings.Cut(string(text), "#   shivad --config shivad.toml\n#\n")
	if !found {
		t.Fatal("the sample does not begin as this page does")
	}
	manSettings(&page, rest)
	keys := regexp.MustCompile(`(?m)^#?\S+ = `).FindAllString(rest, -1)
	if entries := strings.Count(page.String(), "\n.TP\n"); entries != len(keys) {
		t.Errorf("the sample has %d settings, the page %d", len(keys), entries)
	}
	page.WriteString(".SH EXAMPLES\n")
	for _, one := range manExamples {
		c, err := parse("example", []byte(one.text))
		if err == nil {
			err = c.Validate()
		}
		if err != nil {
			t.Errorf("%s %v", one.what, err)
		}
		fmt.Fprintf(&page, ".PP\n%s\n.PP\n.RS 4\n.EX\n%s.EE\n.RE\n", roff(one.what), roff(one.text))
	}
	page.WriteString(manTail)
	manualtest.Page(t, "../../cmd/shivad/manual/shivad.toml.5", page.String())
}

var (
	tableLine    = regexp.MustCompile(`^(#?)(\[+[a-zA-Z_.]+\]+)(?: +# (.*))?$`)
	settingLine  = regexp.MustCompile(`^#?([a-zA-Z0-9_."]+ = .*)$`)
	continuation = regexp.MustCompile(`^#? {4,}# ?(.*)$`)
	// remark is a comment after a value, in which a number sign stands in quotes.
	remark = regexp.MustCompile(`^((?:[^"#]|"[^"]*")*?) *# (.*)$`)
)

// manSettings writes the sample file as sections of tables with an entry for each setting. What a
// comment line says is about the setting below it.
func manSettings(page *strings.Builder, text string) {
	var above []string
	flush := func() {
		if above != nil {
			page.WriteString(roff(strings.Join(above, "\n")) + "\n")
		}
		above = nil
	}
	begun := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if found := tableLine.FindStringSubmatch(line); found != nil {
			if !begun {
				page.WriteString(".SH SETTINGS\n")
				begun = true
			}
			example := ""
			if found[1] == "#" {
				example = " (example)"
			}
			page.WriteString(".SS " + roff(found[2]+example) + "\n")
			flush()
			if found[3] != "" {
				page.WriteString(roff(found[3]) + "\n")
			}
			continue
		}
		if found := continuation.FindStringSubmatch(line); found != nil {
			page.WriteString(roff(found[1]) + "\n")
			continue
		}
		if found := settingLine.FindStringSubmatch(line); found != nil && begun {
			value, why := found[1], ""
			if parts := remark.FindStringSubmatch(value); parts != nil {
				value, why = parts[1], parts[2]
			}
			page.WriteString(".TP\n\\fB" + roff(value) + "\\fR\n")
			flush()
			if why != "" {
				page.WriteString(roff(why) + "\n")
			}
			continue
		}
		switch comment, isComment := strings.CutPrefix(line, "#"); {
		case isComment && comment == "":
			above = append(above, ".PP")
		case isComment:
			above = append(above, strings.TrimPrefix(comment, " "))
		case !begun:
			flush()
		}
	}
	flush()
}

// roff escapes what troff would not print as it is.
func roff(text string) string {
	var out []string
	for _, line := range strings.Split(text, "\n") {
		if line != ".PP" {
			line = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(line)
			if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
				line = `\&` + line
			}
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}
