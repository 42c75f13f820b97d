package server

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/hosttest"
	"github.com/shivad/shivad/shiva/tensor"
)

var dashboardsFlag = flag.Bool("dashboards", false, "TestDashboards has Prometheus scrape a loaded server and asks it every query")

const grafana = "internal/metrics/grafana/"

// queries returns the queries of the dashboard's panels, by their titles.
func queries(t *testing.T) map[string]string {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, RefID string }
		}
	}
	text, err := os.ReadFile(grafana + "shivad.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	list := map[string]string{}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			list[p.Title+", "+target.RefID] = target.Expr
		}
	}
	if len(list) < 30 {
		t.Fatalf("found %d queries", len(list))
	}
	return list
}

// awaitProcess waits until a process executes its command: before, it holds all connections of this
// test, whose containers would be taken for it.
func awaitProcess(t *testing.T, s *Server) {
	t.Helper()
	budgettest.Until(t, "the process", func() bool {
		_, text := operator{t, s}.do("GET", "/v1/containers", "")
		return strings.Contains(text, `"state":"running"`)
	})
}

// Every query of the dashboard and every alert uses metrics of a loaded server; with -dashboards
// Prometheus checks it.
func TestDashboards(t *testing.T) {
	s := start(t, func(c *config.Config) {
		cached := c.Model("echo")
		cached.Cache = 1 << 20
		c.Models["echo"] = cached
		c.Admin.MetricsTriton, c.Pipelines["line"] = true, admin.Pipeline{Inputs: []string{"x"},
			Stages: []admin.Stage{{Name: "only", Model: "slow", Inputs: map[string]string{"x": "x"}}}}
		c.Supervised = []config.Container{{Name: "p", Model: "m", Command: []string{"sh", "-c", "exec sleep 600"},
			Process: config.Process{Replicas: config.Fixed(1), StopTimeout: 10 * time.Second}}}
	})
	awaitProcess(t, s)
	constant(t, s, "slow", 3, 30*time.Millisecond)
	define := func(d apps.Definition) {
		if _, err := registry(t, s).Create(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	define(apps.Definition{Name: "app", Models: []string{"echo2", "slow"}, Policy: "exp4"})
	constant(t, s, "echo2", 7, 0)
	define(apps.Definition{Name: "default", Models: []string{"slow"}, Policy: "single", SLO: "5ms",
		Default: json.RawMessage(`{"label": 1}`)})
	define(apps.Definition{Name: "patient", Models: []string{"echo2", "slow"}, Policy: "exp4", SLO: "5s"})

	x, err := tensor.FromSlice(tensor.Shape{2}, []int32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	defer load.Wait()
	defer cancel()
	for i, asked := range []struct{ namespace, metadata string }{
		{"echo", `{}`},
		{"slow", `{}`},
		{"slow", `{"timeout_ms":1}`},
		{"slow", `{"stream":"cam","keep":"latest"}`}, {"slow", `{"stream":"cam","keep":"latest"}`}, {"slow", `{"stream":"cam","keep":"latest"}`},
		{"app", `{"timeout_ms":10}`},
		{"default", `{}`},
		{"patient", `{"user":"u","id":"%d"}`},
		{"patient/update", `{"user":"u","id":"%d","label":7}`},
		{"line", `{}`},
		{"nobody", `{}`},
	} {
		load.Go(func() { // ends with ctx
			for n := 0; ctx.Err() == nil; n++ {
				c, err := shiva.Dial(ctx, s.Addrs().TCP[0].String())
				if err != nil {
					continue
				}
				for range 20 {
					metadata := asked.metadata
					if strings.Contains(metadata, "%d") {
						metadata = fmt.Sprintf(metadata, n)
					}
					message := &shiva.Message{Namespace: asked.namespace, Metadata: []byte(metadata)}
					if !strings.HasSuffix(asked.namespace, "/update") {
						message.Tensors = []tensor.Tensor{x}
					}
					if m, err := c.Do(ctx, message); err == nil {
						m.Release()
					}
					select {
					case <-time.After(time.Duration(i+2) * time.Millisecond):
					case <-ctx.Done():
					}
				}
				c.Close()
			}
		})
	}

	all := ""
	for _, query := range queries(t) {
		all += query + "\n"
	}
	alerts, err := os.ReadFile(grafana + "alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(alerts), "\n") {
		if !strings.HasPrefix(line, "#") {
			all += line + "\n"
		}
	}
	t.Cleanup(func() {
		if names := missing(t, s, all); names != nil {
			t.Logf("not shown: %v", names)
		}
	})
	budgettest.Until(t, "every metric of the dashboard and of the alerts to be shown",
		func() bool { return missing(t, s, all) == nil })
	if *dashboardsFlag {
		underPrometheus(t, s)
	}
}

// missing returns the names of metrics in a text that a server does not show.
func missing(t *testing.T, s *Server, text string) (names []string) {
	page := metricsPage(t, s)
	for _, name := range regexp.MustCompile(`(shivad|nv)_\w+`).FindAllString(text, -1) {
		if !strings.Contains(page, "\n"+name+"{") && !strings.Contains(page, "\n"+name+" ") {
			names = append(names, name)
		}
	}
	return names
}

// underPrometheus lets Prometheus scrape the server, and expects data for every query of the
// dashboard and no error of an alert; promtool must not complain about names.
func underPrometheus(t *testing.T, s *Server) {
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = strings.NewReader(regexp.MustCompile(`(?m)^(# \w+ )?nv_.*\n`).ReplaceAllString(metricsPage(t, s), ""))
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}

	dir, listen := t.TempDir(), hosttest.Addr(t)
	rules, err := filepath.Abs(grafana + "alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	configuration := fmt.Sprintf(`
global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs: [{job_name: shivad, static_configs: [{targets: ["%s"]}]}]
`, rules, s.Addrs().Admin)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	server := exec.Command("prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+listen, "--log.level=warn")
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		if t.Failed() {
			t.Logf("prometheus:\n%s", log.String())
		}
	}()

	ask := func(path string, answer any) bool {
		resp, err := http.Get("http://" + listen + path)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusServiceUnavailable { // it has not read its files yet
			return false
		}
		if err := json.NewDecoder(resp.Body).Decode(answer); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return true
	}
	variables := strings.NewReplacer("$job", "shivad", "$instance", ".*", "$model", ".*", "$__rate_interval", "3s")
	for title, query := range queries(t) {
		query = variables.Replace(query)
		var answer struct {
			Error string
			Data  struct {
				Result []struct {
					Metric map[string]string
					Value  [2]any
				}
			}
		}
		budgettest.Until(t, title+" to have data: "+query, func() bool {
			if !ask("/api/v1/query?query="+url.QueryEscape(query), &answer) {
				return false
			}
			if answer.Error != "" {
				t.Fatalf("%s: %s: %s", title, query, answer.Error)
			}
			for _, series := range answer.Data.Result {
				if series.Value[1] != "NaN" {
					return true
				}
			}
			return false
		})
	}
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	healthy := func() (n int) {
		if !ask("/api/v1/rules", &answer) {
			return 0
		}
		for _, rule := range answer.Data.Groups[0].Rules {
			if rule.LastError != "" {
				t.Errorf("alert %s: %s", rule.Name, rule.LastError)
			}
			if rule.Health == "ok" {
				n++
			}
		}
		return n
	}
	budgettest.Until(t, "the alerts to be evaluated", func() bool { return healthy() >= 13 })
}
