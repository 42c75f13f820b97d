package jsonscan

import "unicode/utf8"

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func AppendString[S ~string | ~[]byte](dst []byte, s S) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	done := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
			if r == utf8.RuneError && n == 1 {
				dst = append(append(dst, s[done:i]...), "\ufffd"...)
				done = i + 1
			}
			i += n
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[done:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		done = i
	}
	dst = append(dst, s[done:]...)
	return append(dst, '"')
}

// AppendFinite appends a text that a Scanner with NonFinite has accepted, with null in the place of
// NaN, Infinity and -Infinity. Each of them makes the result at most a byte longer than the text.
func AppendFinite(dst, text []byte) []byte {
	done := 0
	for i := 0; i < len(text); {
		switch text[i] {
		case '"':
			i, _ = skipString(text, i, 0)
			continue
		case 'N', 'I', '-':
			if end, ok := skipNonFinite(text, i); ok {
				dst = append(append(dst, text[done:i]...), "null"...)
				i, done = end, end
				continue
			}
		}
		i++
	}
	return append(dst, text[done:]...)
}

// AppendMember appends a member to an object without its closing bracket. If dst is empty, it first
// writes the opening bracket.
func AppendMember[S string | []byte](dst []byte, name S, value []byte) []byte {
	open := byte(',')
	if len(dst) == 0 {
		open = '{'
	}
	dst = append(AppendString(append(dst, open), name), ':')
	return append(dst, value...)
}
