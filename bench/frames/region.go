package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva/tensor"
)

// sharedDirectory is where shared memory has its names.
const sharedDirectory = "/dev/shm"

// A region is shared memory for the tensors of a size: for each connection an input, followed by an
// output. Inputs are written once, as a camera would leave a frame there.
type region struct {
	file *os.File
	size int
}

// share makes the region of a size and writes its inputs.
func (s *size) share(xs []tensor.Tensor) error {
	file, err := os.CreateTemp(sharedDirectory, "shivad-frames-")
	if err != nil {
		return err
	}
	s.region = &region{file, 2 * len(xs) * s.bytes()}
	if err := file.Truncate(int64(s.region.size)); err != nil {
		return err
	}
	for i, x := range xs {
		if _, err := file.WriteAt(x.Data, int64(s.input(i).Offset)); err != nil {
			return err
		}
	}
	return nil
}

// unshare removes the region, if there is one.
func (s *size) unshare() {
	if s.region != nil {
		s.region.file.Close()
		os.Remove(s.region.file.Name())
	}
}

// input and output are the places of the tensors of a connection.
func (s *size) input(i int) load.Place {
	return load.Place{Region: s.model, Offset: 2 * i * s.bytes(), Size: s.bytes()}
}

func (s *size) output(i int) load.Place {
	return load.Place{Region: s.model, Offset: (2*i + 1) * s.bytes(), Size: s.bytes()}
}

// same compares the output of a connection with its input, and clears the output, so that the next
// comparison sees only what was written since.
func (s *size) same(i int) error {
	x, y := make([]byte, s.bytes()), make([]byte, s.bytes())
	if i < 0 {
		return errors.New("the answer is to none of the requests sent")
	}
	for place, into := range map[load.Place][]byte{s.input(i): x, s.output(i): y} {
		if _, err := s.region.file.ReadAt(into, int64(place.Offset)); err != nil {
			return err
		}
	}
	if !bytes.Equal(x, y) {
		return errors.New("the output in shared memory is not the input")
	}
	_, err := s.region.file.WriteAt(make([]byte, len(y)), int64(s.output(i).Offset))
	return err
}

// register makes the region known to a server, by the Predict Protocol over HTTP.
func (r *region) register(addr, name string) error {
	body := fmt.Sprintf(`{"key":"/%s","offset":0,"byte_size":%d}`, filepath.Base(r.file.Name()), r.size)
	a, err := http.Post(fmt.Sprintf("http://%s/v2/systemsharedmemory/region/%s/register", addr, name),
		"application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		var text bytes.Buffer
		_, _ = text.ReadFrom(a.Body)
		return fmt.Errorf("%s: %s", a.Status, &text)
	}
	return nil
}
