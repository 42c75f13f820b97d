package server

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/hosttest"
)

// TestRefusedRegistration: what a process may not register is in the status, also if it serves
// other models.
func TestRefusedRegistration(t *testing.T) {
	t.Parallel() // it waits
	c := sdk(t, "p", "good/1", 1)
	c.Serve = []string{"*"}
	c.Command = []string{"sh", "-c", "$0 & " + asSDK + "=taken/1 $0 & wait", c.Command[0]}
	s := start(t, func(conf *config.Config) {
		conf.Pipelines["taken"] = added()
		conf.Supervised = []config.Container{c}
	})
	budgettest.Until(t, "both to register", func() bool {
		warnings := strings.Join(s.report.Status().Warnings, "\n")
		_, serves := s.Scheduler().Model(scheduler.ModelID{Name: "good", Version: "1"})
		return serves && strings.Contains(warnings,
			`a registration of container p was refused: there is a pipeline "taken": give the model another name`)
	})
}

// TestServesItsOwnModels: a supervised process registers the model of its [[container]] and what
// serve lists, and nothing else: not another version of another model, not with a token that may
// more, and not as a process that has left its parents. The trail names its [[container]].
func TestServesItsOwnModels(t *testing.T) {
	t.Parallel() // it waits
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const orphan = `(setsid $0 &); exec sleep 1000`
	for name, c := range map[string]struct {
		id, script, token string
		serve             []string
		listen            string
		refused           string // "": it registers
	}{
		"its model":          {id: "thumb/1", script: "exec $0"},
		"any version of it":  {id: "thumb/999", script: "$0 & wait"},
		"what serve lists":   {id: "echo/2", script: "exec $0", serve: []string{"e*/2"}},
		"a model of another": {id: "echo/999999", script: "exec $0", refused: `a process of container "p" may not serve echo/999999`},
		"another version":    {id: "echo/3", script: "exec $0", serve: []string{"e*/2"}, refused: `may not serve echo/3`},
		"with a token":       {id: "other/1", script: "exec $0", token: tokenOf("all"), refused: `may not serve other/1`},
		"as a stranger":      {id: "other/1", script: orphan, refused: "the supervised process that started this one has ended"},
		"on a Unix socket":   {id: "other/1", script: orphan, listen: "ipc://@" + t.Name(), refused: "the supervised process that started this one has ended"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.script == orphan {
				hosttest.Need(t, "setsid")
			}
			s := start(t, func(conf *config.Config) {
				if c.listen != "" {
					conf.Containers.Listen = config.Addrs{c.listen}
				}
				if c.token != "" {
					conf.Identities = []config.Identity{declared("all", "serve")}
				}
				conf.Supervised = []config.Container{{Name: "p", Model: "thumb", Serve: c.serve,
					Command: []string{"sh", "-c", c.script, self},
					Process: config.Process{Env: map[string]string{asSDK: c.id, "SHIVA_TOKEN": c.token},
						InheritEnv: []string{"*"}, Replicas: config.Fixed(1), StopTimeout: time.Second}}}
			})
			model, version, _ := strings.Cut(c.id, "/")
			of := func(e access.Entry) bool {
				return e.Action == "register" && e.Name == c.id && e.Refused == (c.refused != "") &&
					strings.Contains(e.Error, c.refused) &&
					(e.Container == "p") == !strings.Contains(c.script, "setsid")
			}
			budgettest.Until(t, "the trail to say so", func() bool {
				return slices.ContainsFunc(s.trail.List(1000), of)
			})
			if _, known := s.Scheduler().Model(scheduler.ModelID{Name: model, Version: version}); known ==
				(c.refused != "") {
				t.Errorf("the scheduler has the model: %v", known)
			}
		})
	}
}
