package kubernetes

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// A pod is the container of a pod template, as a process on this machine: with its arguments, its
// environment and its probes, but with ports and files of its own.
type pod struct {
	t         *testing.T
	container corev1.Container
	ports     map[string]int // on this machine, by their names in the template
	cmd       *exec.Cmd
	log       string
	done      chan struct{} // closed at its end
}

// rendered returns the pod templates that the chart makes, by component, and its ConfigMap.
func rendered(t *testing.T, values string) (templates map[string]corev1.PodTemplateSpec, config string) {
	t.Helper()
	text, err := template(t, "default", []byte(values))
	if err != nil {
		t.Fatal(err)
	}
	templates = map[string]corev1.PodTemplateSpec{}
	for _, o := range objects(t, text) {
		switch o.GetKind() {
		case "ConfigMap":
			config, _, _ = unstructured.NestedString(o.Object, "data", "shivad.toml")
		case "Deployment", "DaemonSet":
			d := &appsv1.Deployment{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, d); err != nil {
				t.Fatal(err)
			}
			templates[o.GetLabels()["app.kubernetes.io/component"]] = d.Spec.Template
		}
	}
	return templates, config
}

// newPod returns a pod that is not started yet. files are the files in its volumes, by path.
func newPod(t *testing.T, template corev1.PodTemplateSpec, files map[string]string) *pod {
	t.Helper()
	p := &pod{t: t, container: *template.Spec.Containers[0].DeepCopy(), ports: map[string]int{},
		log: filepath.Join(t.TempDir(), "log")}
	replace := []string{"127.0.0.1:8002", "127.0.0.1:0"} // the admin API, inside the pod
	for path, text := range files {
		here := filepath.Join(t.TempDir(), filepath.Base(path))
		if err := os.WriteFile(here, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace = append(replace, path, here)
	}
	for _, port := range p.container.Ports {
		p.ports[port.Name] = freePort(t)
		replace = append(replace, fmt.Sprintf(":%d", port.ContainerPort),
			fmt.Sprintf("127.0.0.1:%d", p.ports[port.Name]))
	}
	r := strings.NewReplacer(replace...)
	for i, a := range p.container.Args {
		p.container.Args[i] = r.Replace(a)
	}
	for i, e := range p.container.Env {
		p.container.Env[i].Value = r.Replace(e.Value)
	}
	return p
}

// start runs a program of this machine in the place of the container's.
func (p *pod) start(program ...string) {
	p.t.Helper()
	log, err := os.Create(p.log)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	env := os.Environ()
	args := append([]string{}, p.container.Args...)
	for _, e := range p.container.Env {
		env = append(env, e.Name+"="+e.Value)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "$("+e.Name+")", e.Value)
		}
	}
	p.cmd = exec.Command(program[0], append(program[1:], args...)...)
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = env, log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	done := make(chan struct{})
	cmd := p.cmd
	go func() { // ends with the process
		_ = cmd.Wait()
		close(done)
	}()
	p.done = done
	p.t.Cleanup(func() {
		p.kill()
		if p.t.Failed() {
			p.t.Logf("%s:\n%s", program[0], lastLines(p.log, 30))
		}
	})
}

func (p *pod) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// ask performs a probe as the kubelet does: "" is success.
func (p *pod) ask(probe *corev1.Probe) string {
	get := probe.HTTPGet
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(probe.TimeoutSeconds)*time.Second)
	defer cancel()
	url := fmt.Sprintf("http://127.0.0.1:%d%s", p.ports[get.Port.StrVal], get.Path)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	request.Header.Set("User-Agent", "kube-probe/1.36")
	request.Header.Set("Connection", "close")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 10<<10))
	if err != nil || answer.StatusCode < 200 || answer.StatusCode >= 400 {
		return fmt.Sprintf("%s: %s (%v)", answer.Status, text, err)
	}
	return ""
}

func (p *pod) live() string  { return p.ask(p.container.LivenessProbe) }
func (p *pod) ready() string { return p.ask(p.container.ReadinessProbe) }

// becomes waits until a probe succeeds, or fails.
func (p *pod) becomes(probe *corev1.Probe, yes bool) (last string) {
	p.t.Helper()
	until(p.t, fmt.Sprintf("%s to be %v, log:\n%s", probe.HTTPGet.Path, yes, lastLines(p.log, 5)), func() bool {
		last = p.ask(probe)
		return (last == "") == yes
	})
	return last
}

func (p *pod) address(port string) string {
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(p.ports[port]))
}

// serve starts the chart's server.
func serve(t *testing.T, templates map[string]corev1.PodTemplateSpec, config string) *pod {
	t.Helper()
	p := newPod(t, templates["server"], map[string]string{"/etc/shivad/shivad.toml": config})
	p.start(built(t, "shivad"))
	p.becomes(p.container.StartupProbe, true)
	return p
}

// model starts a model of the chart, which loads once the file loaded is there.
func model(t *testing.T, templates map[string]corev1.PodTemplateSpec, server *pod, loaded string) *pod {
	t.Helper()
	p := newPod(t, templates["model"], nil)
	for i, e := range p.container.Env {
		if e.Name == "SHIVA_SERVERS" {
			p.container.Env[i].Value = server.address("containers")
		}
	}
	p.container.Env = append(p.container.Env, corev1.EnvVar{Name: "LOADED", Value: loaded})
	p.start(python(t), "testdata/model.py")
	return p
}

// python returns an interpreter that has the SDK.
func python(t *testing.T) string {
	t.Helper()
	path := os.Getenv("PYTHON")
	if path == "" {
		path = "../../../.venv/bin/python"
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: \"make k8s\" makes it", err)
	}
	return path
}
