package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var models = schema.GroupVersionResource{Group: "shivad.github.io", Version: "v1alpha1", Resource: "models"}

// A fakeServer reports a load of the model digits.
type fakeServer struct {
	address string
	load    atomic.Value // float64
	asked   atomic.Int64
	close   func()
}

// fakeServer starts a server on the next of the addresses that the stage's controllers may ask.
func (g *stage) fakeServer(load float64) *fakeServer {
	g.t.Helper()
	if len(g.admins) == 0 {
		g.t.Fatal("no address is left that the controllers may ask")
	}
	l := g.admins[0]
	g.admins = g.admins[1:]
	f := &fakeServer{address: l.Addr().String()}
	f.load.Store(load)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		f.asked.Add(1)
		_ = json.NewEncoder(w).
			Encode(
				map[string]any{
					"models": []any{map[string]any{"name": "digits", "version": "1", "load": f.load.Load()}}})
	})}
	go func() { _ = server.Serve(l) }() // ends with Close
	f.close = func() { server.Close() }
	g.t.Cleanup(f.close)
	return f
}

// A stage is a namespace in which the chart has been installed with a controller. The test's
// controllers have that controller's account, and so only the rights of its Role.
type stage struct {
	t *testing.T
	*client
	*proxy         // to the apiserver
	direct    bool // controllers talk to the apiserver itself, to see that it is unreachable
	server    *apiserver
	namespace string
	token     string
	admins    []net.Listener // for fakeServer
	allowed   []string       // flags that allow their addresses
}

func newStage(t *testing.T, s *apiserver) *stage {
	t.Helper()
	c := newClient(t, s)
	g := &stage{t: t, client: c, proxy: newProxy(t, s), server: s, namespace: c.namespace()}
	text, err := template(t, g.namespace, []byte("{scaler: controller, server: {adminOpen: true}}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects(t, text) {
		if err := c.create(o, g.namespace); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		g.admins, g.allowed = append(g.admins, l), append(g.allowed, "--allow-admin="+l.Addr().String())
	}
	seconds := int64(3600)
	token, err := c.CoreV1().ServiceAccounts(g.namespace).CreateToken(t.Context(), "shivad-controller",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g.token = token.Status.Token
	return g
}

// A controller is a process of shiva-controller.
type controller struct {
	t      *testing.T
	cmd    *exec.Cmd
	log    string
	health string
	done   chan struct{}
}

func (g *stage) start(flags ...string) *controller {
	g.t.Helper()
	k := &controller{t: g.t, log: filepath.Join(g.t.TempDir(), "log"),
		health: fmt.Sprintf("127.0.0.1:%d", freePort(g.t)), done: make(chan struct{})}
	log, err := os.Create(k.log)
	if err != nil {
		g.t.Fatal(err)
	}
	defer log.Close()
	url := g.proxy.url
	if g.direct {
		url = g.server.url()
	}
	k.cmd = exec.Command(built(g.t, "k8s/shiva-controller"), append([]string{
		"--kubeconfig=" + kubeconfig(g.t, url, g.token), "--namespace=" + g.namespace, "--health=" + k.health, "--poll=100ms",
	}, slices.Concat(g.allowed, flags)...)...)
	k.cmd.Stdout, k.cmd.Stderr = log, log
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := k.cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	go func() { // ends with the process
		_ = k.cmd.Wait()
		close(k.done)
	}()
	g.t.Cleanup(func() {
		k.end(syscall.SIGKILL)
		if g.t.Failed() {
			g.t.Logf("controller:\n%s", lastLines(k.log, 15))
		}
	})
	return k
}

func (k *controller) end(s syscall.Signal) {
	_ = k.cmd.Process.Signal(s)
	<-k.done
}

// healthy is the status of /livez or /readyz.
func (k *controller) healthy(path string) int {
	answer, err := http.Get("http://" + k.health + path)
	if err != nil {
		return 0
	}
	answer.Body.Close()
	return answer.StatusCode
}

// model returns a Model for the apiserver. spec is added to the fields that all of them have.
func (g *stage) model(admin string, spec map[string]any) *unstructured.Unstructured {
	all := map[string]any{
		"admin": admin, "replicas": map[string]any{"min": int64(1), "max": int64(8)}, "scaleDownAfter": "1s",
		"template": map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"team": "vision"}},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "model", "image": "digits:1"}}},
		},
	}
	for key, value := range spec {
		all[key] = value
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "shivad.github.io/v1alpha1", "kind": "Model",
		"metadata": map[string]any{"name": "digits", "labels": map[string]any{"a": "b"}}, "spec": all,
	}}
}

func (g *stage) make(admin string, spec map[string]any) {
	g.t.Helper()
	if err := g.create(g.model(admin, spec), g.namespace); err != nil {
		g.t.Fatal(err)
	}
}

// deployment returns the Deployment of the Model; nil if there is none.
func (g *stage) deployment() *appsv1.Deployment {
	g.t.Helper()
	d, err := g.AppsV1().Deployments(g.namespace).Get(context.Background(), "digits", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		g.t.Fatal(err)
	}
	return d
}

func (g *stage) waitReplicas(n int32) {
	g.t.Helper()
	last := int32(-1)
	until(g.t, fmt.Sprintf("%d replicas", n), func() bool {
		if d := g.deployment(); d != nil {
			last = *d.Spec.Replicas
		}
		return last == n
	})
}

// condition waits until the Model has a condition with a status and reason, and returns its
// message.
func (g *stage) condition(kind, status, reason string) (message string) {
	g.t.Helper()
	until(g.t, fmt.Sprintf("the condition %s to be %s: %s", kind, status, reason), func() bool {
		m, err := g.dynamic.Resource(models).Namespace(g.namespace).
			Get(context.Background(), "digits", metav1.GetOptions{})
		if err != nil {
			g.t.Fatal(err)
		}
		list, _, _ := unstructured.NestedSlice(m.Object, "status", "conditions")
		for _, one := range list {
			c := one.(map[string]any)
			if c["type"] == kind && c["status"] == status && c["reason"] == reason {
				message = c["message"].(string)
				return true
			}
		}
		return false
	})
	return message
}

// patch changes the Model or, if resource is deployments, its Deployment.
func (g *stage) patch(resource, text string) {
	g.t.Helper()
	if _, err := g.dynamic.Resource(resourceOf(resource)).Namespace(g.namespace).
		Patch(context.Background(), "digits", "application/merge-patch+json", []byte(text),
			metav1.PatchOptions{}); err != nil {
		g.t.Fatal(err)
	}
}

// polled waits until the controllers have gone over the Model several times, and calls see, if any,
// meanwhile.
func (g *stage) polled(see func()) {
	g.t.Helper()
	end := g.polls.Load() + 10
	until(g.t, "ten polls", func() bool {
		if see != nil {
			see()
		}
		return g.polls.Load() >= end
	})
}

// still checks that a condition stays true while the controllers poll.
func (g *stage) still(what string, holds func() bool) {
	g.t.Helper()
	g.polled(func() {
		if !holds() {
			g.t.Fatalf("%s: not any more", what)
		}
	})
}

// serves makes the one replica of the Deployment ready, and waits until the controller reports it.
func (g *stage) serves() {
	g.t.Helper()
	d := g.deployment()
	d.Status = appsv1.DeploymentStatus{Replicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
	if _, err := g.AppsV1().Deployments(g.namespace).
		UpdateStatus(context.Background(), d, metav1.UpdateOptions{}); err != nil {
		g.t.Fatal(err)
	}
	g.condition("Ready", "True", "Serving")
}

// delete deletes the Model or, if resource is deployments, its Deployment.
func (g *stage) delete(resource string) {
	g.t.Helper()
	if err := g.dynamic.Resource(resourceOf(resource)).Namespace(g.namespace).
		Delete(context.Background(), "digits", metav1.DeleteOptions{}); err != nil {
		g.t.Fatal(err)
	}
}

// makeTheirs makes a Deployment with the Model's name that does not belong to the Model.
func (g *stage) makeTheirs() {
	g.t.Helper()
	other := `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "digits"}, "spec": {"replicas": 9, "selector": {"matchLabels": {"a": "b"}},
		"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "theirs:1"}]}}}}`
	if err := g.create(objects(g.t, []byte(other))[0], g.namespace); err != nil {
		g.t.Fatal(err)
	}
}

// theirs reports whether the Deployment is still as makeTheirs made it.
func (g *stage) theirs() bool {
	g.t.Helper()
	d := g.deployment()
	return d != nil && *d.Spec.Replicas == 9 && d.Spec.Template.Spec.Containers[0].Image == "theirs:1" &&
		len(d.OwnerReferences) == 0
}

func resourceOf(name string) schema.GroupVersionResource {
	if name == "deployments" {
		return appsv1.SchemeGroupVersion.WithResource(name)
	}
	return models
}

// A Model becomes a Deployment that it owns, with its template; changes of the Model reach it.
func TestControllerMakesDeployments(t *testing.T) {
	g := newStage(t, shared(t))
	k := g.start()
	until(t, "the controller to be ready", func() bool { return k.healthy("/readyz") == http.StatusOK })
	g.make(g.fakeServer(0.2).address, nil)
	g.waitReplicas(1)
	d := g.deployment()
	owner := metav1.GetControllerOf(d)
	if owner == nil || owner.Kind != "Model" || owner.Name != "digits" || owner.BlockOwnerDeletion == nil ||
		!*owner.BlockOwnerDeletion {
		t.Errorf("the owner is %+v", owner)
	}
	if c := d.Spec.Template.Spec.Containers; len(c) != 1 || c[0].Image != "digits:1" ||
		d.Spec.Template.Labels["team"] != "vision" || d.Labels["a"] != "b" {
		t.Errorf("%+v %v %v", c, d.Spec.Template.Labels, d.Labels)
	}
	g.condition("Scaled", "True", "Asked")
	if message := g.condition("Ready", "False", "Starting"); message != "0 of 1 replicas are ready" {
		t.Error(message)
	}
	g.serves()
	g.patch("models", `{"spec": {"template": {"spec": {"containers": [{"name": "model", "image": "digits:2"}]}}}}`)
	until(t, "the new image", func() bool { return g.deployment().Spec.Template.Spec.Containers[0].Image == "digits:2" })
	generation := g.deployment().Generation
	g.still("nothing is changed without need", func() bool { return g.deployment().Generation == generation })
}

// More replicas at once, within bounds; fewer after scaleDownAfter. Without a range the controller
// does not scale.
func TestControllerScales(t *testing.T) {
	g := newStage(t, shared(t))
	g.start()
	server := g.fakeServer(0)
	g.make(server.address, nil)
	g.waitReplicas(1) // min
	for _, step := range []struct {
		load float64
		want int32
	}{{3.2, 4}, {100, 8}, {1.5, 2}, {0, 1}} {
		server.load.Store(step.load)
		g.waitReplicas(step.want)
	}
	g.patch("models", `{"spec": {"scaleDownAfter": "1h"}}`)
	server.load.Store(4.0)
	g.waitReplicas(4)
	server.load.Store(1.0)
	g.still("nothing goes down before its time", func() bool { return *g.deployment().Spec.Replicas == 4 })
	g.patch("models", `{"spec": {"replicas": null}}`)
	until(t, "the scale to be left to others", func() bool {
		g.patch("deployments", `{"spec": {"replicas": 7}}`)
		g.polled(nil)
		return *g.deployment().Spec.Replicas == 7
	})
}

// Changes of the Deployment by other writers are reverted; their additions stay; a deleted
// Deployment is made again.
func TestControllerMendsDrift(t *testing.T) {
	g := newStage(t, shared(t))
	g.start()
	g.make(g.fakeServer(1.5).address, nil)
	g.waitReplicas(2)
	g.patch("deployments", `{"metadata": {"annotations": {"seen": "yes"}}, "spec": {"replicas": 5, "template": {"metadata": {"annotations": {"restartedAt": "now"}}, "spec": {"containers": [{"name": "model", "image": "other:1"}]}}}}`)
	until(t, "the drift to be mended", func() bool {
		d := g.deployment()
		return *d.Spec.Replicas == 2 && d.Spec.Template.Spec.Containers[0].Image == "digits:1"
	})
	if d := g.deployment(); d.Annotations["seen"] != "yes" || d.Spec.Template.Annotations["restartedAt"] != "now" {
		t.Errorf("what was added is gone: %v %v", d.Annotations, d.Spec.Template.Annotations)
	}
	before := g.deployment().UID
	g.delete("deployments")
	until(t, "another Deployment", func() bool { d := g.deployment(); return d != nil && d.UID != before })
}

// The controller does not make a Deployment for a deleted Model, however late it learns of the
// deletion. The test plays the cluster's controller that deletes the Model's objects.
func TestControllerDeletes(t *testing.T) {
	for name, late := range map[string][]string{
		"hears of both": nil, "hears of the Deployment": {"models"}, "hears of the Model": {"deployments"},
		"hears of nothing": {"models", "deployments"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newStage(t, shared(t))
			g.start()
			g.make(g.fakeServer(1).address, nil)
			g.waitReplicas(1)
			g.serves()
			release := g.hold(late...)
			g.delete("models")
			g.delete("deployments")
			none := func() bool { return g.deployment() == nil }
			if slices.Contains(late, "models") {
				g.still("it is gone", none)
			}
			release()
			// Once the controller acts on the next Model of this name, it has learned of the end of
			// this one.
			g.make(g.fakeServer(2).address, nil)
			g.waitReplicas(2)
		})
	}
}

// A foreign Deployment in the place of a Model's is left alone, also by a controller that has not
// learned of it.
func TestControllerHearsLateOfAnother(t *testing.T) {
	g := newStage(t, shared(t))
	g.start()
	g.make(g.fakeServer(1).address, nil)
	g.waitReplicas(1)
	g.serves()
	release := g.hold("deployments")
	g.delete("deployments")
	g.makeTheirs()
	g.still("it is theirs", g.theirs)
	g.condition("Ready", "True", "Serving")
	release()
	g.condition("Ready", "False", "NotOurs")
	if !g.theirs() {
		t.Errorf("%+v", g.deployment().Spec)
	}
}

// A controller that is killed and restarted continues where it was: it applies changes made
// meanwhile, and scales nothing down before the window has passed anew.
func TestControllerRestarts(t *testing.T) {
	g := newStage(t, shared(t))
	first := g.start("--lease=")
	server := g.fakeServer(3.5)
	g.make(server.address, map[string]any{"scaleDownAfter": "1h"})
	g.waitReplicas(4)
	first.end(syscall.SIGKILL)
	server.load.Store(0.5)
	g.patch("models", `{"spec": {"template": {"spec": {"containers": [{"name": "model", "image": "digits:2"}]}}}}`)
	g.start("--lease=")
	until(t, "the new image", func() bool { return g.deployment().Spec.Template.Spec.Containers[0].Image == "digits:2" })
	g.still("the replicas stay", func() bool { return *g.deployment().Spec.Replicas == 4 })
	g.patch("models", `{"spec": {"scaleDownAfter": "100ms"}}`)
	g.waitReplicas(1)
}

// Of two controllers one acts, and the other takes over when that ends.
func TestTwoControllers(t *testing.T) {
	g := newStage(t, shared(t))
	server := g.fakeServer(1.5)
	holder := func() (name string) {
		lease, err := g.CoordinationV1().Leases(g.namespace).
			Get(context.Background(), "shiva-controller", metav1.GetOptions{})
		if err == nil && lease.Spec.HolderIdentity != nil {
			name = *lease.Spec.HolderIdentity
		}
		return name
	}
	first := g.start()
	g.make(server.address, nil)
	g.waitReplicas(2)
	leader := holder()
	second := g.start()
	until(t, "the second to be ready", func() bool { return second.healthy("/readyz") == http.StatusOK })
	g.still("the first leads", func() bool { return holder() == leader })
	first.end(syscall.SIGTERM)
	if code := first.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	server.load.Store(4.5)
	g.waitReplicas(5)
	if holder() == leader {
		t.Error("the Lease is still of the first")
	}
}

// Two controllers that both act agree after each change. A controller acts on an answer of up to
// half a poll ago, so one may undo for a moment what the other has just done.
func TestTwoControllersWithoutLease(t *testing.T) {
	g := newStage(t, shared(t))
	server := g.fakeServer(1.5)
	g.start("--lease=")
	g.start("--lease=")
	g.make(server.address, nil)
	g.waitReplicas(2)
	for i, load := range []float64{2.5, 5.5, 0.5} {
		want := []int32{3, 6, 1}[i]
		server.load.Store(load)
		g.waitReplicas(want)
		g.polled(nil)
		g.waitReplicas(want)
		before := g.deployment().Generation
		g.still("they agree", func() bool { return g.deployment().Generation == before })
	}
}

// While servers are unreachable nothing is scaled down; the needs of the reachable ones are still
// met.
func TestControllerWithoutServers(t *testing.T) {
	g := newStage(t, shared(t))
	g.start()
	server := g.fakeServer(2.5)
	g.make(server.address, nil)
	g.waitReplicas(3)
	server.close()
	if message := g.condition("Scaled", "False", "NoServer"); !strings.Contains(message, "connection refused") {
		t.Error(message)
	}
	g.still("the replicas stay", func() bool { return *g.deployment().Spec.Replicas == 3 })
	g.patch("models", `{"spec": {"admin": "attacker.example:80"}}`)
	if message := g.condition("Scaled", "False", "AdminNotAllowed"); !strings.Contains(message, `"attacker.example:80"`) {
		t.Error(message)
	}
	g.still("the replicas stay", func() bool { return *g.deployment().Spec.Replicas == 3 })
	g.patch("models", fmt.Sprintf(`{"spec": {"admin": %q}}`, g.fakeServer(0).address))
	g.condition("Scaled", "True", "Asked")
	g.waitReplicas(1)
}

// An error that only a change of the Model can fix is in its status, until it is fixed.
func TestControllerRefusals(t *testing.T) {
	g := newStage(t, shared(t))
	g.start()
	server := g.fakeServer(1)
	for name, c := range map[string]struct {
		spec map[string]any
		word string
	}{
		"range":    {map[string]any{"replicas": map[string]any{"min": int64(3), "max": int64(2)}}, "min is more than max"},
		"type":     {map[string]any{"replicas": map[string]any{"min": "one", "max": int64(2)}}, "spec.replicas.min"},
		"unknown":  {map[string]any{"replica": int64(1)}, "spec.replica"},
		"duration": {map[string]any{"scaleDownAfter": "soon"}, "spec.scaleDownAfter"},
		"address":  {map[string]any{"admin": "http://shivad"}, "spec.admin"},
	} {
		if err := g.create(g.model(server.address, c.spec), g.namespace); !refused(err, c.word) {
			t.Errorf("%s: %v", name, err)
		}
	}
	g.make(server.address,
		map[string]any{
			"template": map[string]any{
				"spec": map[string]any{"containers": []any{map[string]any{"name": "model", "image": "i", "imagePolicy": "x"}}}}})
	if message := g.condition("Ready", "False", "Refused"); !strings.Contains(message, "imagePolicy") {
		t.Error(message)
	}
	g.patch("models", `{"spec": {"template": {"spec": {"containers": [{"name": "Model", "image": "i"}]}}}}`)
	until(t, "the name to be refused", func() bool { return strings.Contains(g.condition("Ready", "False", "Refused"), "containers[0].name") })
	g.patch("models", `{"spec": {"template": {"metadata": {"labels": "none"}}}}`)
	g.condition("Ready", "False", "InvalidTemplate")
	g.patch("models", `{"spec": {"template": {"metadata": null, "spec": {"containers": [{"name": "model", "image": "i"}]}}}}`)
	g.condition("Ready", "False", "Starting")
}

// A foreign Deployment of the same name is left alone.
func TestControllerTakesNothingOver(t *testing.T) {
	g := newStage(t, shared(t))
	g.makeTheirs()
	g.start()
	g.make(g.fakeServer(1).address, nil)
	if message := g.condition("Ready", "False", "NotOurs"); !strings.Contains(message, "delete it, or rename the Model") {
		t.Error(message)
	}
	if !g.theirs() {
		t.Errorf("%+v", g.deployment().Spec)
	}
}

// The apiserver does not answer, and is then unreachable for longer than the Lease's renewal: the
// controller stays live, reports that it is not ready, and continues when the apiserver is back.
func TestApiserverAway(t *testing.T) {
	s := newServer(t)
	g := newStage(t, s)
	g.direct = true
	k := g.start()
	server := g.fakeServer(1.5)
	g.make(server.address, nil)
	g.waitReplicas(2)

	s.freeze()
	server.load.Store(2.5)
	until(t, "a request to be given up", func() bool { return strings.Contains(lastLines(k.log, 1000), "Client.Timeout exceeded") })
	if live := k.healthy("/livez"); live != http.StatusOK {
		t.Errorf("while the apiserver is slow /livez is %d", live)
	}
	s.thaw()
	g.waitReplicas(3)

	s.stop()
	server.load.Store(4.5)
	until(t, "the controller not to be ready", func() bool {
		return k.healthy("/readyz") == http.StatusServiceUnavailable
	})
	if live := k.healthy("/livez"); live != http.StatusOK {
		t.Errorf("without an apiserver /livez is %d", live)
	}
	s.start()
	g.waitReplicas(5)
	until(t, "the controller to be ready", func() bool { return k.healthy("/readyz") == http.StatusOK })
	select {
	case <-k.done:
		t.Error("the controller has ended")
	default:
	}
}

// Without an apiserver at its start the controller waits for one.
func TestControllerStartsFirst(t *testing.T) {
	s := newServer(t)
	g := newStage(t, s)
	g.direct = true
	server := g.fakeServer(1.5)
	g.make(server.address, nil)
	s.stop()
	k := g.start()
	until(t, "the controller to live", func() bool { return k.healthy("/livez") == http.StatusOK })
	if ready := k.healthy("/readyz"); ready != http.StatusServiceUnavailable {
		t.Errorf("without an apiserver /readyz is %d", ready)
	}
	s.start()
	g.waitReplicas(2)
}
