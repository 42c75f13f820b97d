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

// holds are the places of requested outputs, with the zero Hold for those in the answer.
type holds []regions.Hold

// holdPlaces holds the places of requested outputs, if there are any.
func (s *Service) holdPlaces(q *Question) (hs holds, err error) {
	for i := range q.Outputs {
		at := q.Outputs[i].Place
		if at.Region == "" {
			continue
		}
		if hs == nil {
			hs = make(holds, len(q.Outputs))
		}
		if hs[i], err = s.cfg.Regions.HoldOutput(q.regionClient(), q.Outputs[i].Name, at); err != nil {
			hs.release()
			return nil, err
		}
	}
	return hs, nil
}

func (hs holds) release() {
	for _, h := range hs {
		h.Release()
	}
}

// put writes outputs to their places.
func (hs holds) put(a *Answer, q *Question) (err error) {
	if hs != nil {
		a.places = make([]parameter.Place, len(hs))
	}
	for i, h := range hs {
		if q.Outputs[i].Place.Region == "" {
			continue
		}
		if a.places[i], err = h.Put(&a.Outputs[i]); err != nil {
			return err
		}
	}
	return nil
}
