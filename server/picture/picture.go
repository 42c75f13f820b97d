// Package picture reads the format, the size and the kind of pixels of a JPEG or PNG picture from
// the first bytes of its file, without decoding it. It allocates only errors, and reads a bounded
// part of the file, however long the file is.
package picture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// A Header describes the picture in a file.
type Header struct {
	Format Format
	// Width and Height are those of the stored pixels: see Upright.
	Width, Height int
	// Channels is 1 for gray or a palette, 2 for gray and alpha, 3 for colour, and 4 for CMYK in a
	// JPEG and for colour and alpha in a PNG.
	Channels int
	Bits     int // of a channel, or of an index into the palette
	// Turned is the EXIF orientation of a JPEG, 1 to 8, by which viewers turn a picture; 1 if the
	// file has none. PNG files are taken as they are.
	Turned   int
	Animated bool // APNG
}

// A Format is a file format.
type Format string

// The formats.
const (
	JPEG Format = "JPEG"
	PNG  Format = "PNG"
)

// Upright returns the size as shown: orientations 5 to 8 lie on their side.
func (h Header) Upright() (width, height int) {
	if h.Turned >= 5 {
		return h.Height, h.Width
	}
	return h.Width, h.Height
}

// Read reads the header of a file. The error names what was expected and what was found.
func Read(file []byte) (Header, error) {
	switch {
	case bytes.HasPrefix(file, []byte("\xff\xd8\xff")):
		return readJPEG(file)
	case bytes.HasPrefix(file, []byte(signature)):
		return readPNG(file)
	}
	for _, other := range otherFormats {
		if len(file) >= other.at+len(other.magic) && string(file[other.at:other.at+len(other.magic)]) == other.magic {
			return Header{}, fmt.Errorf("expected a JPEG or PNG file, got %s", other.name)
		}
	}
	if len(file) == 0 {
		return Header{}, fmt.Errorf("expected a JPEG or PNG file, got 0 bytes")
	}
	return Header{}, fmt.Errorf("expected a JPEG or PNG file, got %d bytes that begin with % x", len(file),
		file[:min(len(file), 8)])
}

// otherFormats are formats that users send by mistake, for errors to name.
var otherFormats = []struct {
	at    int
	magic string
	name  string
}{
	{0, "GIF8", "a GIF"}, {8, "WEBP", "a WebP"}, {0, "BM", "a BMP"}, {0, "II*\x00", "a TIFF"}, {0, "MM\x00*", "a TIFF"},
	{4, "ftypavif", "an AVIF"}, {4, "ftyphei", "a HEIC"}, {4, "ftypmif1", "a HEIC"}, {0, "%PDF", "a PDF"},
	{0, "\x00\x00\x00\x0cjP  ", "a JPEG 2000"}, {0, "\xff\x0a", "a JPEG XL"}, {0, "\xff\xd8", "a JPEG that ends after its first marker"},
}

// maxParts is how many parts of a file Read examines before it gives up finding the picture.
// Cameras write a few parts, and a colour profile or a second picture adds some tens, of 64 KiB
// each.
const maxParts = 1000

// The JPEG markers that Read examines.
const (
	sof0 = 0xc0 // baseline, the first of the frame headers, sof0 to 0xcf
	dht  = 0xc4 // three of these numbers are not frame headers
	jpg  = 0xc8
	dac  = 0xcc
	rst0 = 0xd0 // rst0 to eoi have no length
	eoi  = 0xd9
	sos  = 0xda
	app1 = 0xe1
	tem  = 0x01
)

func readJPEG(file []byte) (Header, error) {
	h := Header{Format: JPEG, Turned: 1}
	at := 2
	for range maxParts {
		if at+4 > len(file) {
			return h, truncated(JPEG, file)
		}
		if file[at] != 0xff {
			return h, fmt.Errorf("JPEG: expected a marker at byte %d, got %#02x", at, file[at])
		}
		marker := file[at+1]
		switch {
		case marker == 0xff: // a fill byte
			at++
			continue
		case marker == tem || rst0 <= marker && marker <= eoi:
			return h, fmt.Errorf("JPEG: expected a frame header before marker %#02x at byte %d", marker, at)
		case marker == sos:
			return h, fmt.Errorf("JPEG: expected a frame header before the scan at byte %d", at)
		}
		size := int(binary.BigEndian.Uint16(file[at+2:]))
		if size < 2 {
			return h, fmt.Errorf("JPEG: the segment of %d bytes at byte %d is too short, expected 2 bytes or more", size, at)
		}
		if at+2+size > len(file) {
			return h, truncated(JPEG, file)
		}
		part := file[at+4 : at+2+size]
		if marker == app1 {
			if turned := orientation(part); turned > 0 {
				h.Turned = turned
			}
		}
		if sof0 <= marker && marker <= 0xcf && marker != dht && marker != jpg && marker != dac {
			return h, h.frame(marker, part)
		}
		at += 2 + size
	}
	return h, fmt.Errorf("JPEG: there is no picture in the first %d segments", maxParts)
}

// frame reads a JPEG frame header.
func (h *Header) frame(marker byte, part []byte) error {
	if marker > sof0+2 {
		return fmt.Errorf("JPEG: expected a baseline or progressive frame, got marker %#02x (lossless, hierarchical or arithmetic)", marker)
	}
	if len(part) < 6 {
		return fmt.Errorf("JPEG: the frame header has %d bytes, expected 6 or more", len(part))
	}
	h.Bits = int(part[0])
	h.Height = int(binary.BigEndian.Uint16(part[1:]))
	h.Width = int(binary.BigEndian.Uint16(part[3:]))
	h.Channels = int(part[5])
	return h.sized()
}

// orientation returns the EXIF orientation in a part of a JPEG; 0: none. EXIF has it in the first
// directory of a TIFF file.
func orientation(part []byte) int {
	const head = "Exif\x00\x00"
	if !bytes.HasPrefix(part, []byte(head)) {
		return 0
	}
	tiff := part[len(head):]
	if len(tiff) < 8 {
		return 0
	}
	var order binary.ByteOrder = binary.LittleEndian
	switch string(tiff[:4]) {
	case "II*\x00":
	case "MM\x00*":
		order = binary.BigEndian
	default:
		return 0
	}
	const entry, tag, short = 12, 0x0112, 3
	at := int(order.Uint32(tiff[4:]))
	if at < 8 || at > len(tiff)-2 {
		return 0
	}
	n := int(order.Uint16(tiff[at:]))
	at += 2
	for range n {
		if at > len(tiff)-entry {
			return 0
		}
		if order.Uint16(tiff[at:]) == tag {
			turned := int(order.Uint16(tiff[at+8:]))
			if order.Uint16(tiff[at+2:]) != short || turned < 1 || turned > 8 {
				return 0
			}
			return turned
		}
		at += entry
	}
	return 0
}

const signature = "\x89PNG\r\n\x1a\n"

func readPNG(file []byte) (Header, error) {
	h := Header{Format: PNG, Turned: 1}
	const ihdr = len(signature) + 8
	if len(file) < ihdr+17 {
		return h, truncated(PNG, file)
	}
	if size := binary.BigEndian.Uint32(file[8:]); string(file[12:16]) != "IHDR" || size != 13 {
		return h, fmt.Errorf("PNG: expected the chunk IHDR of 13 bytes, got %q of %d bytes", file[12:16], size)
	}
	if crc32.ChecksumIEEE(file[12:29]) != binary.BigEndian.Uint32(file[29:]) {
		return h, fmt.Errorf("PNG: the checksum of its header is wrong")
	}
	width, height := binary.BigEndian.Uint32(file[16:]), binary.BigEndian.Uint32(file[20:])
	if width > 1<<31-1 || height > 1<<31-1 {
		return h, fmt.Errorf("PNG: %d x %d pixels, the format has at most %d on a side", width, height, 1<<31-1)
	}
	h.Width, h.Height, h.Bits = int(width), int(height), int(file[24])
	switch kind := file[25]; kind {
	case 0, 3:
		h.Channels = 1
	case 4:
		h.Channels = 2
	case 2:
		h.Channels = 3
	case 6:
		h.Channels = 4
	default:
		return h, fmt.Errorf("PNG: colour type %d, expected 0, 2, 3, 4 or 6", kind)
	}
	if err := h.sized(); err != nil {
		return h, err
	}
	at := 33
	for range maxParts {
		if at+8 > len(file) {
			return h, truncated(PNG, file)
		}
		switch string(file[at+4 : at+8]) {
		case "IDAT":
			return h, nil
		case "acTL":
			h.Animated = true
		case "IEND":
			return h, fmt.Errorf("PNG: the file ends without a picture")
		}
		size := int64(binary.BigEndian.Uint32(file[at:]))
		if size > int64(len(file)-at-12) {
			return h, truncated(PNG, file)
		}
		at += 12 + int(size)
	}
	return h, fmt.Errorf("PNG: there is no picture in the first %d chunks", maxParts)
}

func (h *Header) sized() error {
	if h.Width == 0 || h.Height == 0 {
		return fmt.Errorf("%s: the picture has %d x %d pixels, expected 1 or more on each side", h.Format, h.Width,
			h.Height)
	}
	return nil
}

func truncated(f Format, file []byte) error {
	return fmt.Errorf("%s: it ends after %d bytes, before its picture", f, len(file))
}
