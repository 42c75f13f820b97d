package server

import (
	"bytes"
	"context"
	"image"
	"image/jpeg"
	"log/slog"
	"strings"
	"testing"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// saysFiles checks that clients and operators are told that a model's input takes files.
func saysFiles(t *testing.T, s *Server, model string) {
	t.Helper()
	if meta, err := s.predict.Model(model, ""); err != nil || meta.Inputs[0].Image != "gray pictures" {
		t.Errorf("the metadata is %+v, %v", meta, err)
	}
	if shown := s.report.Models(); shown[0].Inputs[0].Image != "gray pictures" {
		t.Errorf("operators are shown %+v", shown)
	}
}

// corners answers with the first pixel of each picture, or of each file of a picture.
func corners(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
	corners := make([]byte, b.Rows)
	if b.Inputs[0].DType == tensor.Bytes {
		files, err := tensor.BytesElems(b.Inputs[0])
		if err != nil {
			return nil, err
		}
		for row, file := range files {
			m, _, err := image.Decode(bytes.NewReader(file))
			if err != nil {
				b.Refuse(row, err)
				continue
			}
			corners[row] = m.(*image.Gray).Pix[0]
		}
	} else {
		for row := range corners {
			corners[row] = b.Inputs[0].Data[row*30*40]
		}
	}
	y, err := tensor.FromSlice(tensor.Shape{b.Rows, 1}, corners)
	return []tensor.Tensor{y}, err
}

// A container in Go gets picture files unchanged, and refuses one that it cannot decode. A reload
// can change their maximum size.
func TestPictures(t *testing.T) {
	s, file := loaded(t, new(logged), nil)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		left <- container.Serve(ctx, container.Model{
			Name: "bright", Version: "1", Log: slog.New(slog.DiscardHandler),
			Inputs: []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 30, 40, 1},
				Format: tensor.FormatNHWC,
				Image:  &tensor.Image{Channels: tensor.ChannelsGray}}},
			Outputs: []tensor.Spec{{Name: "corner", DType: tensor.Uint8, Shape: tensor.Shape{-1, 1}}},
			Predict: corners,
		}, s.Addrs().Containers[0].String())
	}()
	defer func() {
		leave()
		if err := <-left; err != nil {
			t.Error(err)
		}
	}()
	budgettest.Until(t, "the container to serve", func() bool { return serves(s, "bright", "1") })

	saysFiles(t, s, "bright")
	m := image.NewGray(image.Rect(0, 0, 40, 30))
	copy(m.Pix, bytes.Repeat([]byte{200}, len(m.Pix)))
	var whole bytes.Buffer
	if err := jpeg.Encode(&whole, m, nil); err != nil {
		t.Fatal(err)
	}
	client, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ask := func(data []byte, shape ...int) string {
		in, err := tensor.New(tensor.Uint8, shape, data)
		if err != nil {
			t.Fatal(err)
		}
		a, err := client.Infer(t.Context(), "bright", in)
		if err != nil {
			return err.Error()
		}
		defer a.Release()
		return string('0' + a.Tensors[0].Data[0]/50)
	}
	for _, tc := range []struct{ what, got, want string }{
		{"a file", ask(whole.Bytes(), whole.Len()), "4"},
		{"pixels", ask(m.Pix, 30, 40, 1), "4"},
		{"a cut file", ask(whole.Bytes()[:whole.Len()-40], whole.Len()-40), "invalid input"},
		{"no picture", ask([]byte("GIF89a"), 6), "got a GIF"},
	} {
		if !strings.Contains(tc.got, tc.want) {
			t.Errorf("%s: %s, expected %s", tc.what, tc.got, tc.want)
		}
	}

	var config struct {
		Input []struct {
			Format string
			Type   string `json:"data_type"`
		}
		Parameters map[string]struct {
			Text string `json:"string_value"`
		}
	}
	err = newHTTP(t, s.Addrs().REST[0]).call("GET", "/v2/models/bright/config", "", &config)
	if err != nil || config.Input[0].Format != tensor.FormatNHWC || config.Input[0].Type != "TYPE_UINT8" ||
		config.Parameters["image.x"].Text != "gray pictures" {
		t.Errorf("its configuration: %+v, %v", config, err)
	}

	file.Limits.ImagePixels = 1199
	if _, err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	if got := ask(whole.Bytes(), whole.Len()); !strings.Contains(got, "JPEG of 40 x 30 is 1200 pixels, limits.image_pixels is 1199") {
		t.Errorf("a large picture: %s", got)
	}
}
