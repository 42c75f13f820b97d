package tensor

import "fmt"

// An Image is a model's declaration of an input of pictures, in addition to its shape, which is
// that of the pixels that a client may send: Uint8, in the order of Spec.Format. A client may
// instead send JPEG or PNG files to that input: one as Uint8 of shape [bytes], or any number as the
// elements of Bytes. The container decodes them.
type Image struct {
	// Channels is ChannelsRGB, ChannelsBGR or ChannelsGray: the container decodes every file to
	// these, and interprets pixels as these.
	Channels string
	// Resize is ResizeNone, ResizeStretch, ResizeLetterbox or ResizeCrop. Unless it is ResizeNone,
	// the container resizes every picture to Height x Width pixels, and the shape has -1 for both.
	Resize        string
	Height, Width int
	// Regions says that the container cuts regions out of a picture: a request may bring one
	// picture and any number of regions, each of which is a row. See Spec.Regions.
	Regions bool
}

// The channels of a pixel.
const (
	ChannelsRGB  = "rgb"
	ChannelsBGR  = "bgr"
	ChannelsGray = "gray"
)

// How pictures whose size is not the model's are resized.
const (
	ResizeNone      = ""
	ResizeStretch   = "stretch"   // each side by its own factor
	ResizeLetterbox = "letterbox" // both sides by one factor, with bars at the sides
	ResizeCrop      = "crop"      // both sides by one factor, without what is beyond the middle
)

// String returns a text like "rgb pictures" or "rgb pictures, letterbox to 640 x 480, or regions of
// one picture".
func (i *Image) String() string {
	text := i.Channels + " pictures"
	if i.Resize != ResizeNone {
		text += fmt.Sprintf(", %s to %d x %d", i.Resize, i.Width, i.Height)
	}
	if i.Regions {
		text += ", or regions of one picture"
	}
	return text
}

// Check returns an error unless an input of this dtype and format can be such pictures; row is the
// shape of one picture.
func (i *Image) Check(d DType, row Shape, format string) error {
	depth := 3
	switch i.Channels {
	case ChannelsRGB, ChannelsBGR:
	case ChannelsGray:
		depth = 1
	default:
		return fmt.Errorf("channels %.32q, expected %s, %s or %s", i.Channels, ChannelsRGB, ChannelsBGR, ChannelsGray)
	}
	if d != Uint8 || len(row) != 3 || format == "" {
		return fmt.Errorf("pictures are %s of 3 dimensions beside that of rows, with a format; got %s %s, format %q",
			Uint8.V2(), d.V2(), row, format)
	}
	height, width, channels := 0, 1, 2
	if format == FormatNCHW {
		height, width, channels = 1, 2, 0
	}
	if row[channels] != depth {
		return fmt.Errorf("%s pictures of format %s have %d channels, shape %s of one says %d", i.Channels, format,
			depth, row, row[channels])
	}
	switch i.Resize {
	case ResizeNone:
		if i.Height != 0 || i.Width != 0 {
			return fmt.Errorf("a size of %d x %d pixels needs resize %s, %s or %s: without resize the shape determines the size",
				i.Width, i.Height, ResizeStretch, ResizeLetterbox, ResizeCrop)
		}
	case ResizeStretch, ResizeLetterbox, ResizeCrop:
		if i.Height < 1 || i.Width < 1 || i.Height > MaxSide || i.Width > MaxSide {
			return fmt.Errorf("resize to %d x %d pixels, expected 1 to %d for each side", i.Width, i.Height, MaxSide)
		}
		if row[height] != -1 || row[width] != -1 {
			return fmt.Errorf("resize takes pictures of any size, but shape %s of one has no -1 for height and width", row)
		}
	default:
		return fmt.Errorf("resize %.32q, expected %s, %s or %s", i.Resize, ResizeStretch, ResizeLetterbox, ResizeCrop)
	}
	return nil
}

// Sides returns the height and width in a declared shape of one picture; -1 is any.
func Sides(row Shape, format string) (height, width int) {
	if format == FormatNCHW {
		return row[1], row[2]
	}
	return row[0], row[1]
}

// MaxSide is the maximum of a picture's height and width in pixels, which is that of JPEG.
const MaxSide = 65535

// RegionsSuffix ends the name of the input for the regions of the pictures of another.
const RegionsSuffix = "_regions"

// RegionsOf returns the declaration of the regions of an input of pictures: a box for each row, as
// x_min, y_min, x_max and y_max in parts of the upright picture, 0 to 1. In place of a box, [4],
// a region may be four corners, [4, 2], clockwise from the one that becomes the top left.
func RegionsOf(image string) Spec {
	return Spec{Name: image + RegionsSuffix, DType: Float32, Shape: Shape{-1, 4}, Optional: true, Regions: image}
}
