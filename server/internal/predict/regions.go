package predict

import (
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/regions"
)

// Regions are those of shared memory that clients have registered.
func (s *Service) Regions() *regions.Registry { return s.cfg.Regions }

// extensions adds the one of shared memory, where it is offered.
func (s *Service) extensions(all []string) []string {
	if s.cfg.Regions.Offered() {
		all = append(all[:len(all):len(all)], regions.Extension)
	}
	return all
}

// checkPlaces is the error for requested outputs whose places cannot be written.
func (s *Service) checkPlaces(client string, outputs []Output) error {
	for i := range outputs {
		if at := outputs[i].Place; at.Region != "" {
			if err := s.cfg.Regions.CheckOutput(client, outputs[i].Name, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// place writes the outputs that have places there.
func (s *Service) place(a *Answer, outputs []Output) error {
	for i := range outputs {
		at := outputs[i].Place
		if at.Region == "" {
			continue
		}
		if err := s.cfg.Regions.Put(&a.Outputs[i], &at); err != nil {
			return err
		}
		if a.places == nil {
			a.places = make([]parameter.Place, len(outputs))
		}
		a.places[i] = at
	}
	return nil
}
