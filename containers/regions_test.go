package containers_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

var (
	cutIn = tensor.Spec{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1, -1, 1},
		Format: tensor.FormatNHWC,
		Image:  &tensor.Image{Channels: tensor.ChannelsGray, Regions: true}}
	cutOut = []tensor.Spec{{Name: "y", DType: tensor.Int32, Shape: tensor.Shape{-1}}}
	cutID  = scheduler.ModelID{Name: "cut", Version: "1"}
)

// regions makes a request for regions of a picture.
func (r *rig) regions(t testing.TB, picture tensor.Tensor, regions int, owner scheduler.Completer) *scheduler.Request {
	t.Helper()
	corners, err := tensor.FromSlice(tensor.Shape{regions, 4, 2}, make([]float32, 8*regions))
	if err != nil {
		t.Fatal(err)
	}
	corners.Name = "image_regions"
	m, ok := r.sched.Model(cutID)
	if !ok {
		t.Fatal("no such model")
	}
	return &scheduler.Request{Model: m, Inputs: []tensor.Tensor{picture, corners}, Rows: regions,
		Deadline: time.Now().Add(30 * time.Second),
		Rare:     &scheduler.Rare{Picture: scheduler.NewPicture()}, Owner: owner}
}

type ownerFunc func(*scheduler.Request)

func (f ownerFunc) Complete(r *scheduler.Request) { f(r) }

// TestV4Regions: the JSON frame of a batch of regions of two pictures, and its frames, which have
// each picture once. What clients may send is in the declaration.
func TestV4Regions(t *testing.T) {
	r := newRig(t, containers.Config{})
	c := r.join(t, containertest.Model{Name: "cut", Version: "1", Inputs: []tensor.Spec{cutIn}, Outputs: cutOut,
		Answer: func(b *containertest.Batch) containertest.Reply {
			y, err := tensor.FromSlice(tensor.Shape{b.Rows}, make([]int32, b.Rows))
			if err != nil {
				return containertest.Reply{Error: err.Error()}
			}
			return containertest.Reply{Outputs: []tensor.Tensor{y}}
		}})
	if err := r.sched.Configure(cutID.Name, scheduler.ModelConfig{Strategy: "static"}); err != nil {
		t.Fatal(err)
	}
	picture := func(v byte) tensor.Tensor {
		return tensor.Tensor{Name: "image", DType: tensor.Uint8, Shape: tensor.Shape{1, 1, 2, 1}, Data: []byte{v, v}}
	}
	var answered sync.WaitGroup
	answered.Add(2)
	owner := ownerFunc(func(q *scheduler.Request) {
		if q.Err != nil {
			t.Error(q.Err)
		}
		for _, out := range q.Outputs {
			out.Release()
		}
		answered.Done()
	})
	one, two := r.regions(t, picture(1), 3, owner), r.regions(t, picture(2), 2, owner)
	one.Rare.Picture, two.Rare.Picture = 71, 72
	r.sched.Submit(one, two)
	answered.Wait()
	b := c.Batches()[0]
	const want = `{"rows":5,"inputs":[{"name":"image","datatype":"UINT8","shape":[2,1,2,1]},{"name":"image_regions","datatype":"FP32","shape":[5,4,2]}],` +
		`"pictures":{"image":{"of":[0,0,0,1,1],"ids":[71,72]}},"timeout_ms":T,"requests":[3,2]}`
	if got := timeoutText.ReplaceAllString(b.Header, `"timeout_ms":T`); got != want {
		t.Errorf("header %s\nexpected %s", got, want)
	}
	if string(b.Inputs[0].Data) != "\x01\x01\x02\x02" {
		t.Errorf("the pictures are % x", b.Inputs[0].Data)
	}
	if got := one.Model.Spec().Inputs[1].String(); got != "image_regions float32 [-1, 4], optional, regions of image" {
		t.Errorf("declared: %s", got)
	}
}

// TestRegionsRefused: declarations of regions that cannot be served.
func TestRegionsRefused(t *testing.T) {
	r := newRig(t, containers.Config{})
	for want, change := range map[string]func(m *containertest.Model){
		"needs batched = true": func(m *containertest.Model) {
			m.Batched, m.Inputs[0].Shape = new(false), tensor.Shape{-1, -1, 1}
		},
		"has no resize and the shape [-1, 8, -1, 1]": func(m *containertest.Model) {
			m.Inputs[0].Shape = tensor.Shape{-1, 8, -1, 1}
		},
		`the server adds it for the regions of input \"image\"`: func(m *containertest.Model) {
			m.Inputs = append(m.Inputs,
				tensor.Spec{Name: "image_regions", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}})
		},
		"inputs, with those that the server adds for regions": func(m *containertest.Model) {
			m.Inputs = append(m.Inputs, manySpecs(254)...)
		},
	} {
		m := containertest.Model{Name: "cut", Version: "1", Inputs: []tensor.Spec{cutIn}, Outputs: cutOut}
		change(&m)
		if _, err := containertest.Join(r, m); err == nil ||
			!strings.Contains(err.Error(), strings.ReplaceAll(want, `\"`, `"`)) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}

func manySpecs(n int) []tensor.Spec {
	specs := make([]tensor.Spec, n)
	for i := range specs {
		specs[i] = tensor.Spec{Name: strings.Repeat("x", 1+i%100) + strings.Repeat("y", i/100), DType: tensor.Int8,
			Shape: tensor.Shape{-1}}
	}
	return specs
}
