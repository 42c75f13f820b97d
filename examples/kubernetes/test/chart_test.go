package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var update = flag.Bool("update", false, "write plain.yaml as the chart renders it")

// template returns the output and the error of "helm template shivad ../chart -n NAMESPACE -f
// VALUES".
func template(t *testing.T, namespace string, values []byte) ([]byte, error) {
	t.Helper()
	chart, err := loader.LoadDir("../chart")
	if err != nil {
		t.Fatal(err)
	}
	given, err := chartutil.ReadValues(values)
	if err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(chart, given,
		chartutil.ReleaseOptions{Name: "shivad", Namespace: namespace, Revision: 1, IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if text := strings.TrimSpace(files[name]); text != "" && filepath.Ext(name) == ".yaml" {
			out.WriteString("---\n" + strings.TrimPrefix(text, "---\n") + "\n")
		}
	}
	return out.Bytes(), nil
}

func valueSets(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(list) != 6 {
		t.Fatalf("%d sets of values, want 6: %v", len(list), err)
	}
	return list
}

// The apiserver accepts the chart's output for each set of values, to the last field; and then the
// output for the next set in its place.
func TestChart(t *testing.T) {
	c := newClient(t, shared(t))
	for _, set := range valueSets(t) {
		t.Run(strings.TrimSuffix(filepath.Base(set), ".yaml"), func(t *testing.T) {
			namespace := c.namespace()
			text, err := template(t, namespace, read(t, set))
			if err != nil {
				t.Fatal(err)
			}
			kinds := map[string]int{}
			for _, o := range objects(t, text) {
				kinds[o.GetKind()]++
				if err := c.create(o, namespace, metav1.DryRunAll); err != nil {
					t.Errorf("%s %s: %v\n%s", o.GetKind(), o.GetName(), err, text)
				} else if err := c.create(o, namespace); err != nil {
					t.Errorf("%s %s, for good: %v", o.GetKind(), o.GetName(), err)
				}
			}
			t.Log(kinds)
			if kinds["Service"] != 3 || kinds["ConfigMap"] != 1 || kinds["Deployment"]+kinds["DaemonSet"] < 1 {
				t.Errorf("%v", kinds)
			}
		})
	}
}

// An upgrade from any set of values to any other changes no immutable field, such as a selector.
func TestUpgrade(t *testing.T) {
	c := newClient(t, shared(t))
	namespace := c.namespace()
	for _, set := range slices.Concat(valueSets(t), valueSets(t)[:1]) {
		text, err := template(t, namespace, read(t, set))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects(t, text) {
			at, err := c.resource(o, namespace)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := at.Apply(context.Background(), o.GetName(), o,
				metav1.ApplyOptions{FieldManager: "helm", Force: true}); err != nil {
				t.Errorf("%s: %s %s: %v", set, o.GetKind(), o.GetName(), err)
			}
		}
	}
}

// A value of a wrong type, an unknown key, and contradicting values are refused by name, before
// anything reaches the cluster.
func TestValuesAreRefusedByName(t *testing.T) {
	for _, c := range []struct {
		values string
		words  []string
	}{
		{`server: {replicas: "2"}`, []string{"/server/replicas", "got string, want integer"}},
		{`server: {replicas: 1.5}`, []string{"/server/replicas", "want integer"}},
		{`server: {replicas: -1}`, []string{"/server/replicas", "minimum"}},
		{`server: {kind: StatefulSet}`, []string{"/server/kind", "'Deployment', 'DaemonSet'"}},
		{`server: {drainSeconds: 30s}`, []string{"/server/drainSeconds", "got string, want integer"}},
		{`server: {requiredModels: digits}`, []string{"/server/requiredModels", "got string, want array"}},
		{`server: {config: {defaults: {}}}`, []string{"/server/config", "got object, want string"}},
		{`server: {podLabels: {a: 1}}`, []string{"/server/podLabels/a", "want string"}},
		{`server: {replica: 2}`, []string{"/server", "'replica' not allowed"}},
		{`sever: {}`, []string{"'sever' not allowed"}},
		{`redis: {url: "http://redis"}`, []string{"/redis/url", "pattern"}},
		{`redis: {required: "yes"}`, []string{"/redis/required", "got string, want boolean"}},
		{`tls: {doors: [frigate]}`, []string{"/tls/doors/0"}},
		{`models: {digits: {}}`, []string{"/models", "got object, want array"}},
		{`models: [{name: digits}]`, []string{"/models/0", "missing property 'image'"}},
		{`models: [{name: Digits, image: i}]`, []string{"/models/0/name", "pattern"}},
		{`models: [{name: d, image: i, replicas: many}]`, []string{"/models/0/replicas", "got string, want integer"}},
		{`models: [{name: d, image: i, scale: {min: 1}}]`, []string{"/models/0/scale", "missing property 'max'"}},
		{`models: [{name: d, image: i, env: {A: b}}]`, []string{"/models/0/env", "got object, want array"}},
		{`scaler: hpa`, []string{"/scaler", "'none', 'keda', 'controller'"}},
		{`podDisruptionBudget: {maxUnavailable: some}`, []string{"/podDisruptionBudget/maxUnavailable"}},
		{`serviceMonitor: {interval: 15}`, []string{"/serviceMonitor/interval", "got number, want string"}},
		{`networkPolicy: {enabled: 1}`, []string{"/networkPolicy/enabled", "want boolean"}},
		{`models: [{name: d, image: i, scale: {min: 1, max: 2}}]`, []string{"model d has scale, but scaler is none"}},
		{`{scaler: keda, models: [{name: d, image: i, scale: {min: 3, max: 2}}]}`, []string{"scale.min is 3, more than scale.max, 2"}},
		{`{scaler: keda, models: [{name: d, image: i, replicas: 1, scale: {min: 1, max: 2}}]}`, []string{"has replicas and scale"}},
		{`models: [{name: d, image: i}, {name: d, image: j}]`, []string{`two are named "d"`}},
		{"server: {config: \"[state]\\nat = ''\"}", []string{"server.config has a table [state]", "redis"}},
		{"server: {config: \"[ server ]\"}", []string{"server.config has a table [server]"}},
		{`scaler: controller`, []string{"scaler: controller asks the servers' admin API", "server.adminOpen: true"}},
		{`serviceMonitor: {enabled: true}`, []string{"serviceMonitor asks the servers' admin API", "server.adminOpen: true"}},
		{`{scaler: controller, server: {adminOpen: true}, controller: {tokenSecret: t}}`, []string{"with TLS only", "admin in tls.doors"}},
		{`{scaler: controller, server: {adminOpen: true}, tls: {secret: s}, controller: {tokenSecret: t}}`, []string{"with TLS only"}},
		{`controller: {allowAdmin: ["http://a:1"]}`, []string{"/controller/allowAdmin/0", "pattern"}},
		{`redis: {url: "redis://a:1", secret: s}`, []string{"redis.url and redis.secret"}},
	} {
		text, err := template(t, "default", []byte(c.values))
		if err == nil {
			t.Errorf("%s is taken:\n%s", c.values, text)
			continue
		}
		for _, word := range c.words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: no %q in: %v", c.values, word, err)
			}
		}
	}
}

// Every key of values.yaml is in the schema: ToRenderValues checks the values merged with these
// defaults, so that the defaults alone must fit. Names of releases become names of objects.
func TestNames(t *testing.T) {
	chart, err := loader.LoadDir("../chart")
	if err != nil {
		t.Fatal(err)
	}
	for release, want := range map[string]string{"shivad": "shivad", "prod": "prod-shivad", "my-shivad": "my-shivad",
		strings.Repeat("x", 53): strings.Repeat("x", 33) + "-shivad"} {
		all, err := chartutil.ToRenderValues(chart, map[string]any{},
			chartutil.ReleaseOptions{Name: release, Namespace: "n"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		files, err := engine.Render(chart, all)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects(t, []byte(files["shivad/templates/services.yaml"])) {
			if name := o.GetName(); name != want && name != want+"-headless" && name != want+"-internal" {
				t.Errorf("release %s has a Service %s", release, name)
			}
		}
	}
}

// The plain manifests, for clusters without Helm, are the chart's output for plain-values.yaml.
func TestPlain(t *testing.T) {
	const note = "# A server of two replicas, a model of two, and a Redis by reference, for kubectl apply -f. Written\n" +
		"# by: go test ./... -run TestPlain -update, in ../test, from the chart with plain-values.yaml.\n"
	text, err := template(t, "default", read(t, "../plain/plain-values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	want := append([]byte(note), text...)
	if *update {
		if err := os.WriteFile("../plain/shivad.yaml", want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(read(t, "../plain/shivad.yaml"), want) {
		t.Error("plain/shivad.yaml is not what the chart makes: go test -run TestPlain -update")
	}
}

// The ScaledObject beside the plain manifests scales a Deployment of theirs, by their Service.
func TestScaledObjectNames(t *testing.T) {
	names := map[string]bool{}
	for _, o := range objects(t, read(t, "../plain/shivad.yaml")) {
		names[o.GetKind()+" "+o.GetName()] = true
	}
	o := objects(t, read(t, "../plain/scaledobject.yaml"))[0]
	target, _, _ := unstructured.NestedString(o.Object, "spec", "scaleTargetRef", "name")
	triggers, _, _ := unstructured.NestedSlice(o.Object, "spec", "triggers")
	address, _, _ := unstructured.NestedString(triggers[0].(map[string]any), "metadata", "scalerAddress")
	service, _, _ := strings.Cut(address, ".")
	for _, name := range []string{"Deployment " + target, "Service " + service} {
		if !names[name] {
			t.Errorf("scaledobject.yaml names the %s, which plain/shivad.yaml has not", name)
		}
	}
	if o.GetName() != target {
		t.Errorf("the ScaledObject of %s is %s; the chart gives both one name", target, o.GetName())
	}
}

// The apiserver accepts every manifest outside the chart.
func TestManifests(t *testing.T) {
	c := newClient(t, shared(t))
	namespace := c.namespace()
	for _, pattern := range []string{"../plain/shivad.yaml", "../plain/scaledobject.yaml", "../plain/model-policy.yaml",
		"../kserve/*.yaml", "../models/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			for _, o := range objects(t, read(t, name)) {
				if err := c.create(o, namespace, metav1.DryRunAll); err != nil {
					t.Errorf("%s: %s %s: %v", name, o.GetKind(), o.GetName(), err)
				}
			}
		}
	}
}

// The apiserver is strict: a misspelt field is an error, in its own kinds and in others.
func TestStrict(t *testing.T) {
	c := newClient(t, shared(t))
	namespace := c.namespace()
	text, err := template(t, namespace, read(t, "testdata/values/everything.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for wrong, field := range map[string]string{
		"preStop:": "preStap:", "scaleTargetRef:": "scaleTargetReff:", "endpoints:": "endpoint:",
		"publishNotReadyAddresses:": "publishNotReady:",
	} {
		misspelt := bytes.Replace(text, []byte(wrong), []byte(field), 1)
		if bytes.Equal(misspelt, text) {
			t.Fatalf("there is no %s", wrong)
		}
		found := false
		for _, o := range objects(t, misspelt) {
			if err := c.create(o, namespace, metav1.DryRunAll); err != nil {
				found = refused(err, strings.TrimSuffix(field, ":"))
			}
		}
		if !found {
			t.Errorf("%s is taken", field)
		}
	}
}

// Other pods reach the admin API only where the values ask for it: else neither a Service nor a
// network policy names its port, and the server listens on loopback.
func TestAdminIsClosed(t *testing.T) {
	for values, open := range map[string]bool{
		`{}`: false, `networkPolicy: {enabled: true}`: false, `{tls: {secret: s, doors: [admin]}}`: false,
		`{server: {adminOpen: true}, networkPolicy: {enabled: true}}`: true,
	} {
		text, err := template(t, "default", []byte(values))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects(t, text) {
			out, err := json.Marshal(o.Object)
			if err != nil {
				t.Fatal(err)
			}
			bare := strings.ReplaceAll(string(out), "--admin=127.0.0.1:8002", "")
			if strings.Contains(bare, "8002") || strings.Contains(bare, `"admin"`) {
				if !open {
					t.Errorf("%s: %s %s names the admin port: %s", values, o.GetKind(), o.GetName(), out)
				}
			} else if open && (o.GetKind() == "Deployment" || strings.HasSuffix(o.GetName(), "-internal")) {
				t.Errorf("%s: %s %s does not name the admin port: %s", values, o.GetKind(), o.GetName(), out)
			}
		}
	}
}

// The server accepts the settings and the flags that the chart makes of each set of values.
func TestSettings(t *testing.T) {
	certificate, key := selfSigned(t)
	for _, set := range valueSets(t) {
		templates, config := rendered(t, string(read(t, set)))
		p := newPod(t, templates["server"], map[string]string{
			"/etc/shivad/shivad.toml": config, "/etc/shivad-tls/tls.crt": certificate, "/etc/shivad-tls/tls.key": key,
		})
		for i, e := range p.container.Env {
			if e.Name == "SHIVAD_STATE" {
				p.container.Env[i].Value = "redis://:password@redis:6379/0"
			}
		}
		p.start(built(t, "shivad"), "--check")
		<-p.done
		if text := lastLines(p.log, 1000); !p.cmd.ProcessState.Success() {
			t.Errorf("%s: %s", set, text)
		} else if strings.Contains(string(read(t, set)), "redis:") != strings.Contains(text, "redis") {
			t.Errorf("%s: the Redis is lost:\n%s", set, text)
		}
	}
}
