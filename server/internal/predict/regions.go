package predict

import (
	"github.com/shivad/shivad/server/internal/gate"
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

// holds are the places of requested outputs, with the zero Hold for those in the answer.
type holds []regions.Hold

// holdPlaces holds the places of requested outputs, if there are any.
func (s *Service) holdPlaces(r *gate.Request) (hs holds, err error) {
	for i := range r.Outputs {
		at := r.Outputs[i].Place
		if at.Region == "" {
			continue
		}
		if hs == nil {
			hs = make(holds, len(r.Outputs))
		}
		if hs[i], err = s.cfg.Regions.HoldOutput(regions.Client{Address: r.Client, Who: r.Who}, r.Outputs[i].Name,
			at); err != nil {
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
func (hs holds) put(a *Answer, r *gate.Request) (err error) {
	if hs != nil {
		a.places = make([]parameter.Place, len(hs))
	}
	for i, h := range hs {
		if r.Outputs[i].Place.Region == "" {
			continue
		}
		if a.places[i], err = h.Put(&a.Outputs[i]); err != nil {
			return err
		}
	}
	return nil
}
