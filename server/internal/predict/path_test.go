package predict_test

import (
	"errors"
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
)

// Every path has the answer that HTTP gives, a JSON object.
func TestDescribe(t *testing.T) {
	r := newRig(t)
	r.serve(t, "infer", "1", twoOutputs, &schedtest.Worker{Exec: instant, Model: firsts})
	replica, err := r.behind.Sched.AddReplica(scheduler.ModelID{Name: "m", Version: "1"}, twoOutputs,
		&schedtest.Worker{Exec: instant, Model: firsts}, scheduler.ReplicaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const server = `{"name":"shivad","version":"test","extensions":["model_configuration","parameters","schedule_policy","statistics"]}`
	const model = `","versions":["1"],"platform":"test","inputs":[{"name":"x","datatype":"FP32","shape":[-1,3]}],` +
		`"outputs":[{"name":"y","datatype":"FP32","shape":[-1,3]},{"name":"z","datatype":"FP32","shape":[-1]}],"properties":{"note":"text","threshold":"0.5"}}`
	for path, want := range map[string]string{
		"v2": server, "v2/": server, "!server": server,
		"v2/health/live":               `{"live":true}`,
		"v2/health/ready":              `{"ready":true}`,
		"v2/models":                    `{"models":["infer","m"]}`,
		"v2/models/m":                  `{"name":"m` + model,
		"v2/models/m/versions/1":       `{"name":"m` + model,
		"v2/models/infer":              `{"name":"infer` + model,
		"v2/models/m/ready":            `{"name":"m","ready":true}`,
		"v2/models/m/versions/1/ready": `{"name":"m","ready":true}`,
	} {
		if got, ok, err := r.Describe(path, false); string(got) != want || !ok || err != nil {
			t.Errorf("%s: got %s, %v, %v, expected %s", path, got, ok, err, want)
		}
	}
	for _, path := range []string{"", "m", "m/1", "v2x", "v2/nonsense", "v2/models/", "v2/models/m/infer",
		"v2/models/m/", "v2/models/m/versions/", "v2/models/m/versions/1/2",
		"v2/models/m/ready/config", "!live", "!models"} {
		if got, ok, err := r.Describe(path, false); ok || got != nil || err != nil {
			t.Errorf("%q is no path of the protocol, and is answered with %s (%v)", path, got, err)
		}
	}
	for _, path := range []string{"v2/models/n", "v2/models/m/versions/4", "v2/models/n/ready", "v2/models/n/config", "v2/models/n/stats"} {
		if _, ok, err := r.Describe(path, false); !ok || !errors.Is(err, scheduler.ErrNotFound) {
			t.Errorf("%s: expected ErrNotFound, got %v (%v)", path, err, ok)
		}
	}
	replica.Remove(nil)
	if got, _, _ := r.Describe("v2/models/m/ready", false); string(got) != `{"name":"m","ready":false,"error":"no live replica: no container of it is connected"}` {
		t.Errorf("without a replica: %s", got)
	}
}
