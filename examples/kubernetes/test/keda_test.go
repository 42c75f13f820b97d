package kubernetes

import (
	"encoding/json"
	"flag"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var noise = flag.Duration("noise", 30*time.Second, "how long the number that KEDA gets is watched under a load that is random")

// A scaled is KEDA's view of a ScaledObject of the chart, with its connection to the scaler.
type scaled struct {
	externalscaler.ExternalScalerClient
	ref      *externalscaler.ScaledObjectRef
	interval time.Duration // between polls
}

func newScaled(t *testing.T, values string, server *pod) *scaled {
	t.Helper()
	text, err := template(t, "default", []byte(values))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(server.address("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	for _, o := range objects(t, text) {
		if o.GetKind() != "ScaledObject" {
			continue
		}
		seconds, _, _ := unstructured.NestedInt64(o.Object, "spec", "pollingInterval")
		triggers, _, _ := unstructured.NestedSlice(o.Object, "spec", "triggers")
		metadata, _, err := unstructured.NestedStringMap(triggers[0].(map[string]any), "metadata")
		if err != nil {
			t.Fatal(err)
		}
		return &scaled{
			ExternalScalerClient: externalscaler.NewExternalScalerClient(conn),
			ref: &externalscaler.ScaledObjectRef{Name: o.GetName(), Namespace: "default",
				ScalerMetadata: metadata},
			interval: time.Duration(seconds) * time.Second,
		}
	}
	t.Fatal("the chart has no ScaledObject")
	return nil
}

// poll returns the number of replicas that KEDA asks for: the metric divided by its target, rounded
// up.
func (s *scaled) poll(t *testing.T) int64 {
	t.Helper()
	spec, err := s.GetMetricSpec(t.Context(), s.ref)
	if err != nil || len(spec.MetricSpecs) != 1 {
		t.Fatalf("%v %v", spec, err)
	}
	m := spec.MetricSpecs[0]
	values, err := s.GetMetrics(t.Context(),
		&externalscaler.GetMetricsRequest{ScaledObjectRef: s.ref, MetricName: m.MetricName})
	if err != nil || len(values.MetricValues) != 1 || values.MetricValues[0].MetricName != m.MetricName {
		t.Fatalf("%v %v", values, err)
	}
	value := values.MetricValues[0].MetricValue
	active, err := s.IsActive(t.Context(), s.ref)
	if err != nil || active.Result != (value > 0) {
		t.Errorf("needs %d, and active is %v %v", value, active, err)
	}
	return (value + m.TargetSize - 1) / m.TargetSize
}

// status returns a server's figures about a model from the admin door: its load there, in replicas,
// and the estimated rows per second of one replica.
func status(t *testing.T, server *pod, model string) (load, rows float64) {
	t.Helper()
	answer, err := http.Get("http://" + server.address("admin") + "/v1/status")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var all struct {
		Models []struct {
			Name        string
			Load        float64
			ReplicaRows float64 `json:"replica_rows_per_second"`
		}
	}
	if err := json.NewDecoder(answer.Body).Decode(&all); err != nil {
		t.Fatal(err)
	}
	for _, m := range all.Models {
		if m.Name == model {
			return m.Load, m.ReplicaRows
		}
	}
	t.Fatalf("%s is not known", model)
	return 0, 0
}

// right reports whether a number of replicas fits a load, within a twentieth: a busy machine may
// delay arrivals by that much.
func right(n int64, load float64) bool {
	return math.Ceil(0.95*load) <= float64(n) && float64(n) <= math.Ceil(1.05*load)
}

// KEDA's own client gets 0 for a model without requests, the right number in the first poll after a
// step to three times a replica's capacity, and then the same, or one more or less, however the
// load fluctuates around that.
func TestKEDA(t *testing.T) {
	t.Parallel() // it waits
	values := "scaler: keda\n" + slow("digits", ", scale: {min: 0, max: 8}")
	templates, config := rendered(t, values)
	server := serve(t, templates, config)
	measured, _ := rendered(t, slow("measured", ""))
	replica(t, measured["model"], server)
	digits := replica(t, templates["model"], server)
	digits.becomes(digits.container.ReadinessProbe, true)
	can := capacity(t, server, "measured")
	keda := newScaled(t, values, server)
	if keda.interval != 5*time.Second {
		t.Fatalf("a poll every %v", keda.interval)
	}
	watched, err := keda.StreamIsActive(t.Context(), keda.ref)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := watched.Recv(); err != nil || a.Result {
		t.Errorf("nobody asks, and the stream says %v %v", a, err)
	}
	if n := keda.poll(t); n != 0 {
		t.Errorf("nobody asks, and %d replicas are needed", n)
	}
	load := newCrowd(t, server, "digits", 3*can)
	if a, err := watched.Recv(); err != nil || !a.Result {
		t.Errorf("it is asked, and the stream says %v %v", a, err)
	}
	polls := time.NewTicker(keda.interval)
	defer polls.Stop()
	<-polls.C
	last := keda.poll(t)
	// On a busy machine a replica's capacity may have dropped meanwhile.
	if _, now := status(t, server, "digits"); now < 0.5*can || now > 1.1*can || !right(last, 3*can/now/0.8) {
		t.Errorf("a replica answered %.2f rows a second, and now %.2f; three times as many arrive, and %d replicas are needed",
			can, now, last)
	}
	load.noise.Store(true)
	changes := 0
	for end := time.Now().Add(*noise); time.Now().Before(end); {
		<-polls.C
		if n := keda.poll(t); n != last {
			t.Logf("%v before the end: from %d to %d replicas", time.Until(end), last, n)
			changes, last = changes+1, n
		}
	}
	load.end()
	t.Logf("%d rows answered and %d refused; %d changes in %v", load.answered.Load(), load.refused.Load(), changes,
		*noise)
	if changes > 1 {
		t.Errorf("%d changes in %v of noise", changes, *noise)
	}
	if load.refused.Load() < load.answered.Load() {
		t.Error("most was answered: this was no overload")
	}
}

// Servers that share a Redis exchange their needs: behind a Service any of them answers for all.
func TestKEDAOfServers(t *testing.T) {
	t.Parallel() // it waits
	redis, _ := newRedis(t)
	values := redis + "scaler: keda\n" + slow("digits", ", scale: {min: 0, max: 8}")
	templates, config := rendered(t, values)
	servers := []*pod{serve(t, templates, config), serve(t, templates, config)}
	measured, _ := rendered(t, slow("measured", ""))
	replica(t, measured["model"], servers[0])
	digits := replica(t, templates["model"], servers...)
	digits.becomes(digits.container.ReadinessProbe, true)
	can := capacity(t, servers[0], "measured")
	for _, one := range servers {
		until(t, "the model to be at both", func() bool {
			return ask(t.Context(), one, "digits", time.Minute) == http.StatusOK
		})
	}
	for _, one := range servers {
		newCrowd(t, one, "digits", 1.5*can)
	}
	// They exchange loads every five seconds, while these change a little.
	for _, one := range servers {
		keda := newScaled(t, values, one)
		until(t, "either to know what both need", func() bool {
			n := keda.poll(t)
			first, _ := status(t, servers[0], "digits")
			second, _ := status(t, servers[1], "digits")
			return first > 1 && second > 1 && right(n, first+second)
		})
	}
}
