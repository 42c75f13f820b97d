// Compile runs a compiler or a linker for "go test -toolexec". It does not recompile a package of
// this module if its sources, and the declarations of its imports, are unchanged.
//
// Go recompiles a package if any byte of an imported archive has changed. But the compiler reads
// only the first entry of an archive: the exports of the package, with the bodies that can be
// inlined and all line numbers. If only line numbers differ, an archive keeps its old first entry
// (declared.go). So the change of a body costs one compilation here, where Go would do seventy.
// Programs are linked and tested as usual, since their archives differ.
//
// A new function would still change a package's exports: the numbers of its symbols. The compiler
// of .ci/by-name has no such numbers, and is used if it is in the same folder as this program.
//
// Objects are kept in the folder of this program, the last few for each way in which a package is
// compiled, and reused if everything that the compiler reads is the same: its flags, the sources,
// the files that they embed, and the first entries.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// module is the module whose packages are kept. Other packages change seldom, and are in Go's
// cache.
const module = "github.com/shivad/shivad"

// environment has the variables that a compiler reads.
var environment = []string{"GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT"}

// elsewhere matches flags that make a compiler read further files, unknown here.
var elsewhere = regexp.MustCompile(`^-(pgoprofile|coveragecfg)`)

func main() {
	// The same settings as in .ci/tool.
	os.Setenv("GOGC", "off")
	os.Setenv("GOMEMLIMIT", "1GiB")
	tool, args := os.Args[1], os.Args[2:]
	if filepath.Base(tool) == "compile" && strings.HasPrefix(os.Getenv("TOOLEXEC_IMPORTPATH"), module) {
		tool = compiler(tool)
		if c, err := read(tool, args); err == nil {
			os.Exit(c.run(tool, args, filepath.Join(filepath.Dir(os.Args[0]), "objects")))
		}
	}
	fmt.Fprintln(os.Stderr, syscall.Exec(tool, os.Args[1:], os.Environ()))
	os.Exit(2)
}

// compiler returns the compiler that .ci/by-name built from this version of Go, or else Go's own.
// The objects of the two cannot be linked together.
func compiler(own string) string {
	byName := filepath.Join(filepath.Dir(os.Args[0]), "by-name-"+runtime.Version())
	if _, err := os.Stat(byName); err != nil {
		return own
	}
	return byName
}

// A compilation is one call of the compiler.
type compilation struct {
	out, buildID string            // -o and -buildid
	header       string            // -asmhdr, which assembly includes: always compile
	sources      []string          // the files
	around       [sha256.Size]byte // the hash of everything else that the compiler reads
	key          [sha256.Size]byte // the hash of everything that the compiler reads
}

// read hashes everything that a compiler with these arguments reads. It fails if that is more than
// sources, the declarations of assembly, embedded files and imports.
func read(tool string, args []string) (*compilation, error) {
	c, h := new(compilation), sha256.New()
	info, err := os.Stat(tool)
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(h, tool, info.Size(), info.ModTime())
	for _, name := range environment {
		fmt.Fprintln(h, name, os.Getenv(name))
	}
	var imports, embeds, assembly string
	values := map[string]*string{
		"-o": &c.out, "-buildid": &c.buildID, "-asmhdr": &c.header,
		"-importcfg": &imports, "-embedcfg": &embeds, "-symabis": &assembly,
	}
	var rest []string
	for i := 0; i < len(args); i++ {
		if value := values[args[i]]; value != nil && i+1 < len(args) {
			i++
			*value = args[i]
		} else if !strings.HasPrefix(args[i], "-c=") { // the number of threads
			rest = append(rest, args[i])
		}
	}
	if slices.ContainsFunc(rest, elsewhere.MatchString) || c.out == "" || c.buildID == "" || imports == "" {
		return nil, errors.ErrUnsupported
	}
	for _, arg := range rest {
		fmt.Fprintf(h, "%q\n", strings.ReplaceAll(arg, filepath.Dir(imports), "$WORK"))
		if strings.HasSuffix(arg, ".go") {
			c.sources = append(c.sources, arg)
		}
	}
	err = errors.Join(err, addImports(h, imports))
	if embeds != "" {
		err = errors.Join(err, addEmbeds(h, embeds))
	}
	if assembly != "" {
		err = errors.Join(err, add(h, assembly))
	}
	h.Sum(c.around[:0])
	for _, path := range c.sources {
		err = errors.Join(err, add(h, path))
	}
	h.Sum(c.key[:0])
	return c, err
}

// add hashes a file.
func add(h hash.Hash, path string) error {
	data, err := os.ReadFile(path)
	fmt.Fprintln(h, len(data))
	h.Write(data)
	return err
}

// addImports hashes the exports of the packages that a file of -importcfg names.
func addImports(h hash.Hash, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		name, archive, found := strings.Cut(strings.TrimSpace(line), "=")
		fmt.Fprintf(h, "%q\n", name)
		if !strings.HasPrefix(name, "packagefile ") || !found {
			fmt.Fprintf(h, "%q\n", archive)
			continue
		}
		file, err := os.Open(archive)
		if err != nil {
			return err
		}
		entry, err := first(file)
		file.Close()
		if err != nil {
			return err
		}
		exports, _, err := cutID(entry)
		if err != nil {
			return err
		}
		fmt.Fprintln(h, len(exports))
		h.Write(exports)
	}
	return nil
}

// addEmbeds hashes the files that a file of -embedcfg names.
func addEmbeds(h hash.Hash, path string) error {
	if err := add(h, path); err != nil {
		return err
	}
	var config struct{ Files map[string]string }
	data, err := os.ReadFile(path)
	if err := errors.Join(err, json.Unmarshal(data, &config)); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(config.Files)) {
		if err := add(h, config.Files[name]); err != nil {
			return err
		}
	}
	return nil
}

// first returns an archive up to the end of its first entry.
func first(archive io.Reader) ([]byte, error) {
	const magic, header = len("!<arch>\n"), 60
	var head [magic + header]byte
	if _, err := io.ReadFull(archive, head[:]); err != nil {
		return nil, err
	}
	size, err := strconv.Atoi(string(bytes.TrimSpace(head[magic+48 : magic+58])))
	if err != nil || !bytes.HasPrefix(head[magic:], []byte("__.PKGDEF")) {
		return nil, errors.ErrUnsupported
	}
	entry := make([]byte, len(head)+size)
	copy(entry, head[:])
	_, err = io.ReadFull(archive, entry[len(head):])
	return entry, err
}

// cutID cuts the build id from a first entry.
func cutID(entry []byte) (exports []byte, id string, err error) {
	before, after, _ := bytes.Cut(entry, []byte("build id \""))
	cut, after, found := bytes.Cut(after, []byte("\"\n"))
	if !found {
		return nil, "", errors.ErrUnsupported
	}
	return slices.Concat(before, after), string(cut), nil
}

// run writes the object to c.out, and returns the status of the compiler. The name of a folder is a
// hash of the package, and of the test that it is compiled for; the name of a kept object is the
// hash of its inputs.
func (c *compilation) run(tool string, args []string, objects string) int {
	name := sha256.Sum256([]byte(os.Getenv("TOOLEXEC_IMPORTPATH")))
	folder := filepath.Join(objects, fmt.Sprintf("%x", name[:8]))
	kept := filepath.Join(folder, fmt.Sprintf("%x", c.key))
	if object, err := os.ReadFile(kept); err == nil && c.header == "" {
		if object, err = c.identify(object); err == nil && os.WriteFile(c.out, object, 0o666) == nil {
			os.Chtimes(kept, time.Time{}, time.Now())
			return 0
		}
	}
	compiler := exec.Command(tool, args...)
	said, err := compiler.CombinedOutput()
	os.Stdout.Write(said)
	if err != nil {
		return max(1, compiler.ProcessState.ExitCode())
	}
	if object, err := os.ReadFile(c.out); err == nil && len(said) == 0 {
		if steady, err := c.steady(object, filepath.Join(folder, "declared")); err == nil {
			if err := os.WriteFile(c.out, steady, 0o666); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			object = steady
		}
		keep(kept, object)
	}
	return 0
}

// identify returns an archive, or its first entry, with the build id that Go expects.
func (c *compilation) identify(archive []byte) ([]byte, error) {
	entry, err := first(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	_, id, err := cutID(entry)
	if err != nil || len(id) != len(c.buildID) {
		return nil, errors.ErrUnsupported
	}
	return bytes.ReplaceAll(archive, []byte(id), []byte(c.buildID)), nil
}

// keep writes a file, and removes all but the three most recently used files of its folder.
func keep(path string, data []byte) {
	part, folder := fmt.Sprintf("%s.%d", path, os.Getpid()), filepath.Dir(path)
	os.MkdirAll(folder, 0o777)
	os.WriteFile(part, data, 0o666)
	os.Rename(part, path)
	entries, _ := os.ReadDir(folder)
	used := make(map[string]time.Time)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && !info.IsDir() {
			used[e.Name()] = info.ModTime()
		}
	}
	latest := slices.SortedFunc(maps.Keys(used), func(a, b string) int { return used[b].Compare(used[a]) })
	for _, name := range latest[min(3, len(latest)):] {
		os.Remove(filepath.Join(folder, name))
	}
}
