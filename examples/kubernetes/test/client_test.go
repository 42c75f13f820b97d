package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// Modules of other projects, with CRDs among their files. The sums are those of go.sum.
var modules = []struct {
	path, version, sum string
	crds               []string
}{
	{"github.com/kedacore/keda/v2", "v2.20.2", "h1:SR60v8uIcelbveS8n/1jcl8tLdBBIbHMxmdOHw8tKqA=", []string{"config/crd/bases/keda.sh_scaledobjects.yaml"}},
	{"github.com/prometheus-operator/prometheus-operator", "v0.85.0", "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=", []string{
		"example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
	}},
	{"github.com/kserve/kserve", "v0.15.2", "h1:uph7Umk331fvBMrHHpTJNDt6+lf3IAuyiskaQw8wIAk=", []string{
		"config/crd/full/serving.kserve.io_clusterservingruntimes.yaml", "config/crd/full/serving.kserve.io_inferenceservices.yaml",
	}},
}

// config is a client's configuration for the server, with a token.
func (s *apiserver) config(token string) *rest.Config {
	return &rest.Config{
		Host: s.url(), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 1000,
		Burst: 1000,
	}
}

// A client does the work of kubectl.
type client struct {
	t testing.TB
	*kubernetes.Clientset
	dynamic dynamic.Interface
	config  *rest.Config
}

func newClient(t testing.TB, s *apiserver) *client {
	t.Helper()
	config := s.config(adminToken)
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	untyped, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &client{t: t, Clientset: typed, dynamic: untyped, config: config}
}

// namespace makes a namespace with a unique name.
func (c *client) namespace() string {
	c.t.Helper()
	made, err := c.CoreV1().Namespaces().Create(context.Background(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	// The admission of pods requires the account, and the controller that would make it does not
	// run.
	if _, err := c.CoreV1().ServiceAccounts(made.Name).
		Create(context.Background(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
			metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	return made.Name
}

// resource returns the server's interface for objects of a kind.
func (c *client) resource(o *unstructured.Unstructured, namespace string) (dynamic.ResourceInterface, error) {
	found, err := discovery.NewDiscoveryClientForConfig(c.config)
	if err != nil {
		return nil, err
	}
	groups, err := restmapper.GetAPIGroupResources(found)
	if err != nil {
		return nil, err
	}
	kind := o.GroupVersionKind()
	mapping, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return c.dynamic.Resource(mapping.Resource).Namespace(namespace), nil
	}
	return c.dynamic.Resource(mapping.Resource), nil
}

// create makes the server check an object strictly: unknown and repeated fields are errors.
func (c *client) create(o *unstructured.Unstructured, namespace string, dryRun ...string) error {
	at, err := c.resource(o, namespace)
	if err != nil {
		return err
	}
	_, err = at.Create(context.Background(), o,
		metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict, DryRun: dryRun})
	return err
}

// objects returns the objects of a YAML file.
func objects(t testing.TB, text []byte) (list []*unstructured.Unstructured) {
	t.Helper()
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if len(raw) == 0 || string(raw) == "null" {
			continue
		}
		o := &unstructured.Unstructured{}
		if err := o.UnmarshalJSON(raw); err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		list = append(list, o)
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// installCRDs installs the kinds of other projects, and Model.
func installCRDs(t *testing.T, s *apiserver) {
	t.Helper()
	files := []string{"../chart/crds/models.yaml"}
	for _, m := range modules {
		dir := fetch(t, m.path, m.version, m.sum)
		for _, name := range m.crds {
			files = append(files, filepath.Join(dir, name))
		}
	}
	c := newClient(t, s)
	for _, name := range files {
		for _, o := range objects(t, read(t, name)) {
			if err := c.create(o, ""); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			until(t, o.GetName()+" to be served", func() bool {
				at, err := c.resource(o, "")
				if err != nil {
					return false
				}
				now, err := at.Get(context.Background(), o.GetName(), metav1.GetOptions{})
				if err != nil {
					return false
				}
				conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
				for _, one := range conditions {
					if one.(map[string]any)["type"] == "Established" && one.(map[string]any)["status"] == "True" {
						return true
					}
				}
				return false
			})
		}
	}
}

// fetch returns the folder of a module's files, which match the sum.
func fetch(t *testing.T, path, version, sum string) string {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", path+"@"+version)
	cmd.Dir = t.TempDir() // outside of any module
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := cmd.Output()
	var got struct{ Dir, Sum, Error string }
	if jsonErr := json.Unmarshal(out, &got); jsonErr != nil || got.Dir == "" {
		t.Fatalf("%s %s: %v %v %s", path, version, err, jsonErr, got.Error)
	}
	if got.Sum != sum {
		t.Fatalf("%s %s: the sum is %s, want %s", path, version, got.Sum, sum)
	}
	return got.Dir
}

// refused reports whether the server refused something with these words.
func refused(err error, words ...string) bool {
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		return false
	}
	return !slices.ContainsFunc(words, func(word string) bool {
		return !strings.Contains(status.ErrStatus.Message, word)
	})
}
