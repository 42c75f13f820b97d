package picture_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/picture"
)

func jpegOf(t testing.TB, m image.Image) []byte {
	var b bytes.Buffer
	if err := jpeg.Encode(&b, m, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func pngOf(t testing.TB, m image.Image) []byte {
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

var size = image.Rect(0, 0, 40, 30)

// after inserts a part after the first n bytes of a file.
func after(file []byte, n int, part string) []byte {
	return append(append(bytes.Clone(file[:n]), part...), file[n:]...)
}

// exif returns the part of a JPEG with the orientation of a picture, in either byte order.
func exif(order binary.AppendByteOrder, turned uint16) string {
	tiff := []byte("II*\x00")
	if order == binary.AppendByteOrder(binary.BigEndian) {
		tiff = []byte("MM\x00*")
	}
	tiff = order.AppendUint32(tiff, 8)
	tiff = order.AppendUint16(tiff, 2)
	for _, entry := range [][2]uint16{{0x010f, 7}, {0x0112, turned}} {
		tiff = order.AppendUint16(tiff, entry[0])
		tiff = order.AppendUint16(tiff, 3)
		tiff = order.AppendUint32(tiff, 1)
		tiff = order.AppendUint16(tiff, entry[1])
		tiff = order.AppendUint16(tiff, 0)
	}
	part := "Exif\x00\x00" + string(tiff)
	return "\xff\xe1" + string(binary.BigEndian.AppendUint16(nil, uint16(len(part)+2))) + part
}

// chunk returns a part of a PNG.
func chunk(kind, data string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(data)))
	b = append(append(b, kind...), data...)
	return string(binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[4:])))
}

// header returns a PNG's signature and header.
func header(width, height uint32, bits, kind byte) string {
	data := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, width), height)
	return "\x89PNG\r\n\x1a\n" + chunk("IHDR", string(append(data, bits, kind, 0, 0, 0)))
}

func TestRead(t *testing.T) {
	gray, wide := image.NewGray(size), image.NewNRGBA64(size)
	wide.Set(1, 1, color.NRGBA64{1, 2, 3, 4}) // a translucent pixel, or the file has no alpha
	colours := jpegOf(t, image.NewRGBA(size))
	huge := header(30000, 30000, 8, 2) + chunk("IDAT", strings.Repeat("\x00", 43)) + chunk("IEND", "")
	if len(huge) != 100 {
		t.Fatalf("the huge picture has %d bytes", len(huge))
	}
	for name, tc := range map[string]struct {
		file []byte
		want picture.Header
	}{
		"jpeg": {colours,
			picture.Header{Format: picture.JPEG, Width: 40, Height: 30, Channels: 3, Bits: 8, Turned: 1}},
		"gray jpeg": {jpegOf(t, gray),
			picture.Header{Format: picture.JPEG, Width: 40, Height: 30, Channels: 1, Bits: 8, Turned: 1}},
		"turned": {after(colours, 2, exif(binary.LittleEndian, 6)),
			picture.Header{Format: picture.JPEG, Width: 40, Height: 30, Channels: 3, Bits: 8, Turned: 6}},
		"turned, big-endian": {after(colours, 2, exif(binary.BigEndian, 3)),
			picture.Header{Format: picture.JPEG, Width: 40, Height: 30, Channels: 3, Bits: 8, Turned: 3}},
		"turned by no number that there is": {after(colours, 2, exif(binary.BigEndian, 9)),
			picture.Header{Format: picture.JPEG, Width: 40, Height: 30, Channels: 3, Bits: 8, Turned: 1}},
		"with bytes that fill": {after(colours, 2, "\xff\xff\xff"),
			picture.Header{Format: picture.JPEG, Width: 40, Height: 30, Channels: 3, Bits: 8, Turned: 1}},
		"cmyk": {[]byte("\xff\xd8\xff\xc0\x00\x14\x08\x00\x1e\x00\x28\x04" + strings.Repeat("\x00", 12)),
			picture.Header{Format: picture.JPEG, Width: 40, Height: 30, Channels: 4, Bits: 8, Turned: 1}},
		"png": {pngOf(t, image.NewRGBA(size)),
			picture.Header{Format: picture.PNG, Width: 40, Height: 30, Channels: 4, Bits: 8, Turned: 1}},
		"gray png": {pngOf(t, gray),
			picture.Header{Format: picture.PNG, Width: 40, Height: 30, Channels: 1, Bits: 8, Turned: 1}},
		"16 bits": {pngOf(t, wide),
			picture.Header{Format: picture.PNG, Width: 40, Height: 30, Channels: 4, Bits: 16, Turned: 1}},
		"huge": {[]byte(huge),
			picture.Header{Format: picture.PNG, Width: 30000, Height: 30000, Channels: 3, Bits: 8, Turned: 1}},
		"animated": {after(pngOf(t, gray), 33, chunk("acTL", "\x00\x00\x00\x02\x00\x00\x00\x00")),
			picture.Header{Format: picture.PNG, Width: 40, Height: 30, Channels: 1, Bits: 8, Turned: 1,
				Animated: true}},
	} {
		if got, err := picture.Read(tc.file); err != nil || got != tc.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestUpright(t *testing.T) {
	for turned := 1; turned <= 8; turned++ {
		h := picture.Header{Width: 40, Height: 30, Turned: turned}
		if width, height := h.Upright(); width != 40 && turned < 5 || width != 30 && turned >= 5 || width+height != 70 {
			t.Errorf("%d: %d x %d", turned, width, height)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	colours, plain := jpegOf(t, image.NewRGBA(size)), pngOf(t, image.NewGray(size))
	spoilt := bytes.Clone(plain)
	spoilt[17]++
	for name, tc := range map[string]struct {
		file string
		want string
	}{
		"nothing":          {"", "got 0 bytes"},
		"no picture":       {"hello, world", "12 bytes that begin with 68 65 6c"},
		"gif":              {"GIF89a....", "got a GIF"},
		"webp":             {"RIFF\x00\x00\x00\x00WEBPVP8 ", "got a WebP"},
		"heic":             {"\x00\x00\x00\x18ftypheic", "got a HEIC"},
		"cut in its mark":  {"\xff\xd8", "ends after its first marker"},
		"cut jpeg":         {string(colours[:100]), "JPEG: it ends after 100 bytes"},
		"no marker":        {"\xff\xd8\xff\xe0\x00\x02abcd", "expected a marker at byte 6"},
		"an end":           {"\xff\xd8\xff\xd9\x00\x02abcd", "before marker 0xd9 at byte 2"},
		"a scan":           {"\xff\xd8\xff\xda\x00\x02abcd", "before the scan at byte 2"},
		"a part of 1":      {"\xff\xd8\xff\xe0\x00\x01abcd", "segment of 1 bytes"},
		"lossless":         {"\xff\xd8\xff\xc3\x00\x0b\x08\x00\x01\x00\x01\x01\x00\x00\x00", "got marker 0xc3"},
		"a short frame":    {"\xff\xd8\xff\xc0\x00\x04\x08\x00", "the frame header has 2 bytes"},
		"no lines":         {"\xff\xd8\xff\xc0\x00\x0b\x08\x00\x00\x00\x01\x01\x00\x00\x00", "1 x 0 pixels"},
		"only parts":       {"\xff\xd8" + strings.Repeat("\xff\xe0\x00\x02", 1001), "first 1000 segments"},
		"only fill":        {"\xff\xd8" + strings.Repeat("\xff", 5000), "first 1000 segments"},
		"cut png":          {string(plain[:30]), "PNG: it ends after 30 bytes"},
		"png, no picture":  {header(1, 1, 8, 0) + chunk("IEND", ""), "ends without a picture"},
		"png, only parts":  {header(1, 1, 8, 0) + strings.Repeat(chunk("tEXt", ""), 1001), "first 1000 chunks"},
		"png, long part":   {header(1, 1, 8, 0) + "\xff\xff\xff\xfftEXt", "before its picture"},
		"a wrong checksum": {string(spoilt), "checksum of its header"},
		"no header":        {"\x89PNG\r\n\x1a\n" + chunk("IDAT", "0123456789012"), `got "IDAT"`},
		"colour type 5":    {header(1, 1, 8, 5), "colour type 5"},
		"no columns":       {header(0, 1, 8, 0), "0 x 1 pixels"},
		"a negative side":  {header(1<<31, 1, 8, 0), "at most 2147483647"},
	} {
		if _, err := picture.Read([]byte(tc.file)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: expected %q, got %v", name, tc.want, err)
		}
	}
}

// For any input, the description of a picture is possible; and reading it does not allocate, so
// that no header can claim memory.
func FuzzRead(f *testing.F) {
	f.Add(jpegOf(f, image.NewRGBA(size)))
	f.Add(after(jpegOf(f, image.NewGray(size)), 2, exif(binary.LittleEndian, 8)))
	f.Add(pngOf(f, image.NewNRGBA64(size)))
	f.Add([]byte(header(30000, 30000, 8, 2)))
	f.Fuzz(func(t *testing.T, file []byte) {
		h, err := picture.Read(file)
		if err != nil {
			return
		}
		if h.Width < 1 || h.Height < 1 || h.Turned < 1 || h.Turned > 8 ||
			h.Format != picture.JPEG && h.Format != picture.PNG {
			t.Errorf("%+v", h)
		}
	})
}

func TestNoAllocations(t *testing.T) {
	for _, file := range [][]byte{jpegOf(t, image.NewRGBA(size)), pngOf(t, image.NewRGBA(size))} {
		if n := testing.AllocsPerRun(100, func() {
			if _, err := picture.Read(file); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("%g allocations", n)
		}
	}
}
