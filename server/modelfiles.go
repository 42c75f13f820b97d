package server

import (
	"encoding/json"
	"fmt"

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
	// Pictures says that it takes files of pictures.
	Pictures bool
	// Fault is a sentence about why it is not served, or not as its file is; "": it is.
	Fault string
}

// ModelFiles returns the models of files that are served, and those that cannot be, by name.
func (s *Server) ModelFiles() (list []ModelFile) {
	for _, name := range s.models.Models() {
		t, err := s.gate.Target(name, "")
		if err != nil || !t.Serves {
			fault := s.models.Fault(name)
			if why := s.processes.Futile(name); fault == "" && why != "" {
				fault = fmt.Sprintf("%s is not served: %s", name, why)
			}
			if fault != "" {
				list = append(list, ModelFile{Name: name, Fault: fault})
			}
			continue
		}
		var said struct{ Proof string }
		_ = json.Unmarshal(t.Spec.Parameters, &said) // another container says something else
		pictures := len(t.Spec.Inputs) > 0 && t.Spec.Inputs[0].Image != nil
		list = append(list, ModelFile{Name: name, Proof: said.Proof, Pictures: pictures, Fault: s.models.Fault(name)})
	}
	return list
}
