package load

import (
	"bytes"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/tensor"
)

func TestFramesAreMessagesOfTheirOwn(t *testing.T) {
	frames, err := Frames(3, "m", tensor.Float32, tensor.Shape{4, 5})
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range frames {
		var a answers
		if n, done, err := a.next(f); n != len(f) || !done || a.fault || err != nil {
			t.Errorf("frame %d: %d of %d bytes, done %v, fault %v, error %v", i, n, len(f), done, a.fault, err)
		}
		for _, other := range frames[:i] {
			if bytes.Equal(f, other) {
				t.Errorf("frame %d has a double", i)
			}
		}
	}
	if _, err := Frames(1, "m", tensor.Bytes, tensor.Shape{1}); err == nil {
		t.Error("frames of a dtype without a size, and no error")
	}
}

func TestSameTensors(t *testing.T) {
	request := message("", "m", "\x01\x01\x00\x00\x00\x02"+"12345678")
	for name, c := range map[string]struct {
		answer []byte
		want   string
	}{
		"the same":        {request, ""},
		"other metadata":  {message(`{"id": 1}`, "m", "\x01\x01\x00\x00\x00\x02"+"12345678"), ""},
		"other data":      {message("", "m", "\x01\x01\x00\x00\x00\x02"+"12345679"), "differs from what was sent"},
		"other dtype":     {message("", "m", "\x01\x07\x00\x00\x00\x02"+"12345678"), "float32 [2], got uint32 [2]"},
		"other shape":     {message("", "m", "\x02\x01\x00\x00\x00\x02\x00\x00\x00\x01"+"12345678"), "float32 [2], got float32 [2, 1]"},
		"no tensor":       {message("", "m"), "1 tensors"},
		"other namespace": {message("", "n", "\x01\x01\x00\x00\x00\x02"+"12345678"), `"m"`},
		"cut":             {request[:len(request)-1], "not one whole message"},
		"garbage":         {[]byte("HTTP/1.1 200 OK\r\n"), "answer: "},
	} {
		t.Run(name, func(t *testing.T) {
			err := SameTensors(request, c.answer)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
}
