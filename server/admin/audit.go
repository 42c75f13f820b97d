package admin

import (
	"net/http"

	"github.com/shivad/shivad/server/internal/access"
)

// An Audit is the answer to /v1/audit: the latest actions, done or refused, and by whom.
type Audit struct {
	Entries []access.Entry `json:"entries"` // the oldest first
}

// mostAudited is how many entries are shown without ?limit: all that are kept.
const mostAudited = 1000

func (s Sources) trail(r *http.Request) (any, error) {
	most, err := limit(r, mostAudited, "entries")
	if err != nil {
		return nil, err
	}
	return Audit{s.Trail.List(most)}, nil
}
