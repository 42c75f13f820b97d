package metrics

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The package comment lists every metric.
func TestEveryMetricIsListed(t *testing.T) {
	page, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("collect.go")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`= (?:desc|ofModel|ofStage)\("(\w+)"`).FindAllStringSubmatch(string(source), -1)
	if len(names) < 70 {
		t.Fatalf("found %d metrics in collect.go", len(names))
	}
	for _, name := range names {
		if !regexp.MustCompile(`(?m)^//\t(.*, )?` + name[1] + `\b`).Match(page) {
			t.Errorf("doc.go does not list %s", strings.TrimSpace(name[1]))
		}
	}
}
