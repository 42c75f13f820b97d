package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// steady returns an object with the first entry of an earlier object, kept in a folder, that
// declares the same and differs only in line numbers. Compilers then inline bodies with the old
// line numbers, which only traces show.
//
// The linker expects the object to have the fingerprint of the entry that importers have read: it
// stands for the symbol numbers by which they may refer to the object. These numbers are the same,
// since the hash of the declarations includes them.
func (c *compilation) steady(object []byte, folder string) ([]byte, error) {
	entry, err := first(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	sum, err := c.declared(entry)
	if err != nil {
		return nil, err
	}
	kept := filepath.Join(folder, fmt.Sprintf("%x", sum))
	before, err := os.ReadFile(kept)
	if err != nil {
		keep(kept, entry)
		return object, nil
	}
	os.Chtimes(kept, time.Time{}, time.Now())
	before, err = c.identify(before)
	if err != nil {
		return nil, err
	}
	head, code, found := bytes.Cut(object[len(entry)+len(entry)%2:], []byte("\n!\n\x00go120ld"))
	now, found := bytes.CutPrefix(code, fingerprint(entry))
	if !found {
		return nil, errors.ErrUnsupported
	}
	pad := make([]byte, len(before)%2)
	return slices.Concat(before, pad, head, []byte("\n!\n\x00go120ld"), fingerprint(before), now), nil
}

// end follows the exports of a first entry, whose last eight bytes are a fingerprint.
const end = "\n$$\n"

func fingerprint(entry []byte) []byte {
	stream := entry[:len(entry)-len(end)]
	return stream[len(stream)-8:]
}

// declared hashes what a package declares to importers, without line numbers. It has two parts. The
// first are the elements of the exports that have no line numbers: names, strings, references, and
// everything that the compiler found out about functions (whether they are inlined, which of their
// arguments escape, the numbers of their symbols). In place of the elements with line numbers the
// second part has source: of each exported declaration, and of those that it names. A body is
// included if it can be inlined, or is generic.
func (c *compilation) declared(entry []byte) (sum [sha256.Size]byte, err error) {
	exports, err := elements(entry)
	if err != nil {
		return sum, err
	}
	h := sha256.New()
	h.Write(c.around[:])
	names, inlined := make(map[string]bool), make(map[string]bool)
	for kind, all := range exports {
		fmt.Fprintln(h, kind, len(all))
		for i, element := range all {
			if kind == texts {
				names[string(element)] = true
				fmt.Fprintf(h, "%q\n", element)
				continue
			}
			references, length, err := references(element)
			if err != nil {
				return sum, err
			}
			fmt.Fprintln(h, references)
			if kind != types && kind != objects && kind != bodies {
				fmt.Fprintf(h, "%q\n", element[length:])
			}
			if kind == roots && i == privateRoot {
				for _, r := range references {
					if r.kind == texts && r.index < uint64(len(exports[texts])) {
						inlined[string(exports[texts][r.index])] = true
					}
				}
			}
		}
	}
	sources, err := sourcesOf(c.sources, names, inlined)
	if err != nil {
		return sum, err
	}
	for _, source := range sources {
		fmt.Fprintf(h, "%q\n", source)
	}
	h.Sum(sum[:0])
	return sum, nil
}

// The kinds of elements of exports, as in internal/pkgbits.
const (
	texts = iota
	roots
	files
	packages
	symbols
	types   // with the lines of fields and parameters
	objects // with the lines of declarations
	extensions
	dictionaries
	bodies // with the lines of statements
	kinds
)

// privateRoot is the root that names the functions that can be inlined.
const privateRoot = 1

// version is the supported version, without marks between the fields of elements.
const version = 2

// elements returns the elements of the exports that end a first entry.
func elements(entry []byte) (all [kinds][][]byte, err error) {
	_, stream, _ := bytes.Cut(entry, []byte("\n$$B\nu"))
	stream, found := bytes.CutSuffix(stream, []byte(end))
	word := func() (w uint32) {
		if len(stream) >= 4 {
			w, stream = binary.LittleEndian.Uint32(stream), stream[4:]
		}
		return w
	}
	if !found || word() != version || word() != 0 {
		return all, errors.ErrUnsupported
	}
	var ends [kinds]uint32
	for kind := range ends {
		ends[kind] = word()
	}
	last := ends[kinds-1]
	if !slices.IsSorted(ends[:]) || uint64(len(stream)) < 4*uint64(last) {
		return all, errors.ErrUnsupported
	}
	data, from, i := stream[4*last:], uint32(0), uint32(0)
	for kind := range ends {
		for ; i < ends[kind]; i++ {
			to := word()
			if to < from || uint64(to) > uint64(len(data)) {
				return all, errors.ErrUnsupported
			}
			all[kind], from = append(all[kind], data[from:to]), to
		}
	}
	if int(from)+8 != len(data) {
		return all, errors.ErrUnsupported
	}
	return all, nil
}

// A reference names an element by its kind and its index there.
type reference struct{ kind, index uint64 }

// references returns the table with which an element begins, and its length.
func references(element []byte) (table []reference, length int, err error) {
	next := func() (x uint64) {
		x, n := binary.Uvarint(element[length:])
		if n <= 0 {
			err = errors.ErrUnsupported
			return 0
		}
		length += n
		return x
	}
	for n := next(); n > 0 && err == nil; n-- {
		table = append(table, reference{next(), next()})
	}
	return table, length, err
}

// A declaration is the source of a declaration, or the part of it that importers see.
type declaration struct {
	names []string // the declaration counts if one of its names does
	text  []byte
}

// sourcesOf returns the declarations in files of the given names, and of all names in these
// declarations, without comments and line numbers. It does not resolve names, so it returns a few
// too many.
func sourcesOf(paths []string, names, inlined map[string]bool) (sources []string, err error) {
	var all []declaration
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), "", text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		sources = append(sources, file.GoVersion)
		for _, d := range file.Decls {
			parts, err := declarations(d, text, inlined)
			if err != nil {
				return nil, err
			}
			all = append(all, parts...)
		}
	}
	names[every] = true
	for more := true; more; {
		more = false
		all = slices.DeleteFunc(all, func(d declaration) bool {
			if !slices.ContainsFunc(d.names, func(name string) bool { return names[name] }) {
				return false
			}
			sources = append(sources, words(d.text, names))
			more = true
			return true
		})
	}
	slices.Sort(sources)
	return sources, nil
}

// every is a name that counts in any case.
const every = ""

// declarations returns the parts of d that count separately.
func declarations(d ast.Decl, text []byte, inlined map[string]bool) (all []declaration, err error) {
	cut := func(from, to token.Pos) []byte { return text[from-1 : to-1] }
	switch d := d.(type) {
	case *ast.FuncDecl:
		name, symbol, generic := d.Name.Name, d.Name.Name, d.Type.TypeParams != nil
		if d.Recv != nil {
			receiver, pattern := d.Recv.List[0].Type, "%s.%s"
			if star, ok := receiver.(*ast.StarExpr); ok {
				receiver, pattern = star.X, "(*%s).%s"
			}
			ident, ok := receiver.(*ast.Ident)
			name, generic = every, !ok // or in parentheses, which is unusual
			if ok {
				name, symbol = ident.Name, fmt.Sprintf(pattern, ident.Name, symbol)
			}
		}
		to := d.End()
		if d.Body != nil && !generic && !inlined[symbol] {
			to = d.Body.Pos()
		}
		all = append(all, declaration{[]string{name}, cut(d.Pos(), to)})
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			part := declaration{text: cut(spec.Pos(), spec.End())}
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				part.names = []string{spec.Name.Name}
				if _, ok := spec.Type.(*ast.Ident); ok && spec.Assign.IsValid() {
					err = errors.ErrUnsupported // methods may be declared under either name
				}
			case *ast.ValueSpec:
				for _, ident := range spec.Names {
					part.names = append(part.names, ident.Name)
				}
			case *ast.ImportSpec:
				part.names = []string{every}
			}
			all = append(all, part)
		}
		if d.Tok == token.CONST { // one constant may repeat the expression of another
			whole := declaration{text: cut(d.Pos(), d.End())}
			for _, part := range all {
				whole.names = append(whole.names, part.names...)
			}
			all = []declaration{whole}
		}
	}
	return all, err
}

// words returns a text without comments and line breaks, and adds its identifiers to names.
func words(text []byte, names map[string]bool) string {
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile("", -1, len(text)), text, nil, 0)
	var out []byte
	for {
		_, tok, literal := s.Scan()
		switch tok {
		case token.EOF:
			return string(out)
		case token.IDENT:
			names[literal] = true
		case token.SEMICOLON:
			literal = "" // "\n" for the end of a line
		}
		out = append(append(append(append(out, tok.String()...), ' '), literal...), ' ')
	}
}
