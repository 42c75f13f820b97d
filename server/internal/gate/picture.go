package gate

import (
	"fmt"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/picture"
	"github.com/shivad/shivad/shiva/tensor"
)

// holdsFiles reports whether a tensor for an input of pictures holds picture files: pixels have at
// least three dimensions.
func holdsFiles(t *tensor.Tensor) bool {
	return t.DType == tensor.Bytes || t.DType == tensor.Uint8 && len(t.Shape) <= 2
}

// files makes the input of a model from picture files: Bytes with an element for each row. t is one
// file as Uint8 of shape [n] or [1, n], or Bytes of shape [], [rows] or [rows, 1]. added reports
// whether the client sent one row without a dimension for rows.
//
// It reads the header of each file and decodes nothing. A decoder may then trust the size in the
// header.
func (c *Call) files(t tensor.Tensor, spec *tensor.Spec,
	pool *tensor.Pool) (files tensor.Tensor, added bool, err error) {
	got := t
	if t.DType == tensor.Uint8 {
		if len(t.Shape) == 0 || len(t.Shape) == 2 && t.Shape[0] != 1 {
			return t, false, c.misfit(spec, got)
		}
		if err = c.look(t.Data, spec, 0); err != nil {
			return t, false, err
		}
		if t, err = tensor.FromElems(tensor.Shape{1}, [][]byte{got.Data}, pool); err != nil {
			return t, false, inputError(spec, err)
		}
		t.Name = spec.Name
		c.owned = append(c.owned, t)
		return t, len(got.Shape) == 1 || !c.Target.Spec.Batched(), nil
	}
	rows, ok := t.Shape.Elements()
	if !ok || len(t.Shape) > 2 || len(t.Shape) == 2 && t.Shape[1] != 1 || !c.Target.Spec.Batched() && rows != 1 {
		return t, false, c.misfit(spec, got)
	}
	elems, err := tensor.BytesElems(t)
	if err != nil {
		return t, false, inputError(spec, err)
	}
	for row, file := range elems {
		if err = c.look(file, spec, row); err != nil {
			return t, false, err
		}
	}
	if added = len(t.Shape) == 0 || !c.Target.Spec.Batched(); len(t.Shape) != 1 {
		t.Shape = tensor.Shape{rows}
	}
	return t, added, nil
}

// look refuses a file from which the model's container cannot make the declared pixels.
func (c *Call) look(file []byte, spec *tensor.Spec, row int) error {
	h, err := picture.Read(file)
	if err != nil {
		return fault.Invalid("input %q: picture %d: %w", spec.Name, row, err)
	}
	refuse := func(format string, args ...any) error {
		return fault.Invalid("input %q: picture %d: %s", spec.Name, row, fmt.Sprintf(format, args...))
	}
	if pixels := int64(h.Width) * int64(h.Height); pixels > c.Target.Pixels {
		return fault.TooLarge("input %q: picture %d: %s of %d x %d is %d pixels, limits.image_pixels is %d",
			spec.Name, row, h.Format, h.Width, h.Height, pixels, c.Target.Pixels)
	}
	switch {
	case h.Animated:
		return refuse("an animated %s: send one of its pictures", h.Format)
	case h.Bits > 8:
		return refuse("%s of %d bits per channel, expected 8: the conversion loses detail, so the client must do it",
			h.Format, h.Bits)
	case h.Format == picture.JPEG && h.Channels == 4:
		return refuse("JPEG in CMYK, expected RGB or gray")
	case h.Format == picture.JPEG && h.Channels != 1 && h.Channels != 3:
		return refuse("JPEG of %d channels, expected 1 or 3", h.Channels)
	}
	if spec.Image.Resize != tensor.ResizeNone {
		return nil
	}
	shape := spec.Shape
	if c.Target.Spec.Batched() {
		shape = shape[1:]
	}
	width, height := h.Upright()
	if wantHeight, wantWidth := tensor.Sides(shape, spec.Format); wantHeight != -1 && wantHeight != height ||
		wantWidth != -1 && wantWidth != width {
		return refuse("%s of %d x %d pixels, expected %s: the model declares no resize", h.Format, width, height,
			sides(wantWidth, wantHeight))
	}
	return nil
}

// sides formats a declared width and height for an error message.
func sides(width, height int) string {
	text := func(n int) string {
		if n == -1 {
			return "any"
		}
		return fmt.Sprint(n)
	}
	return text(width) + " x " + text(height)
}
