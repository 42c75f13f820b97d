package kubernetes

import (
	"context"
	"net/http"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A kubelet plays the pods of the stage's Deployment, each as a process of slow.py.
type kubelet struct {
	*stage
	server *pod
	pods   []*pod
}

// look starts and ends pods to match the Deployment, and returns how many it wants and how many are
// ready.
func (k *kubelet) look() (wanted, ready int) {
	k.t.Helper()
	d := k.deployment()
	if d == nil {
		return 0, 0
	}
	wanted = int(*d.Spec.Replicas)
	for len(k.pods) < wanted {
		k.pods = append(k.pods, replica(k.t, d.Spec.Template, k.server))
	}
	for len(k.pods) > wanted {
		last := k.pods[len(k.pods)-1]
		k.pods = k.pods[:len(k.pods)-1]
		_ = last.cmd.Process.Signal(syscall.SIGTERM)
		<-last.done
	}
	for _, p := range k.pods {
		if p.ready() == "" {
			ready++
		}
	}
	if is := &d.Status; int(is.Replicas) != wanted || int(is.ReadyReplicas) != ready {
		is.Replicas, is.ReadyReplicas, is.AvailableReplicas = int32(wanted), int32(ready), int32(ready)
		// A Deployment that the controller has changed meanwhile is updated at the next look.
		_, _ = k.AppsV1().Deployments(k.namespace).UpdateStatus(context.Background(), d, metav1.UpdateOptions{})
	}
	return wanted, ready
}

// A real server under a real load: the controller starts the model, ends it without requests,
// starts it anew for the first requests, makes as many replicas as three times the load of one
// needs, which then answer all requests, and in the end none.
func TestControllerScalesRealModels(t *testing.T) {
	t.Parallel() // it waits
	templates, config := rendered(t, slow("digits", ""))
	server := serve(t, templates, config)
	measured, _ := rendered(t, slow("measured", ""))
	replica(t, measured["model"], server)
	can := capacity(t, server, "measured")

	g := newStage(t, shared(t))
	g.start("--allow-admin=" + server.address("admin"))
	pods := templates["model"]
	template, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&pods)
	if err != nil {
		t.Fatal(err)
	}
	g.make(server.address("admin"), map[string]any{"replicas": map[string]any{"min": int64(0), "max": int64(8)}, "template": template})
	k := &kubelet{stage: g, server: server}
	replicas := func(what string, n int) {
		t.Helper()
		until(t, what, func() bool {
			wanted, ready := k.look()
			return wanted == n && ready == n
		})
	}
	until(t, "a first replica, which shows what the model is", func() bool {
		wanted, _ := k.look()
		return wanted == 1
	})
	replicas("none, since nobody asks", 0)
	load := newCrowd(t, server, "digits", can/2)
	replicas("one for half of what it can do", 1)
	g.condition("Ready", "True", "Serving")
	load.rate.Store(int64(3 * can * 1000))
	replicas("four for three times of that", 4)
	until(t, "most of the requests to be answered", func() bool {
		load.answered.Store(0)
		load.refused.Store(0)
		until(t, "thirty to end", func() bool {
			k.look()
			return load.answered.Load()+load.refused.Load() >= 30
		})
		return load.answered.Load() > 20*load.refused.Load()
	})
	load.end()
	replicas("none, a minute after the last request", 0)
	if status := ask(t.Context(), server, "digits", time.Second); status != http.StatusServiceUnavailable {
		t.Errorf("without replicas a request is answered %d, want 503", status)
	}
	replicas("one for the request that came", 1)
	if status := ask(t.Context(), server, "digits", time.Minute); status != http.StatusOK {
		t.Errorf("the next one is answered %d", status)
	}
}
