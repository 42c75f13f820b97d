package kubernetes

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// With the policy of plain/model-policy.yaml a Model's template gets no account, no Secret of
// others, no image of others and no label of the servers; the chart's own Models pass.
func TestModelPolicy(t *testing.T) {
	c := newClient(t, shared(t))
	namespace := c.namespace()
	policy := strings.ReplaceAll(string(read(t, "../plain/model-policy.yaml")), "registry.example.org/models/", "shivad-")
	for _, o := range objects(t, []byte(policy)) {
		if o.GetKind() == "ValidatingAdmissionPolicyBinding" { // other tests have Models in namespaces of their own
			err := unstructured.SetNestedStringMap(o.Object,
				map[string]string{"kubernetes.io/metadata.name": namespace}, "spec", "matchResources",
				"namespaceSelector", "matchLabels")
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := c.create(o, ""); err != nil {
			t.Fatal(err)
		}
		at, err := c.resource(o, "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = at.Delete(context.Background(), o.GetName(), metav1.DeleteOptions{}) })
	}
	// A template, with more fields of the pod, of the container and of the template.
	model := func(pod, container, template string) *unstructured.Unstructured {
		return objects(t, []byte(`{"apiVersion": "shivad.github.io/v1alpha1", "kind": "Model", "metadata": {"name": "digits"}, "spec": {"template": {`+template+
			`"spec": {`+pod+`"containers": [{"name": "model", `+container+`}]}}}}`))[0]
	}
	const bare, image = `"automountServiceAccountToken": false, `, `"image": "shivad-digits:1"`
	until(t, "the policy to be in effect", func() bool {
		return refused(c.create(model(bare, `"image": "other:1"`, ""), namespace, metav1.DryRunAll), "expected images of shivad-")
	})
	for _, o := range []struct{ pod, container, template, word string }{
		{bare, image, "", ""},
		{bare + `"serviceAccountName": "default", `, image,
			`"metadata": {"labels": {"app.kubernetes.io/component": "model"}}, `, ""},
		{bare + `"volumes": [{"name": "v", "secret": {"secretName": "models-token"}}, {"name": "w", "emptyDir": {}}], `,
			image + `, "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "models-a", "key": "k"}}}, {"name": "B", "value": "b"}]`,
			"", ""},
		{bare + `"initContainers": [{"name": "i", "image": "other:1"}], `, image, "", "expected images"},
		{"", image, "", "expected automountServiceAccountToken: false"},
		{`"automountServiceAccountToken": true, `, image, "", "expected automountServiceAccountToken: false"},
		{bare + `"serviceAccountName": "shivad-controller", `, image, "", "no service account"},
		{bare + `"serviceAccount": "shivad-controller", `, image, "", "no service account"},
		{bare + `"volumes": [{"name": "v", "hostPath": {"path": "/"}}], `, image, "", "expected volumes"},
		{bare + `"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}], `,
			image, "", "expected volumes"},
		{bare + `"volumes": [{"name": "v", "secret": {"secretName": "operators-token"}}], `, image, "", "expected Secrets"},
		{bare, image + `, "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "operators-token", "key": "token"}}}]`,
			"", "expected Secrets"},
		{bare, image + `, "envFrom": [{"secretRef": {"name": "operators-token"}}]`, "", "expected Secrets"},
		{bare, image, `"metadata": {"labels": {"app.kubernetes.io/component": "server"}}, `, "component: model"},
		{bare + `"hostNetwork": true, `, image, "", "expected no hostNetwork"},
		{bare + `"nodeName": "n", `, image, "", "expected no hostNetwork"},
		{bare + `"initContainers": "none", `, image, "", "models.shivad.github.io"}, // of no form that a rule knows
	} {
		err := c.create(model(o.pod, o.container, o.template), namespace, metav1.DryRunAll)
		if o.word == "" && err != nil || o.word != "" && !refused(err, o.word) {
			t.Errorf("%s%s%s: %v, want %q", o.pod, o.container, o.template, err, o.word)
		}
	}
	text, err := template(t, namespace, read(t, "testdata/values/controller.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects(t, text) {
		if o.GetKind() == "Model" {
			if err := c.create(o, namespace, metav1.DryRunAll); err != nil {
				t.Errorf("the chart's Model: %v", err)
			}
		}
	}
}
