package operate

import "net/http"

func (s Sources) reload(r *http.Request) (any, error) {
	done, err := s.Settings.Reload()
	if err != nil {
		return nil, err
	}
	s.audit(r, "reload", "configuration", "", nil, done, nil)
	return done, nil
}
