//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	pixels "image"
	"image/jpeg"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/shiva/tensor"
)

// shivactl bench reads the model's inputs and gets correct answers through every door, on TCP and
// on Unix sockets, with random tensors, with files and with frames of streams.
func TestE2EBench(t *testing.T) {
	s := start(t, config(t, digits+settled))
	s.waitReplicas("digits", 1)
	for _, k := range []struct{ door, addr string }{
		{"tcp", s.tcp}, {"rest", s.rest}, {"grpc", s.grpc},
		{"tcp", s.sockets["tcp"]}, {"rest", s.sockets["rest"]}, {"grpc", s.sockets["grpc"]},
	} {
		door, addr := k.door, k.addr
		for name, args := range map[string][]string{
			"closed loop": {"--conns", "4"},
			"open loop":   {"--rate", "50", "--data", filepath.Join(root(t), "examples", "digits", "images")},
			"streams":     {"--streams", "3", "--fps", "20", "--keep", "2"},
		} {
			args = append([]string{"bench", "digits/1", "--door", door, "--addr", addr, "--for", "500ms", "--timeout",
				"20s", "--json"}, args...)
			out, err := exec.Command(binary(t, "shivactl"), args...).Output()
			var report struct {
				Sent, Answered, Superseded, Failed, Unanswered int64
				Streams                                        []struct{ Answered int64 }
				Errors                                         []struct{ Kind, First string }
			}
			if err := json.Unmarshal(out, &report); err != nil {
				t.Fatalf("%s at %s: %v: %s", name, addr, err, out)
			}
			if err != nil || report.Answered == 0 || report.Sent != report.Answered+report.Superseded ||
				len(report.Errors) != 0 || name == "streams" && len(report.Streams) != 3 {
				t.Errorf("%s at %s: %v, %s", name, addr, err, out)
			}
		}
		out, err := exec.Command(binary(t, "shivactl"), "bench", "digit", "--door", door, "--addr", addr).
			CombinedOutput()
		if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != 1 || !strings.Contains(string(out), "digits") {
			t.Errorf("an unknown model at %s: %v, %s", addr, err, out)
		}
	}
}

// shivactl bench sends a picture's file as it is to an input that decodes it, through every door.
func TestE2EBenchSendsFiles(t *testing.T) {
	random := pixels.NewRGBA(pixels.Rect(0, 0, 40, 30))
	r := rand.New(rand.NewPCG(1, 2))
	for i := range random.Pix {
		random.Pix[i] = uint8(r.Uint32()) | uint8(i%4/3*255) // opaque
	}
	var file bytes.Buffer
	if err := jpeg.Encode(&file, random, nil); err != nil {
		t.Fatal(err)
	}
	photo := filepath.Join(t.TempDir(), "photo.jpg")
	if err := os.WriteFile(photo, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, config(t, digits))
	picture := tensor.Spec{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1, -1, 3},
		Format: tensor.FormatNHWC, Image: &tensor.Image{Channels: tensor.ChannelsRGB}}
	single := picture
	single.Shape = picture.Shape[1:]
	for name, x := range map[string]tensor.Spec{"rows": picture, "single": single} {
		s.serve(t, container.Model{
			Name: name, Inputs: []tensor.Spec{x},
			Outputs: []tensor.Spec{{Name: "y", DType: tensor.Uint8, Shape: tensor.Shape{-1}}}, Batched: new(name == "rows"),
			Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
				files, err := tensor.BytesElems(b.Inputs[0])
				if b.Inputs[0].DType != tensor.Bytes || err != nil || !bytes.Equal(files[0], file.Bytes()) {
					return nil, errors.New("this is not the file")
				}
				y, err := tensor.New(tensor.Uint8, tensor.Shape{b.Rows}, make([]byte, b.Rows))
				return []tensor.Tensor{y}, err
			},
		}, 0)
		for door, addr := range map[string]string{"tcp": s.tcp, "rest": s.rest, "grpc": s.grpc} {
			out, err := exec.Command(binary(t, "shivactl"), "bench", name, "--door", door, "--addr", addr, "--for",
				"200ms", "--timeout", "20s", "--json", "--data", photo).CombinedOutput()
			var report struct{ Sent, Answered int64 }
			if json.Unmarshal(out, &report); err != nil || report.Answered == 0 || report.Sent != report.Answered {
				t.Errorf("%s at %s: %v, %s", name, door, err, out)
			}
		}
	}
}
