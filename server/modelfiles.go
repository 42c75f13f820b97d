package server

import (
	"encoding/json"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/modelfiles"
)

// CheckModelFiles says what is wrong with the model files and folders of a valid configuration, and
// with the Pythons that are to read them. It executes these Pythons.
func CheckModelFiles(c config.Config) error { return modelfiles.Check(c) }

// A ModelFile is a model whose file the server serves.
type ModelFile struct {
	Name string
	// Proof is a sentence about how its rows share batches; "": none.
	Proof string
}

// ModelFiles returns the models of files that are served, by name.
func (s *Server) ModelFiles() (list []ModelFile) {
	for _, name := range s.models.Models() {
		t, err := s.gate.Target(name, "")
		if err != nil || !t.Serves {
			continue
		}
		var said struct{ Proof string }
		_ = json.Unmarshal(t.Spec.Parameters, &said) // another container says something else
		list = append(list, ModelFile{name, said.Proof})
	}
	return list
}
