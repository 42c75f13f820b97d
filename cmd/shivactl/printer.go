package main

import (
	"fmt"
	"io"
	"os"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// A printer is a standard output or standard error. Much of what is written there was chosen by
// others: names by clients, errors by models, documents by servers. A terminal would execute what
// it finds there (ESC, CSI, BEL, a carriage return), or show it in another order (U+202E), so
// everything but printable characters, tabs and line ends is shown by its number, as in JSON. So a
// document keeps its meaning.
type printer struct{ w io.Writer }

func (p printer) Write(text []byte) (int, error) {
	if _, err := p.w.Write(plain(text)); err != nil {
		return 0, err
	}
	return len(text), nil
}

// plain returns a text with all that a terminal would interpret replaced: text itself if there is
// nothing.
func plain(text []byte) []byte {
	var out []byte
	from := 0 // of what is not yet in out
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		if broken := r == utf8.RuneError && size == 1; broken || !unicode.IsPrint(r) && r != '\n' && r != '\t' {
			out = append(out, text[from:i]...)
			switch hi, lo := utf16.EncodeRune(r); {
			case broken:
				out = utf8.AppendRune(out, utf8.RuneError)
			case r > 0xffff:
				out = fmt.Appendf(out, `\u%04x\u%04x`, hi, lo)
			default:
				out = fmt.Appendf(out, `\u%04x`, r)
			}
			from = i + size
		}
		i += size
	}
	if from == 0 {
		return text
	}
	return append(out, text[from:]...)
}

// terminalOf returns the terminal behind a standard output or standard error, and its width; nil if
// there is none. What is written to it must be our own text.
func terminalOf(w io.Writer) (f *os.File, columns int) {
	if p, ok := w.(printer); ok {
		w = p.w
	}
	f, ok := w.(*os.File)
	if ok {
		columns, _, ok = terminalSize(f)
	}
	if !ok {
		return nil, 0
	}
	return f, columns
}

// terminalSize returns the size of a terminal in characters, 0 if unknown; ok is false if f is not
// a terminal.
func terminalSize(f *os.File) (columns, rows int, ok bool) {
	columns, rows, err := term.GetSize(int(f.Fd()))
	return columns, rows, err == nil
}
