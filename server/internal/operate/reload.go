package operate

import "net/http"

func (s Sources) reload(r *http.Request) (any, error) {
	done, err := s.Settings.Reload()
	if err != nil {
		return nil, err
	}
	s.audit(r, act{action: "reload", what: "configuration", after: done})
	return done, nil
}
