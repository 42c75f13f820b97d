package operate

import "net/http"

func (s Sources) history(r *http.Request) (any, error) { return s.History.Of(r.PathValue("name")) }
