package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// The results of the chart's probes, for the server and for a model, in cases in which other
// servers are killed in vain, or get requests that they cannot answer.

const oneModel = `
server:
  requiredModels: [sums]
  config: |
    [defaults]
    execution_timeout = "1s"
models:
  - name: sums
    image: sums:1
    env: [{name: MODEL_NAME, value: sums}, {name: SHIVA_HEALTH_STUCK, value: "2"}]
`

// file returns the path of a file, which exists if there is set.
func file(t *testing.T, there bool) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "loaded")
	if there {
		touch(t, path)
	}
	return path
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// infer asks the model for the sum of four numbers, in JSON.
func infer(ctx context.Context, server *pod, numbers string) (status int, body string) {
	text := `{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ` + numbers + `}]}`
	request, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"http://"+server.address("rest")+"/v2/models/sums/infer", strings.NewReader(text))
	if err != nil {
		return 0, err.Error()
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	out, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(out)
}

// While a model loads, server and model are live, and neither is ready; then both are ready.
func TestProbesModelLoading(t *testing.T) {
	templates, config := rendered(t, oneModel)
	server := serve(t, templates, config)
	loaded := file(t, false)
	m := model(t, templates, server, loaded)
	m.becomes(m.container.LivenessProbe, true)
	for range 20 {
		if no := m.ready(); !strings.Contains(no, "loading sums/1") {
			t.Errorf("a model that loads is ready: %q", no)
		}
		if no := server.ready(); !strings.Contains(no, "503") || !strings.Contains(no, "no live replica of sums") {
			t.Errorf("a server without its model is ready: %q", no)
		}
		if no := m.live() + server.live(); no != "" {
			t.Fatalf("a loading model has killed somebody: %s", no)
		}
	}
	touch(t, loaded)
	m.becomes(m.container.ReadinessProbe, true)
	server.becomes(server.container.ReadinessProbe, true)
	if status, body := infer(t.Context(), server, "[0, 1, 2, 3]"); status != http.StatusOK || !strings.Contains(body, "[6]") {
		t.Errorf("%d %s", status, body)
	}
}

// Without a model, a server that requires none is ready, and one that requires one is not; both are
// live.
func TestProbesNoModel(t *testing.T) {
	for _, c := range []struct {
		values string
		ready  bool
	}{{"{}", true}, {"server: {requiredModels: [sums]}", false}} {
		templates, config := rendered(t, c.values)
		server := serve(t, templates, config)
		server.becomes(server.container.ReadinessProbe, c.ready)
		if no := server.live(); no != "" {
			t.Errorf("%s: a server without models is not live: %s", c.values, no)
		}
	}
}

// A model that never answers: the server stays live, and is not ready while nothing can answer; the
// model is not live, and the one that the kubelet starts in its place serves.
func TestProbesModelThatNeverAnswers(t *testing.T) {
	templates, config := rendered(t, oneModel)
	server := serve(t, templates, config)
	m := model(t, templates, server, file(t, true))
	server.becomes(server.container.ReadinessProbe, true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := make(chan string, 1)
	go func() { // ends with the answer
		status, body := infer(ctx, server, "[-1, 0, 0, 0]")
		asked <- fmt.Sprint(status, " ", body)
	}()
	server.becomes(server.container.ReadinessProbe, false)
	if no := m.becomes(m.container.LivenessProbe, false); !strings.Contains(no, "sums/1 has computed one batch for") {
		t.Errorf("the model says %q", no)
	}
	if no := server.live(); no != "" {
		t.Errorf("a model that hangs has killed the server: %s", no)
	}
	if answer := <-asked; strings.HasPrefix(answer, "200") {
		t.Errorf("the request that hangs is answered %s", answer)
	}
	m.kill()
	m = model(t, templates, server, file(t, true))
	m.becomes(m.container.ReadinessProbe, true)
	server.becomes(server.container.ReadinessProbe, true)
	if status, body := infer(t.Context(), server, "[0, 1, 2, 3]"); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
}

// During a large request that arrives slowly, and one that takes long, all probes succeed.
func TestProbesLargeRequest(t *testing.T) {
	templates, config := rendered(t, strings.Replace(oneModel, `"1s"`, `"30s"`, 1))
	server := serve(t, templates, config)
	m := model(t, templates, server, file(t, true))
	server.becomes(server.container.ReadinessProbe, true)
	const pieces = 8
	probed := make(chan struct{}) // a round of probes, for which each piece of the large one waits
	var under atomic.Int32
	under.Store(2)
	results := make(chan string, 2)
	go func() { // ends with the answer
		status, body := infer(t.Context(), server, "[1.5, 0, 0, 0]")
		under.Add(-1)
		results <- fmt.Sprint(status, " ", body)
	}()
	go func() { // ends with the answer
		const size = 16 << 20
		head := fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"FP32","shape":[1,%d],"parameters":{"binary_data_size":%d}}],"outputs":[{"name":"sum","parameters":{"binary_data":true}}]}`,
			size/4, size)
		body, w := io.Pipe()
		go func() { // ends with the body, or when the probes end
			_, err := io.WriteString(w, head)
			for i, piece := 0, make([]byte, size/pieces); i < pieces && err == nil; i++ {
				<-probed
				_, err = w.Write(piece)
			}
			w.CloseWithError(errors.Join(err, io.EOF))
		}()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			"http://"+server.address("rest")+"/v2/models/sums/infer", io.LimitReader(body, int64(len(head)+size)))
		if err != nil {
			results <- err.Error()
			return
		}
		request.Header.Set("Inference-Header-Content-Length", fmt.Sprint(len(head)))
		answer, err := http.DefaultClient.Do(request)
		under.Add(-1)
		if err != nil {
			results <- err.Error()
			return
		}
		defer answer.Body.Close()
		n, err := io.Copy(io.Discard, answer.Body)
		results <- fmt.Sprint(answer.StatusCode, " ", n, " ", err)
	}()
	probes := 0
	for ; under.Load() > 0; probes++ {
		for name, no := range map[string]string{"server live": server.live(), "server ready": server.ready(),
			"model live": m.live(), "model ready": m.ready()} {
			if no != "" {
				t.Errorf("while a large request is under way: %s: %s", name, no)
			}
		}
		select {
		case probed <- struct{}{}:
		default:
		}
	}
	close(probed)
	for range 2 {
		if result := <-results; !strings.HasPrefix(result, "200") {
			t.Error(result)
		}
	}
	t.Logf("%d rounds of probes", probes)
	if probes < pieces {
		t.Errorf("%d rounds of probes", probes)
	}
}

// newRedis starts a Redis, and returns values for the chart with its address.
func newRedis(t *testing.T) (values string, stop func()) {
	t.Helper()
	port := freePort(t)
	redis := exec.Command("redis-server", "--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--save", "", "--dir",
		t.TempDir())
	redis.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := redis.Start(); err != nil {
		t.Fatalf("%v: \"make programs\" installs it", err)
	}
	stop = func() { _ = redis.Process.Kill(); _ = redis.Wait() }
	t.Cleanup(stop)
	until(t, "redis", func() bool {
		return exec.Command("redis-cli", "-p", fmt.Sprint(port), "ping").Run() == nil
	})
	return fmt.Sprintf("redis: {url: \"redis://127.0.0.1:%d/0\"}\n", port), stop
}

// Redis ends, or is unreachable at the start: servers are live and ready, and report what is
// missing. With redis.required a server does not start without Redis, and reports the reason.
func TestProbesRedisAway(t *testing.T) {
	values, stop := newRedis(t)
	templates, config := rendered(t, values)
	server := serve(t, templates, config)
	server.becomes(server.container.ReadinessProbe, true)
	stop()
	degraded := func(p *pod) (text string) {
		answer, err := http.Get("http://" + p.address("health") + "/readyz")
		if err != nil {
			return ""
		}
		defer answer.Body.Close()
		var body struct{ Degraded string }
		_ = json.NewDecoder(answer.Body).Decode(&body)
		return body.Degraded
	}
	until(t, "the server to notice", func() bool { return degraded(server) != "" })
	late := serve(t, templates, config)
	late.becomes(late.container.ReadinessProbe, true)
	until(t, "the late one to say so", func() bool { return degraded(late) != "" })
	for _, p := range []*pod{server, late} {
		if no := p.live() + p.ready(); no != "" {
			t.Errorf("without Redis: %s", no)
		}
	}
	templates, config = rendered(t, strings.Replace(values, "{", "{required: true, ", 1))
	strict := newPod(t, templates["server"], map[string]string{"/etc/shivad/shivad.toml": config})
	strict.start(built(t, "shivad"))
	<-strict.done
	if code := strict.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(lastLines(strict.log, 5), "state.required = false") {
		t.Errorf("it ended with %d:\n%s", code, lastLines(strict.log, 5))
	}
}
