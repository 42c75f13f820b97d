package predict

import (
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/regions"
)

// Regions returns the shared memory regions that clients have registered.
func (s *Service) Regions() *regions.Registry { return s.cfg.Regions }

// extensions adds the shared memory extension, if it is configured.
func (s *Service) extensions(all []string) []string {
	if s.cfg.Regions.Offered() {
		all = append(all[:len(all):len(all)], regions.Extension)
	}
	return all
}

// regionClient returns the client whose regions the request may name.
func (q *Question) regionClient() regions.Client {
	return regions.Client{Address: q.Client, Who: q.Who}
}

// checkPlaces checks that requested outputs can be written to their places.
func (s *Service) checkPlaces(q *Question) error {
	for i := range q.Outputs {
		if at := q.Outputs[i].Place; at.Region != "" {
			if err := s.cfg.Regions.CheckOutput(q.regionClient(), q.Outputs[i].Name, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// place writes outputs to their places.
func (s *Service) place(a *Answer, q *Question) error {
	for i := range q.Outputs {
		at := q.Outputs[i].Place
		if at.Region == "" {
			continue
		}
		if err := s.cfg.Regions.Put(q.regionClient(), &a.Outputs[i], &at); err != nil {
			return err
		}
		if a.places == nil {
			a.places = make([]parameter.Place, len(q.Outputs))
		}
		a.places[i] = at
	}
	return nil
}
