package frigate

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/shivad/shivad/server/internal/fault"
)

// A store is the directory for the model files of detectors. A nil store is empty. Any goroutine
// may use it.
type store struct {
	root *os.Root // no file name can leave it
	mu   sync.Mutex
}

// partial is the prefix of files that are being written. No name of a detector begins with a dot.
const partial = ".partial-"

func openStore(dir string) (*store, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &store{root: root}, nil
}

func (s *store) close() {
	if s != nil {
		_ = s.root.Close()
	}
}

// has reports whether there is a file of that name.
func (s *store) has(name string) bool {
	if s == nil || checkName(name) != nil {
		return false
	}
	info, err := s.root.Lstat(name)
	return err == nil && info.Mode().IsRegular()
}

// save writes a file. It never replaces one, which may belong to another detector.
func (s *store) save(name string, data []byte, limits *Settings) error {
	if err := checkName(name); err != nil {
		return err
	}
	if n := int64(len(data)); n > limits.ModelBytes {
		return fault.TooLarge("the model file has %d bytes; frigate.model_bytes is %d", n, limits.ModelBytes)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch same, err := s.same(name, data); {
	case same:
		return nil
	case err == nil:
		return fault.Invalid("a model file %q with other contents exists; remove it before sending this one", name)
	case !errors.Is(err, fs.ErrNotExist):
		return writeError(err)
	}
	files, err := s.files()
	if err != nil {
		return writeError(err)
	}
	if files >= limits.ModelFiles {
		return fault.TooLarge("there are %d model files; frigate.model_files is %d", files, limits.ModelFiles)
	}
	if err := s.write(name, data); err != nil {
		return writeError(err)
	}
	return nil
}

// same reports whether the file of that name has these contents. It reads only regular files, and
// no more bytes than were sent.
func (s *store) same(name string, data []byte) (bool, error) {
	info, err := s.root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(data)) {
		return false, err
	}
	old, err := s.root.ReadFile(name)
	return err == nil && bytes.Equal(old, data), err
}

// writeError is the error for a file that could not be written, without the server's paths.
func writeError(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		err = path.Err
	}
	return fmt.Errorf("%w: the model file could not be written: %w", fault.ErrInternal, err)
}

// files counts the complete files.
func (s *store) files() (n int, err error) {
	dir, err := s.root.Open(".")
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if !strings.HasPrefix(name, partial) {
			n++
		}
	}
	return n, err
}

// write writes the file as a whole or not at all. It overwrites what a killed server left behind.
func (s *store) write(name string, data []byte) error {
	f, err := s.root.OpenFile(partial+name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = s.root.Rename(partial+name, name)
	}
	if err != nil {
		_ = s.root.Remove(partial + name)
	}
	return err
}

// checkName returns an error for a name that no model file may have.
func checkName(name string) error {
	odd := func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' ||
			c == '-')
	}
	if name == "" || len(name) > mostName || name[0] == '.' || strings.ContainsFunc(name, odd) {
		return fault.Invalid("model_name %.200q: expected 1 to %d letters, digits, dots, dashes and underscores, not starting with a dot",
			name, mostName)
	}
	return nil
}
