package jsonscan

// The grammar: each skip function takes the offset where an item begins and returns the offset
// after its end, or the offset of the first unexpected byte, and false.

func skipSpace(b []byte, i int) int {
	for i < len(b) && b[i] <= ' ' && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipValue recurses once per level, at most depth times.
func (s *Scanner) skipValue(i, depth int) (int, bool) {
	b := s.Text
	if i >= len(b) {
		return i, false
	}
	switch b[i] {
	case '{', '[':
		if depth == 0 {
			s.tooDeep = true
			return i, false
		}
		return s.skipComposite(i, depth-1)
	case '"':
		return skipString(b, i, s.Rules)
	case 't':
		return skipWord(b, i, "true")
	case 'f':
		return skipWord(b, i, "false")
	case 'n':
		return skipWord(b, i, "null")
	case 'N', 'I', '-':
		if s.Rules&NonFinite != 0 {
			if end, ok := skipNonFinite(b, i); ok {
				s.Words++
				return end, true
			}
		}
	}
	n := scanNumber(b, i)
	return n.end, n.ok
}

// skipNonFinite skips what Python writes for numbers that JSON lacks.
func skipNonFinite(b []byte, i int) (int, bool) {
	for _, word := range [...]string{"NaN", "Infinity", "-Infinity"} {
		if end, ok := skipWord(b, i, word); ok {
			return end, true
		}
	}
	return i, false
}

// skipComposite skips an object or array whose opening bracket is at i.
func (s *Scanner) skipComposite(i, depth int) (int, bool) {
	b := s.Text
	object := b[i] == '{'
	closing := b[i] + 2 // in ASCII
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == closing {
		return i + 1, true
	}
	for {
		var ok bool
		if object {
			if i == len(b) || b[i] != '"' {
				return i, false
			}
			if i, ok = skipString(b, i, s.Rules); !ok {
				return i, false
			}
			if i = skipSpace(b, i); i == len(b) || b[i] != ':' {
				return i, false
			}
			i = skipSpace(b, i+1)
		}
		if i, ok = s.skipValue(i, depth); !ok {
			return i, false
		}
		i = skipSpace(b, i)
		switch {
		case i == len(b):
			return i, false
		case b[i] == closing:
			return i + 1, true
		case b[i] != ',':
			return i, false
		}
		i = skipSpace(b, i+1)
	}
}

// skipString skips a string whose opening quote is at i.
func skipString(b []byte, i int, rules Rules) (int, bool) {
	for i++; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1, true
		case c < ' ':
			return i, false
		case c == '\\':
			end, ok := skipEscape(b, i, rules)
			if !ok {
				return i, false
			}
			i = end - 1
		}
	}
	return i, false
}

// skipEscape skips an escape whose backslash is at i; the two halves of a surrogate pair count as
// one.
func skipEscape(b []byte, i int, rules Rules) (int, bool) {
	if i+1 >= len(b) {
		return i, false
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2, true
	case 'u':
	default:
		return i, false
	}
	u, ok := hex4(b, i+2)
	if !ok {
		return i, false
	}
	if u < 0xd800 || u >= 0xe000 || rules&LoneSurrogates != 0 {
		return i + 6, true
	}
	if u >= 0xdc00 || i+8 > len(b) || b[i+6] != '\\' || b[i+7] != 'u' {
		return i, false
	}
	low, ok := hex4(b, i+8)
	return i + 12, ok && 0xdc00 <= low && low < 0xe000
}

// hex4 reads four hexadecimal digits at i.
func hex4(b []byte, i int) (u uint32, ok bool) {
	if i+4 > len(b) {
		return 0, false
	}
	for _, c := range b[i : i+4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		u = u<<4 | uint32(c)
	}
	return u, true
}

func skipWord(b []byte, i int, word string) (int, bool) {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return i, false
	}
	return i + len(word), true
}
