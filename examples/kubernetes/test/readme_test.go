package kubernetes

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The commands of the page need a cluster, so the test does not run them: it checks that their
// files exist, and that the keys of the table are the chart's.
func TestPage(t *testing.T) {
	page := string(read(t, "../README.md"))
	commands := regexp.MustCompile(`(?m)^(helm|kubectl) .*$`).FindAllString(page, -1)
	if len(commands) < 3 {
		t.Errorf("%d commands", len(commands))
	}
	for _, path := range regexp.MustCompile(`examples/kubernetes/\S+`).FindAllString(strings.Join(commands, "\n"), -1) {
		if _, err := os.Stat("../../../" + path); err != nil {
			t.Error(err)
		}
	}
	values := string(read(t, "../chart/values.yaml"))
	rows := regexp.MustCompile("(?m)^\\| [^|]+ \\| (`.*) \\|$").FindAllStringSubmatch(page, -1)
	if len(rows) < 5 {
		t.Errorf("%d rows", len(rows))
	}
	for _, row := range rows {
		for _, key := range regexp.MustCompile("`([a-zA-Z.]+)[:`]").FindAllStringSubmatch(row[1], -1) {
			for part := range strings.SplitSeq(key[1], ".") {
				if !regexp.MustCompile(`(?m)^[ #]*(- )?`+part+":").MatchString(values) && part != "controller" {
					t.Errorf("the page names %s, which values.yaml has not", key[1])
				}
			}
		}
	}
}
