package metrics

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/manual/manualtest"
)

// The manual lists every metric with its labels and its help.
func TestManual(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "collect.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var rows strings.Builder
	count := 0
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		made, ok := call.Fun.(*ast.Ident)
		var texts []string
		for _, arg := range call.Args {
			if literal, ok := arg.(*ast.BasicLit); ok {
				text, _ := strconv.Unquote(literal.Value)
				texts = append(texts, text)
			}
		}
		if !ok || made.Name != "desc" && made.Name != "ofModel" && made.Name != "ofStage" || len(texts) < 2 {
			return true
		}
		labels := texts[2:]
		switch made.Name {
		case "ofModel":
			labels = append([]string{"model", "version"}, labels...)
		case "ofStage":
			labels = append([]string{"pipeline", "stage"}, labels...)
		}
		fmt.Fprintf(&rows, "| `shivad_%s` | %s | %s |\n", texts[0], strings.Join(labels, ", "), texts[1])
		count++
		return true
	})
	if count < 70 {
		t.Fatalf("%d metrics in collect.go", count)
	}
	manualtest.Page(t, "../../manual/metrics.md", `# Metrics

<!-- words: metrics, prometheus metrics, metric names -->

`+"`GET /metrics`"+` of the admin API exports these metrics for Prometheus, besides `+"`go_*`"+` and
`+"`process_*`"+`. [Monitoring](monitoring.md) says which metrics to watch.

| metric | labels | meaning |
|---|---|---|
`+rows.String())
}
