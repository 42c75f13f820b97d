package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/load"
)

// The model in Triton's Python backend, its declaration, and the bound of its queue, which is
// unbounded by default. No setting of a queue drops an older request for a newer one.
const (
	tritonModel = `import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            time.sleep(%g)
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x[:, 0, 0, :1])]))
        return answers
`
	tritonConfig = `backend: "python"
max_batch_size: 1
input [{ name: "x" data_type: TYPE_UINT8 dims: [%d, %d, %d] }]
output [{ name: "y" data_type: TYPE_UINT8 dims: [1] }]
instance_group [{ count: 1 kind: KIND_CPU }]
`
	tritonQueue = "dynamic_batching { default_queue_policy { max_queue_size: %d } }\n"
)

// triton runs the Triton server of the package nvidia-pytriton, which is installed in the directory
// site for an interpreter of Python. At most queue frames wait; 0: no bound.
func triton(ctx context.Context, site, python string, queue, cameras int, length time.Duration) (_ *film, err error) {
	dir, err := os.MkdirTemp("", "triton-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := tritonFiles(ctx, dir, site, python, queue); err != nil {
		return nil, fmt.Errorf("streams: Triton: %w", err)
	}
	addr, err := process.FreeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	ctx, end := context.WithCancel(ctx)
	defer end()
	cmd := exec.CommandContext(ctx, filepath.Join(site, "pytriton/tritonserver/bin/tritonserver"), "--model-repository="+filepath.Join(dir, "models"),
		"--backend-directory="+filepath.Join(dir, "backends"), "--http-address=127.0.0.1", "--http-port="+port, "--allow-grpc=false", "--allow-metrics=false")
	cmd.Env = []string{"PATH=" + filepath.Dir(python) + ":/usr/bin:/bin", "LD_LIBRARY_PATH=" + filepath.Join(site, "nvidia_pytriton.libs")}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() { end(); _ = cmd.Wait() }() // killed
	f, err := post(ctx, "http://"+addr+"/v2/models/"+slow, cameras, length)
	if err != nil {
		text, _ := os.ReadFile(log.Name())
		err = fmt.Errorf("streams: Triton: %w\n%s", err, text)
	}
	return f, err
}

// tritonFiles makes the directories of the model and of the Python backend: the wheel has a program
// for each version of Python, which goes where the backend looks for it, as does numpy.
func tritonFiles(ctx context.Context, dir, site, python string, queue int) error {
	version, err := exec.CommandContext(ctx, python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").Output()
	if err != nil {
		return fmt.Errorf("%s: %w", python, err)
	}
	backend, model := filepath.Join(dir, "backends", "python"), filepath.Join(dir, "models", slow)
	if err := errors.Join(os.MkdirAll(backend, 0o755), os.MkdirAll(filepath.Join(model, "1"), 0o755)); err != nil {
		return err
	}
	for _, file := range []string{
		"pytriton/tritonserver/backends/python/libtriton_python.so", "pytriton/tritonserver/backends/python/triton_python_backend_utils.py",
		"pytriton/tritonserver/python_backend_stubs/" + strings.TrimSpace(string(version)) + "/triton_python_backend_stub", "numpy", "numpy.libs",
	} {
		if err := os.Symlink(filepath.Join(site, file), filepath.Join(backend, filepath.Base(file))); err != nil {
			return err
		}
	}
	config := fmt.Appendf(nil, tritonConfig, height, width, colours)
	if queue > 0 {
		config = fmt.Appendf(config, tritonQueue, queue)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(model, "config.pbtxt"), config, 0o600),
		os.WriteFile(filepath.Join(model, "1", "model.py"), fmt.Appendf(nil, tritonModel, slowTime.Seconds()), 0o600))
}

// post sends the cameras' frames over HTTP, each when it is due.
func post(ctx context.Context, url string, cameras int, length time.Duration) (*film, error) {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		a, err := http.Get(url + "/ready")
		if err == nil {
			a.Body.Close()
			if a.StatusCode == http.StatusOK {
				break
			}
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return nil, fmt.Errorf("the model is not ready: %w", err)
		}
	}
	head := fmt.Sprintf(`{"inputs":[{"name":"x","shape":[1,%d,%d,%d],"datatype":"UINT8","parameters":{"binary_data_size":%d}}]}`, height, width, colours, frameBytes)
	body := append([]byte(head), make([]byte, frameBytes)...)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1 << 10}}
	defer client.CloseIdleConnections()
	f := &film{cameras: cameras, length: length}
	var mu sync.Mutex
	var failed error
	began := time.Now()
	var all sync.WaitGroup
	waiting, end := context.WithCancel(ctx)
	defer end()
	err := roll(ctx, began, cameras, length, func(camera int, seq int64, due time.Duration) error {
		all.Go(func() {
			s := load.Shown{Stream: camera, Seq: seq, Due: due}
			q, err := http.NewRequestWithContext(waiting, http.MethodPost, url+"/infer", bytes.NewReader(body))
			if err == nil {
				q.Header.Set("Inference-Header-Content-Length", fmt.Sprint(len(head)))
				var a *http.Response
				if a, err = client.Do(q); err == nil {
					_, err = io.Copy(io.Discard, a.Body)
					a.Body.Close()
					if a.StatusCode != http.StatusOK {
						s.Fault = a.Status
					}
				}
			}
			if waiting.Err() != nil {
				return // too late: counts as unanswered
			}
			s.At = time.Since(began)
			s.Age = s.At - due
			mu.Lock()
			f.shown = append(f.shown, s)
			failed = errors.Join(failed, err)
			mu.Unlock()
		})
		return nil
	})
	time.AfterFunc(peerGrace, end)
	all.Wait()
	return f, errors.Join(err, failed)
}
