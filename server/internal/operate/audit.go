package operate

import (
	"net/http"

	"github.com/shivad/shivad/server/admin"
)

// mostAudited is how many entries are shown without ?limit: all that are kept.
const mostAudited = 1000

func (s Sources) trail(r *http.Request) (any, error) {
	most, err := readLimit(r, mostAudited, "entries")
	if err != nil {
		return nil, err
	}
	return admin.Audit{Entries: s.Trail.List(most)}, nil
}
